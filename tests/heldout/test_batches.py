"""Batches of the passes, and what an interrupted evaluation leaves."""

import json
from dataclasses import replace

import pytest

from glimmer.assets import Question
from glimmer.heldout.batches import finished, first_pass, repeated_passes


@pytest.fixture
def questions():
    return [Question(f"q{i}", f"Who {i}?", ["x"]) for i in range(30)]


def test_passes_have_the_same_questions_in_other_batches(questions):
    settings = {"batch": 8, "samples": 3, "seed": 4, "repeats": 3, "repeat_questions": 20}
    batches = repeated_passes(questions, settings)
    asked = {n: [q.id for b in batches if b.number == n for q in b.questions] for n in (1, 2)}
    assert sorted(asked[1]) == sorted(asked[2]) and len(set(asked[1])) == 20
    assert asked[1] != asked[2]
    assert {len(b.questions) for b in batches if b.number == 1} == {4}
    assert max(len(b.questions) for b in batches if b.number == 2) == 2
    assert repeated_passes(questions, settings) == batches
    assert repeated_passes(questions, settings | {"repeats": 1}) == []
    every = repeated_passes(questions, settings | {"repeat_questions": None})
    assert len([q for b in every if b.number == 1 for q in b.questions]) == 30
    first = first_pass(questions, settings)
    assert [q for b in first for q in b.questions] == questions
    assert [b.group for b in first] == [0, 8, 16, 24]
    # Random numbers of its own for each pass, where the temperature asks for any.
    assert len({b.seed for b in [*first, *batches]}) == 3
    assert replace(batches[0], number=0) != batches[0]


def part_file(tmp_path, identity, rows, tail=""):
    path = tmp_path / ".before.jsonl.part"
    lines = [{"identity": identity}, *({"id": i} for i in range(rows))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return path


@pytest.mark.parametrize(
    ("rows", "tail", "kept"),
    [(0, "", 0), (4, "", 4), (5, "", 4), (4, '{"id": 4, "que', 4), (3, "", 0), (7, "", 7)],
)
def test_whole_batches_of_an_interrupted_run_are_kept(tmp_path, rows, tail, kept):
    path = part_file(tmp_path, "a", rows, tail)
    assert len(finished(path, "a", sizes=[4, 3])) == kept
    assert len(path.read_text().splitlines()) == kept + 1  # the file is cut back to them
    assert len(finished(path, "a", sizes=[4, 3])) == kept


@pytest.mark.parametrize("text", ["", "not json\n", '{"ident', '{"identity": "b"}\n{"id": 0}\n'])
def test_a_part_of_something_else_is_begun_anew(tmp_path, text):
    path = tmp_path / ".before.jsonl.part"
    path.write_text(text)
    assert finished(path, "a", sizes=[1]) == []
    assert path.read_text() == '{"identity": "a"}\n'
