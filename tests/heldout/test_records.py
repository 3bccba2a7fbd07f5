"""Record files in the hands of other programs."""

import pytest

from glimmer.errors import DataError
from glimmer.files import write_jsonl
from glimmer.heldout.records import read_records
from tests.heldout.pages import Case
from tests.heldout.records import record


def test_datasets_loads_them(tmp_path):
    """Also where one call could not be parsed and another rollout has no turn."""
    from datasets import load_dataset

    rows = Case(tmp_path / "run", questions=8, gained=2, lost=1, both=2).before
    rows[1]["turns"][0]["tool_calls"][0]["arguments"] = '{"query": broken'
    rows[2] |= {"turns": [], "outcome": "crashed"}
    path = tmp_path / "before.jsonl"
    write_jsonl(path, rows)
    loaded = load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert [row["id"] for row in loaded] == list(read_records(path))
    assert loaded[1]["turns"][0]["completion_ids"] == rows[1]["turns"][0]["completion_ids"]
    assert loaded[2]["turns"] == []


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ("x", "found samples x"),
        ([{"outcome": "fine"}], "found outcome 'fine'"),
        ([{"outcome": "wrong", "scores": {"exact_match": 2, "f1": 0, "contains": 0}}], "not all"),
    ],
)
def test_wrong_samples_are_named(tmp_path, samples, message):
    path = tmp_path / "before.jsonl"
    write_jsonl(path, [record("q0") | {"samples": samples}])
    with pytest.raises(DataError, match=message):
        read_records(path)
