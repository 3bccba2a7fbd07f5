"""Which questions are asked."""

from pathlib import Path

import pytest

from glimmer.assets import Question, read_questions
from glimmer.config import load, validate
from glimmer.errors import ConfigError, DataError
from glimmer.files import write_jsonl
from glimmer.heldout.questions import choose, read_ids, write_chosen


def made(count, dataset=None):
    return [
        Question(f"{dataset or 'q'}{i}", f"Who {i}?", ["x"], None, dataset) for i in range(count)
    ]


def test_the_draw_is_seeded_without_repeats_and_in_file_order():
    questions = made(50)
    first = [q.id for q in choose(questions, count=20, seed=1)]
    assert first == [q.id for q in choose(questions, count=20, seed=1)]
    assert first != [q.id for q in choose(questions, count=20, seed=2)]
    numbers = [int(i[1:]) for i in first]
    assert numbers == sorted(set(numbers)) and len(numbers) == 20
    assert choose(questions, count=50, seed=0) == choose(questions, count=None, seed=0) == questions


def test_more_questions_than_there_are():
    with pytest.raises(ConfigError, match=r"evaluation\.questions: 51 asked for, f has 50"):
        choose(made(50), count=51, seed=0, label="f")


def test_so_many_of_each_data_set():
    questions = [*made(30, "nq"), *made(5, "bamboogle"), *made(40, "hotpotqa")]
    chosen = choose(questions, count=10, seed=0)
    counts = {
        name: sum(q.dataset == name for q in chosen) for name in ("nq", "bamboogle", "hotpotqa")
    }
    assert counts == {"nq": 10, "bamboogle": 5, "hotpotqa": 10}
    assert chosen == [q for q in questions if q in chosen]
    only = choose(questions, count=10, seed=0, datasets=["hotpotqa"])
    assert only == [q for q in chosen if q.dataset == "hotpotqa"]
    with pytest.raises(
        ConfigError, match=r"datasets: found popqa, expected some of bamboogle, hot"
    ):
        choose(questions, count=1, seed=0, datasets=["popqa"])


def test_an_id_list_decides_and_its_order_does_not(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("q7\n\n q3 \nq5\n")
    ids = read_ids(path)
    assert ids == ["q7", "q3", "q5"]
    assert [q.id for q in choose(made(9), count=None, seed=0, ids=ids)] == ["q3", "q5", "q7"]
    assert len(choose(made(9), count=2, seed=0, ids=ids)) == 2
    with pytest.raises(
        ConfigError, match=r"evaluation\.ids: 2 of 3 ids are not in .* first is 'q7'"
    ):
        choose(made(4), count=None, seed=0, ids=ids)


@pytest.mark.parametrize(("text", "message"), [("\n", "found no id"), ("a\nb\na\n", "'a' 2 times")])
def test_a_wrong_id_list(tmp_path, text, message):
    path = tmp_path / "ids.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_ids(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ids(tmp_path / "none.txt")


def test_the_shipped_question_set_is_a_valid_setting():
    root = Path(__file__).parents[2] / "config"
    loaded = load(root / "config.yaml", root / "hotpotqa.yaml")
    assert loaded["evaluation"]["datasets"] == ["hotpotqa"]
    assert loaded["evaluation"]["questions"] == 200
    with pytest.raises(ConfigError, match=r"evaluation\.samples: found 4 with .*temperature 0"):
        validate(loaded | {"evaluation": loaded["evaluation"] | {"samples": 4}})


def test_the_list_is_a_file_that_reads_back(tmp_path):
    questions = [Question("a", "Who?", ["x", "y"], "t", "nq", 2), Question("b", "Où?", ["z"])]
    write_jsonl(tmp_path / "all.jsonl", [q.row() for q in questions])
    out = tmp_path / "chosen.jsonl"
    write_chosen(tmp_path / "all.jsonl", out, count=None, seed=0)
    assert read_questions(out) == questions
