"""Retrieval ceiling, and scores by where the answer was found; tables of types and outcomes."""

import pytest

from glimmer.heldout import compare
from glimmer.heldout.passages import answer_found
from tests.heldout.records import record, write


def searched(name, outcome, *texts, kind="director", title="A film"):
    passages = [{"id": str(i), "title": title, "text": t} for i, t in enumerate(texts)]
    turns = [{"completion_ids": [1], "tool_results": [{"query": "q", "passages": passages}]}]
    return record(name, outcome, kind=kind, turns=turns)


@pytest.mark.parametrize(
    ("texts", "title", "found"),
    [
        (["It was directed by Ada Lum."], "A film", True),
        (["no", "it was ADA  LUM!"], "A film", True),
        (["nothing here"], "The Ada Lum", True),
        (["Ada Lumière and Adalum"], "A film", False),
        ([], "A film", False),
    ],
)
def test_answer_found(texts, title, found):
    assert answer_found(searched("q", "wrong", *texts, title=title)) is found


def test_nothing_is_found_without_turns_passages_or_texts():
    assert not answer_found(record("q", turns=[]))
    bare = [{"completion_ids": [], "tool_results": [{"query": None, "passages": None}]}]
    assert not answer_found(record("q", turns=bare))
    empty = [{"tool_results": [{"passages": [{"id": "1", "title": None, "text": None}]}]}]
    assert not answer_found(record("q", turns=empty))


def measured(tmp_path, before, after):
    pair = write(tmp_path / "before.jsonl", before), write(tmp_path / "after.jsonl", after)
    return compare(*pair, seed=0, resamples=100)["measured"]


def test_ceiling_and_accuracy_by_hand(tmp_path):
    there, absent = "by Ada Lum", "by Bo Rix"
    before = [
        searched("a", "correct", there),
        searched("b", "wrong", there),
        searched("c", "correct", absent),
        searched("d", "wrong", absent),
    ]
    after = [
        searched("a", "correct", there),
        searched("b", "correct", there),
        searched("c", "wrong", there),
        searched("d", "wrong", absent),
    ]
    found = measured(tmp_path, before, after)["retrieval"]
    assert found["before"]["ceiling"] == 0.5 and found["after"]["ceiling"] == 0.75
    assert found["before"]["accuracy_found"]["rate"] == 0.5
    assert found["before"]["accuracy_not_found"]["rate"] == 0.5
    assert found["after"]["accuracy_found"]["rate"] == pytest.approx(2 / 3)
    assert found["after"]["accuracy_not_found"]["rate"] == 0.0
    assert found["after"]["correct_found"] == 2
    groups = {
        name: (group["questions"], group["before"], group["after"])
        for name, group in found["found_in"].items()
    }
    assert groups == {"both": (2, 0.5, 1.0), "only_after": (1, 1.0, 0.0), "neither": (1, 0.0, 0.0)}
    assert found["found_in"]["both"]["gained"] == found["found_in"]["only_after"]["lost"] == 1
    assert all(group["holm_p"] == 1.0 for group in found["found_in"].values())


def test_all_found_leaves_no_rate_of_the_others(tmp_path):
    rows = [searched("a", "correct", "Ada Lum")]
    found = measured(tmp_path, rows, rows)["retrieval"]["after"]
    assert found["accuracy_not_found"] == {"rate": None, "ci95": None}


def test_types_and_outcomes_are_corrected_for_their_number(tmp_path):
    before = [record(f"a{i}", "wrong", kind="a") for i in range(6)]
    before += [record(f"b{i}", "correct", kind="b") for i in range(3)]
    after = [record(f"a{i}", "correct", kind="a") for i in range(6)]
    after += [record(f"b{i}", "truncated" if i else "correct", kind="b") for i in range(3)]
    found = measured(tmp_path, before, after)
    kinds = found["by_type"]
    assert (kinds["a"]["gained"], kinds["a"]["lost"]) == (6, 0)
    assert kinds["a"]["mcnemar_p"] == pytest.approx(2 / 64)
    assert kinds["a"]["holm_p"] == pytest.approx(4 / 64)  # two types, the smaller p twice
    assert kinds["b"]["mcnemar_p"] == kinds["b"]["holm_p"] == 0.5
    outcomes = found["by_outcome"]
    assert outcomes["wrong"]["before"] == 6 and outcomes["wrong"]["after"] == 0
    assert outcomes["wrong"]["holm_p"] == pytest.approx(3 * 2 / 64)
    assert found["power"]["discordant_rate"] == pytest.approx(8 / 9)
