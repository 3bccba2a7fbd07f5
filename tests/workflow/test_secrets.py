"""What is secret is told by the environment, and written nowhere."""

import json

from tests.workflow.copies import SECRETS


def test_no_secret_is_in_any_file_of_a_run(finished):
    files = [finished.folder / "said.txt"]
    for name in ("results", ".snakemake"):
        files += [p for p in (finished.folder / name).rglob("*") if p.is_file()]
    assert len(files) > 50
    found = [p for p in files for secret in SECRETS.values() if secret.encode() in p.read_bytes()]
    assert found == []


def test_the_secret_was_in_use(finished):
    """Or the test above would say nothing: the service wanted the token, and was searched."""
    log = (finished.folder / "results/t/logs/evaluate-after.service.log").read_text()
    assert "token" in log, log
    lines = (finished.folder / "results/t/heldout/after.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert any(record["searches"] for record in records)
    assert not any(record["failed_searches"] for record in records)
