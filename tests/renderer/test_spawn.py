"""A worker of another process finds the renderer by name, without importing a recipe."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import subprocess
import sys

import pytest
from renderers import CustomRendererConfig, config_from_name, create_renderer

from glimmer.renderer import MuseGlimmerRenderer
from glimmer.renderer.titan import IMPORT_PATH, titan_config
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import KNOBS, TO_SEARCH, block, make_renderer, user

WORKER = """
import json, sys
from renderers import CustomRendererConfig, create_renderer
from transformers import AutoTokenizer
path, folder, fields = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
renderer = create_renderer(tokenizer, CustomRendererConfig(import_path=path, **fields))
messages = [{"role": "user", "content": "Hi"}]
ids = renderer.render_ids(messages, add_generation_prompt=True)
recipes = [name for name in sys.modules if name.startswith("glimmer.search_r1")]
print(json.dumps({"ids": ids, "class": type(renderer).__name__, "recipes": recipes}))
"""


def build_in_worker(pickled, folder, completion):
    """Runs in a spawned process, which imports this module's helpers but builds from the pickle."""
    renderer = pickle.loads(pickled).build(tokenizer_path=str(folder))
    (call,) = renderer.parse_response(completion).tool_calls
    return renderer.render_ids([user()], add_generation_prompt=True), call.arguments


def test_by_the_librarys_path_for_custom_renderers(checkpoint, renderer):
    done = subprocess.run(
        [sys.executable, "-c", WORKER, IMPORT_PATH, str(checkpoint), json.dumps(KNOBS)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "ids": renderer.render_ids([user()], add_generation_prompt=True),
        "class": "MuseGlimmerRenderer",
        "recipes": [],
    }


def test_by_torchtitans_config_in_a_spawned_process(checkpoint, renderer, tokenizer):
    """Schemas travel with the config: the parser in the worker types by them."""
    tool = {
        "name": "search",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    }
    config = titan_config(make_renderer(tokenizer, [tool]).config)
    completion = tokenizer.encode(f"{TO_SEARCH}{block('7', key='n')}<|eot|>")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        ids, arguments = pool.apply(build_in_worker, (pickle.dumps(config), checkpoint, completion))
    assert ids == renderer.render_ids([user()], add_generation_prompt=True)
    assert arguments == {"n": 7}


def test_the_pickle_names_no_recipe(tokenizer):
    data = pickle.dumps(titan_config(make_renderer(tokenizer, [SEARCH_TOOL]).config))
    assert b"search_r1" not in data
    code = (
        "import pickle, sys; pickle.loads(sys.stdin.buffer.read());"
        "print([m for m in sys.modules if m.startswith('glimmer.search_r1')])"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.split() == [b"[]"]


def test_settings_survive_torchtitans_config(checkpoint, tokenizer):
    config = make_renderer(
        tokenizer, [SEARCH_TOOL], attribution="sampled", retain_reasoning_in_history=False
    ).config
    built = titan_config(config).build(tokenizer_path=str(checkpoint))
    assert isinstance(built, MuseGlimmerRenderer) and built.config == config


def test_no_name_of_the_library_is_taken():
    """Nothing is registered there: a library that ships such a renderer meets no other."""
    with pytest.raises(ValueError, match="muse-glimmer-native"):
        config_from_name("muse-glimmer-native")


def test_a_wrong_setting_is_refused_by_name(tokenizer):
    with pytest.raises(ValueError, match="curent_date"):
        create_renderer(
            tokenizer, CustomRendererConfig(import_path=IMPORT_PATH, curent_date="2026-08-14")
        )
