"""Held-out questions by step, by hand."""

import pytest

from glimmer.errors import IntegrityError
from glimmer.heldout.curve import heldout_curve
from glimmer.heldout.statistics import mcnemar_p, rate
from tests.heldout.records import record, write


def answers(tmp_path, name, right):
    rows = [record(f"q{i}", "correct" if i in right else "wrong") for i in range(40)]
    return write(tmp_path / f"{name}.jsonl", rows)


def test_points_by_hand(tmp_path):
    before = answers(tmp_path, "before", range(10))
    later = {
        20: answers(tmp_path, "last", range(30)),
        10: answers(tmp_path, "on the way", range(4, 20)),
    }
    start, way, last = heldout_curve(before, later, seed=0, resamples=500)["points"]
    assert (start["step"], start["correct"], start["questions"]) == (0, 10, 40)
    assert start["ci95"] == rate(10, 40)["ci95"] and "difference" not in start
    assert (way["step"], way["correct"], way["gained"], way["lost"]) == (10, 16, 10, 4)
    assert way["exact_match"] == 0.4 and way["difference"]["mean"] == pytest.approx(0.15)
    assert way["mcnemar_p"] == mcnemar_p(10, 4)
    assert (last["step"], last["gained"], last["lost"]) == (20, 20, 0)
    # Two steps were looked at: the smaller p is doubled, the other stays.
    assert last["holm_p"] == pytest.approx(2 * mcnemar_p(20, 0))
    assert way["holm_p"] == way["mcnemar_p"]


def test_other_questions_are_refused(tmp_path):
    before = answers(tmp_path, "before", ())
    rows = [record(f"q{i}") for i in range(39)]
    with pytest.raises(IntegrityError, match="1 questions of 40 are missing"):
        heldout_curve(before, {5: write(tmp_path / "x.jsonl", rows)}, seed=0, resamples=9)
    rows.append(record("q39", hashes={"question": "q-q39", "settings": "t", "prompt": "p-q39"}))
    with pytest.raises(IntegrityError, match="'q39' in evaluation, search or renderer settings"):
        heldout_curve(before, {5: write(tmp_path / "x.jsonl", rows)}, seed=0, resamples=9)
