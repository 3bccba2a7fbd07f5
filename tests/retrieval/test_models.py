"""Identity and prefixes of embedding models (known fault 5), and where models are looked for."""

from __future__ import annotations

import json
import re

import pytest

from glimmer.errors import ConfigError, IntegrityError
from glimmer.retrieval.encoder import Encoder
from glimmer.retrieval.models import ModelIdentity, locate_model, prefixes_of

from .conftest import MODEL

BGE = "Represent this sentence for searching relevant passages: "


@pytest.mark.parametrize(
    ("name", "query", "passage"),
    [
        ("intfloat/e5-base-v2", "query: ", "passage: "),
        ("intfloat/e5-base-v2@f52bf8ec8c7124536f0efb74aca902b2995e5bcd", "query: ", "passage: "),
        ("e5", "query: ", "passage: "),
        ("models/e5_large", "query: ", "passage: "),
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("BAAI/bge-base-en-v1.5", BGE, ""),
        ("BAAI/bge-m3", "", ""),
        ("sentence-transformers/all-MiniLM-L6-v2", "", ""),
        (MODEL, "", ""),
        ("someone/page5-encoder", "", ""),  # "e5" within another word is not an e5
    ],
)
def test_prefix_follows_from_the_name(tmp_path, name, query, passage):
    assert prefixes_of(name, tmp_path)[1:] == (query, passage)


def test_instruct_model_gets_its_instruction(tmp_path):
    family, query, passage = prefixes_of("intfloat/multilingual-e5-large-instruct", tmp_path)
    assert family == "e5-instruct" and query.startswith("Instruct: ") and passage == ""


def test_renamed_copy_is_recognised_by_card_or_config(tmp_path):
    (tmp_path / "README.md").write_text("---\nmodel-index:\n- name: e5-base-v2\n---\n")
    assert prefixes_of(str(tmp_path), tmp_path)[0] == "e5"
    (tmp_path / "README.md").unlink()
    (tmp_path / "config.json").write_text('{"_name_or_path": "/data/e5-base-v2/"}')
    assert prefixes_of(str(tmp_path), tmp_path)[0] == "e5"


def test_declared_prompts_come_first(tmp_path):
    prompts = {"prompts": {"query": "Q: ", "document": "D: "}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert prefixes_of("intfloat/e5-base-v2", tmp_path) == ("declared", "Q: ", "D: ")


def test_unknown_family_is_said(tmp_path, caplog):
    assert prefixes_of("someone/encoder", tmp_path) == ("unknown", "", "")
    assert "someone/encoder" in caplog.text and "prompts" in caplog.text


def test_prefix_reaches_the_model(encoder, monkeypatch):
    from dataclasses import replace

    identity = replace(encoder.identity, query_prefix="query: ", passage_prefix="passage: ")
    # Of one kind each: on a CPU only queries are padded, and some CPUs round otherwise then.
    query, passage = encoder.queries(["query: a river"]), encoder.passages(["passage: a river"])
    monkeypatch.setattr(encoder, "identity", identity)
    assert (encoder.queries(["a river"]) == query).all()
    assert (encoder.passages(["a river"]) == passage).all()


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("bundled:no-such-model", "not installed"),
        ("bundled:json", "carries no model"),
        ("/no/such/folder", "nor an existing folder"),
        ("one name", "nor an existing folder"),
        ("hub:nobody/nothing", r"embedding\.revision: found None"),
        ("nobody/nothing@main", r"embedding\.revision: found 'main'"),
        (f"hub:nobody/nothing@{'a' * 40}", "not found on the hub or in its local cache"),
    ],
)
def test_absent_model(setting, says, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=says) as raised:
        locate_model(setting)
    assert re.search(r"embedding\.(model|revision): ", str(raised.value))


def test_folder_that_is_no_model(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        locate_model(str(tmp_path))


def test_truncated_weights(tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(locate_model(MODEL), folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 1000)
    with pytest.raises(IntegrityError, match="could not be loaded"):
        Encoder(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no weights"):
        Encoder(str(folder))


def test_max_length_above_the_model(monkeypatch):
    with pytest.raises(ConfigError, match=r"embedding\.max_length: 9999 is above the 256"):
        Encoder(MODEL, max_length=9999)


def test_difference_names_fields(encoder):
    same = encoder.identity.as_dict()
    assert ModelIdentity.difference(same, same | {"name": "elsewhere"}) == ""
    said = ModelIdentity.difference(same | {"query_prefix": "query: "}, same)
    assert said == "query_prefix 'query: ' instead of ''"
