"""Which questions are asked, and what of an interrupted evaluation counts."""

import json

import pytest

from glimmer.errors import ConfigError
from glimmer.heldout.evaluation import _finished, choose_questions


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "heldout.jsonl"
    rows = [{"id": f"q{i}", "question": f"Who {i}?", "golden_answers": ["x"]} for i in range(50)]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_the_draw_is_seeded_without_repeats_and_in_file_order(questions):
    first = [q.id for q in choose_questions(questions, count=20, seed=1)]
    assert first == [q.id for q in choose_questions(questions, count=20, seed=1)]
    assert first != [q.id for q in choose_questions(questions, count=20, seed=2)]
    numbers = [int(i[1:]) for i in first]
    assert numbers == sorted(set(numbers))
    assert len(choose_questions(questions, count=50, seed=0)) == 50


def test_more_questions_than_there_are(questions):
    with pytest.raises(ConfigError, match=r"evaluation\.questions: 51 asked for.* has 50"):
        choose_questions(questions, count=51, seed=0)


def part_file(tmp_path, identity, rows, tail=""):
    path = tmp_path / ".before.jsonl.part"
    lines = [{"identity": identity}, *({"id": i} for i in range(rows))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return path


@pytest.mark.parametrize(
    ("rows", "tail", "kept"),
    [(0, "", 0), (4, "", 4), (5, "", 4), (4, '{"id": 4, "que', 4), (3, "", 0), (8, "", 8)],
)
def test_whole_batches_of_an_interrupted_run_are_kept(tmp_path, rows, tail, kept):
    path = part_file(tmp_path, "a", rows, tail)
    assert len(_finished(path, "a", batch=4)) == kept
    assert len(path.read_text().splitlines()) == kept + 1  # the file is cut back to them
    assert len(_finished(path, "a", batch=4)) == kept


@pytest.mark.parametrize("text", ["", "not json\n", '{"ident', '{"identity": "b"}\n{"id": 0}\n'])
def test_a_part_of_something_else_is_begun_anew(tmp_path, text):
    path = tmp_path / ".before.jsonl.part"
    path.write_text(text)
    assert _finished(path, "a", batch=1) == []
    assert path.read_text() == '{"identity": "a"}\n'
