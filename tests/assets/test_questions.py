from __future__ import annotations

import json
from pathlib import Path

import pytest

from glimmer.assets import read_questions, validate_questions
from glimmer.assets.questions import normalize_question
from glimmer.errors import DataError


def row(identity: str = "q", question: str = "Who?", answers: object = ("A",), **more) -> dict:
    return {"id": identity, "question": question, "golden_answers": answers, **more}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def test_reads_every_field(tmp_path: Path) -> None:
    path = write(
        tmp_path / "q.jsonl",
        row("a", "Who?", ["X", "Y"], type="film.director", metadata={"any": 1}),
        row("b", "Où?"),
    )
    first, second = read_questions(path)
    assert (first.id, first.question, first.golden_answers) == ("a", "Who?", ["X", "Y"])
    assert (first.type, second.type, second.question) == ("film.director", None, "Où?")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"id": "x", "question": "Who?"}, ["'golden_answers' among them"]),
        ({"id": "x", "question": "Who?", "answer": "A"}, ["'golden_answers'", "'answer'"]),
        (row("x", answers=[]), ["found 'golden_answers': []", "at least one answer"]),
        (row("x", answers="A"), ["found 'golden_answers': 'A'", "a list"]),
        (row("x", answers=["A", " "]), ["' '", "not blank"]),
        (row("x", answers=[3]), ["'golden_answers': 3"]),
        (row("x", question=" "), ["'question': ' '"]),
        ({"id": "x", "golden_answers": ["A"]}, ["'question' among them"]),
        (row("first"), ["id 'first'", "line 1 has too"]),
        (row(""), ["'id': ''"]),
        (row("x", type=3), ["'type': 3"]),
        ("text", ["expected a JSON object"]),
    ],
)
def test_a_bad_question_is_named(tmp_path: Path, bad: object, words: list[str]) -> None:
    path = write(tmp_path / "q.jsonl", row("first"), bad)
    with pytest.raises(DataError) as caught:
        read_questions(path)
    for word in [f"{path}, line 2", *words]:
        assert word in str(caught.value)


def test_empty_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        read_questions(write(tmp_path / "q.jsonl"))


def test_counts_by_type(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", row("t", "One?"))
    heldout = write(
        tmp_path / "heldout.jsonl",
        row("t", "Two?", type="b"),
        row("h", "Three?", type="a"),
        row("i", "Four?", type="b"),
    )
    stats = validate_questions(train, heldout)
    assert (stats.train, stats.heldout, stats.types) == (1, 3, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("heldout", "how"),
    [
        ("Who directed The Long Night?", "word for word"),
        ("who directed the LONG night", "case and punctuation"),
        ("Who directed  'The Long Night' ?", "case and punctuation"),
        ("Who directed Long Night?", "case and punctuation"),
        ("Who directed The Ｌｏｎｇ Night?", "case and punctuation"),
    ],
)
def test_a_heldout_question_in_training_is_refused(tmp_path: Path, heldout: str, how: str) -> None:
    train = write(
        tmp_path / "train.jsonl", row("t0", "Else?"), row("t1", "Who directed The Long Night?")
    )
    held = write(tmp_path / "heldout.jsonl", row("h0", "New?"), row("h7", heldout))
    with pytest.raises(DataError) as caught:
        validate_questions(train, held)
    text = str(caught.value)
    assert "'h7' is 't1'" in text and how in text and "found 1 held-out" in text
    assert str(train) in text and str(held) in text


def test_many_leaks_are_counted_and_ten_named(tmp_path: Path) -> None:
    rows = [row(f"q{i}", f"Question {i}?") for i in range(25)]
    train = write(tmp_path / "train.jsonl", *rows)
    with pytest.raises(DataError, match=r"found 25 held-out.*'q9'.* and 15 more"):
        validate_questions(train, write(tmp_path / "heldout.jsonl", *rows))


def test_other_words_are_another_question(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", row("t", "Who wrote A?"), row("u", "???"))
    held = write(tmp_path / "heldout.jsonl", row("h", "Who wrote B?"), row("i", "!!!"))
    assert validate_questions(train, held).heldout == 2


def test_normalisation() -> None:
    assert normalize_question("The  Who's  'a'-list?") == "who s list"
