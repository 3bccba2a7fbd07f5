"""What is secret is told by the environment, and written nowhere."""

import json

import pytest
import yaml

from glimmer.errors import GlimmerError
from glimmer.retrieval.settings import bearer_token
from tests.workflow.copies import SECRETS


def test_no_secret_is_in_any_file_of_a_run(finished):
    files = [finished.folder / "said.txt"]
    for name in ("results", ".snakemake"):
        files += [p for p in (finished.folder / name).rglob("*") if p.is_file()]
    assert len(files) > 50
    found = [p for p in files for secret in SECRETS.values() if secret.encode() in p.read_bytes()]
    assert found == []


def test_the_secret_was_in_use(finished, monkeypatch):
    """Or the test above would say nothing: no service starts without it, and one was searched."""
    settings = yaml.safe_load((finished.folder / "mine.yaml").read_text())["retrieval"]
    monkeypatch.delenv("SEARCH_TOKEN", raising=False)
    with pytest.raises(GlimmerError, match="SEARCH_TOKEN"):
        bearer_token(settings["token_env"])
    lines = (finished.folder / "results/t/heldout/after.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert any(record["searches"] for record in records)
    assert not any(record["failed_searches"] for record in records)
