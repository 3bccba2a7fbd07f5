"""The paired comparison against figures worked out by hand or by another method."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from glimmer.errors import DataError, IntegrityError
from glimmer.heldout import compare
from glimmer.heldout.statistics import mcnemar_p, paired_difference
from tests.heldout.records import record, write


def files(tmp_path, before, after):
    return write(tmp_path / "before.jsonl", before), write(tmp_path / "after.jsonl", after)


def names(outcomes):
    return [record(f"q{i}", outcome) for i, outcome in enumerate(outcomes)]


def test_counts_and_tables(tmp_path):
    before = names(["correct", "correct", "wrong", "truncated", "wrong", "turn_limit"])
    after = names(["correct", "wrong", "correct", "correct", "wrong", "no_answer"])
    verdict = compare(*files(tmp_path, before, after), seed=0, resamples=500)
    found = verdict["measured"]
    assert found["table"] == {"both_right": 1, "gained": 2, "lost": 1, "both_wrong": 2}
    assert found["questions"] == 6
    assert found["before"]["correct"] == 2
    assert found["after"]["correct"] == 3
    assert found["difference"]["mean"] == pytest.approx(1 / 6)
    assert found["outcomes"]["wrong"] == {"correct": 1, "wrong": 1}
    assert sum(sum(row.values()) for row in found["outcomes"].values()) == 6
    assert verdict["details"] == {"gained": ["q2", "q3"], "lost": ["q1"]}
    assert verdict["passed"] is False  # 2 against 1 proves nothing


def test_the_reference_result(tmp_path):
    """40 -> 92 of 200 with 7 lost, rebuilt from its counts."""
    before = names(["correct"] * 40 + ["no_answer"] * 160)
    after = names(["correct"] * 33 + ["wrong"] * 7 + ["correct"] * 59 + ["wrong"] * 101)
    verdict = compare(*files(tmp_path, before, after), seed=0, resamples=10_000)
    found = verdict["measured"]
    assert found["table"] == {"both_right": 33, "gained": 59, "lost": 7, "both_wrong": 101}
    assert (found["before"]["correct"], found["after"]["correct"]) == (40, 92)
    assert f"{found['mcnemar_p']:.1e}" == "2.4e-11"
    assert found["difference"]["mean"] == pytest.approx(0.26)
    # Normal approximation: 0.26 -+ 1.96 sqrt((59 + 7) / 200 - 0.26^2) / sqrt(200).
    half = 1.96 * math.sqrt((66 / 200 - 0.26**2) / 200)
    assert found["difference"]["ci95"] == pytest.approx([0.26 - half, 0.26 + half], abs=0.006)
    assert found["difference"]["ci95"] == pytest.approx([0.19, 0.33])
    assert verdict["passed"] is True
    # Had no question been lost: p = 2 / 2^52.
    assert mcnemar_p(52, 0) == pytest.approx(2 * 0.5**52)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_twice_the_smaller_tail(gained, lost):
    n = gained + lost
    tail = 1.0 if n == 0 else 2 * binom.cdf(min(gained, lost), n, 0.5)
    assert mcnemar_p(gained, lost) == pytest.approx(min(1.0, tail))
    assert mcnemar_p(gained, lost) == mcnemar_p(lost, gained)


def test_the_interval_is_that_of_the_normal_approximation_for_many_questions():
    rng = np.random.default_rng(1)
    before = rng.integers(0, 2, 2000).astype(float)
    after = np.where(rng.random(2000) < 0.3, 1.0, before)
    found = paired_difference(before, after, seed=0, resamples=4000)
    difference = after - before
    half = 1.96 * difference.std() / math.sqrt(2000)
    assert found["ci95"] == pytest.approx(
        [difference.mean() - half, difference.mean() + half], abs=0.002
    )


def test_pairing_matters():
    """The same rates; the interval is narrower when the same questions are right."""
    before = np.array([1.0] * 50 + [0.0] * 50)
    kept = before.copy()
    kept[50:60] = 1.0
    moved = np.array([0.0] * 40 + [1.0] * 60)
    narrow = paired_difference(before, kept, seed=0, resamples=2000)
    wide = paired_difference(before, moved, seed=0, resamples=2000)
    assert narrow["mean"] == pytest.approx(wide["mean"])
    assert np.diff(narrow["ci95"]) < np.diff(wide["ci95"])


def test_the_same_seed_gives_the_same_verdict(tmp_path):
    pair = files(tmp_path, names(["wrong"] * 30), names(["correct"] * 20 + ["wrong"] * 10))
    first, again = (compare(*pair, seed=3, resamples=1500) for _ in range(2))
    assert first == again
    assert first["passed"] is True


def test_every_question_counts(tmp_path):
    """A crashed or truncated rollout is a question answered wrong, not one left out."""
    after = [*names(["correct"] * 3), record("q3", "crashed", prediction=None, turns=[])]
    verdict = compare(*files(tmp_path, names(["wrong"] * 4), after), seed=0, resamples=100)
    assert verdict["measured"]["after"]["exact_match"] == 0.75


def test_a_missing_question_is_refused(tmp_path):
    pair = files(tmp_path, names(["wrong"] * 4), names(["wrong"] * 3))
    with pytest.raises(IntegrityError, match=r"after\.jsonl: 1 questions of 4 are missing.*'q3'"):
        compare(*pair, seed=0, resamples=100)


@pytest.mark.parametrize("key", ["question", "settings", "prompt"])
def test_other_conditions_are_refused(tmp_path, key):
    after = names(["wrong"] * 4)
    after[2]["hashes"][key] = "other"
    with pytest.raises(IntegrityError, match="'q[02]'"):
        compare(*files(tmp_path, names(["wrong"] * 4), after), seed=0, resamples=100)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: expected one JSON value"),
        ("[]", "line 2: expected one record a question, found a list"),
        ('{"id": "x"}', "a record without failed_searches"),
    ],
)
def test_a_damaged_record_file_is_named(tmp_path, line, message):
    good, bad = files(tmp_path, names(["wrong"]), names(["wrong"]))
    bad.write_text(bad.read_text() + line + "\n")
    with pytest.raises(DataError, match=message):
        compare(good, bad, seed=0, resamples=100)


def test_unknown_outcomes_and_repeated_ids_are_refused(tmp_path):
    good = write(tmp_path / "good.jsonl", names(["wrong"]))
    odd = write(tmp_path / "odd.jsonl", [record("q0", "fine")])
    twice = write(tmp_path / "twice.jsonl", [record("q0"), record("q0")])
    empty = write(tmp_path / "empty.jsonl", [])
    for path, message in ((odd, "outcome 'fine'"), (twice, "second time"), (empty, "no record")):
        with pytest.raises(DataError, match=message):
            compare(good, path, seed=0, resamples=100)


@pytest.mark.parametrize(
    "wrong", [{"f1": float("nan")}, {"exact_match": 0.5}, {"contains": None}, {"f1": 1.5}]
)
def test_scores_that_are_none_are_refused(tmp_path, wrong):
    good, bad = files(tmp_path, names(["wrong"]), names(["wrong"]))
    row = record("q0", "wrong")
    row["scores"] |= wrong
    write(bad, [row])
    with pytest.raises(DataError, match=r"after\.jsonl, line 1: .*not all from 0 to 1"):
        compare(good, bad, seed=0, resamples=100)


def test_a_truncated_last_line_is_named(tmp_path):
    good, bad = files(tmp_path, names(["wrong"] * 2), names(["wrong"] * 2))
    bad.write_text(bad.read_text()[:-40])
    with pytest.raises(DataError, match=r"after\.jsonl, line 2: expected one JSON value"):
        compare(good, bad, seed=0, resamples=100)
