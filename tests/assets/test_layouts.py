"""Question files of Search-R1 (Parquet) and FlashRAG (JSONL), made small."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from glimmer.assets import fetch_questions, read_questions
from glimmer.assets.layouts import own_row, to_own_layout
from glimmer.errors import DataError


def searchr1(index: int, dataset: str, question: str, metadata=None, answers=("A",)) -> dict:
    """A row as Search-R1's processing writes it."""
    return {
        "id": f"test_{index}",
        "question": question,
        "golden_answers": list(answers),
        "data_source": dataset,
        "prompt": [{"role": "user", "content": f"Answer ... Question: {question}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(answers)}},
        "extra_info": {"index": index, "split": "test"},
        "metadata": metadata,
    }


HOTPOT = {
    "type": "bridge",
    "level": "hard",
    "supporting_facts": {"title": ["One", "Two", "One"], "sent_id": [0, 1, 2]},
    "context": {"title": ["One"], "sentences": [["long"]]},
}
ROWS = [
    searchr1(0, "nq", "Who?", answers=("A", "B")),
    searchr1(0, "hotpotqa", "Which?", HOTPOT),
    searchr1(1, "hotpotqa", "Both?", HOTPOT | {"type": "comparison"}),
]


def write_parquet(path: Path, rows: list[dict]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_a_parquet_file_of_several_sets(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "test.jsonl", ROWS)
    to_own_layout(path, "test.parquet")
    found = read_questions(path)
    assert [q.id for q in found] == ["nq/test_0", "hotpotqa/test_0", "hotpotqa/test_1"]
    assert [q.dataset for q in found] == ["nq", "hotpotqa", "hotpotqa"]
    assert [q.type for q in found] == [None, "bridge", "comparison"]
    assert [q.hops for q in found] == [None, 2, 2]
    assert found[0].golden_answers == ["A", "B"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": 7, "question": "?", "golden_answers": "A"}, {"id": "7", "golden_answers": ["A"]}),
        ({"reward_model": {"ground_truth": {"target": ["A"]}}}, {"golden_answers": ["A"]}),
        ({"id": "3hop1__1_2"}, {"id": "3hop1__1_2", "hops": 3}),
        ({"id": "d", "metadata": {"id": "2hop__1_2"}}, {"id": "d", "hops": 2}),
        ({"metadata": {"question_decomposition": [{}, {}, {}, {}]}}, {"hops": 4}),
        ({"metadata": {"supporting_facts": [{"title": "a"}, {"title": "b"}]}}, {"hops": 2}),
        ({"metadata": {"supporting_facts": [["a", 0], ["a", 1]]}}, {"hops": 1}),
        ({"metadata": None, "type": "t"}, {"type": "t"}),
        ({"metadata": {"type": None, "supporting_facts": None}}, {}),
    ],
)  # fmt: skip
def test_one_row(row: dict, expected: dict) -> None:
    found = own_row(row)
    assert expected.items() <= found.items()
    assert set(found) <= {*expected, "question"}


def test_a_blank_answer_beside_others_is_left_out_and_alone_is_left_to_be_refused() -> None:
    assert own_row({"id": 1, "golden_answers": ["", "Rome", " "]})["golden_answers"] == ["Rome"]
    assert own_row({"id": 1, "golden_answers": [""]})["golden_answers"] == [""]
    assert own_row({"id": 1, "golden_answers": [7, ""]})["golden_answers"] == [7]


def test_jsonl_of_flashrag_is_rewritten_and_ones_own_is_left(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    row = {"id": "dev_0", "question": "Which?", "golden_answers": ["A"], "metadata": HOTPOT}
    path.write_text(json.dumps(row) + "\n")
    to_own_layout(path, "dev.jsonl")
    assert json.loads(path.read_text()) == {
        "id": "dev_0", "question": "Which?", "golden_answers": ["A"], "type": "bridge", "hops": 2,
    }  # fmt: skip
    before = path.read_bytes()
    to_own_layout(path, "dev.jsonl")
    assert path.read_bytes() == before


def test_damaged_and_foreign_parquet_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x\.parquet: found Parquet that cannot be read"):
        to_own_layout(path, "x.parquet")
    write_parquet(path, [{"text": "a", "n": 1}])
    with pytest.raises(DataError, match="found the columns n, text, expected 'question'"):
        to_own_layout(path, "x.parquet")


def test_fetched_from_a_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_parquet(source / "test.parquet", ROWS)
    train = [searchr1(i, "nq", text) for i, text in enumerate(["Else?", "who"])]
    write_parquet(source / "train.parquet", train)
    names = {"train": "train.parquet", "heldout": "test.parquet"}
    with pytest.raises(DataError, match=r"'nq/test_0' is 'nq/test_1'.*questions\.overlap"):
        fetch_questions(str(source), tmp_path / "out", **names)
    manifest = fetch_questions(str(source), tmp_path / "out", **names, overlap="keep")
    assert manifest["files"]["heldout.jsonl"]["source_file"] == "test.parquet"
    assert len(read_questions(tmp_path / "out/heldout.jsonl")) == 3
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "heldout.jsonl", "manifest.json", "train.jsonl",
    ]  # fmt: skip
