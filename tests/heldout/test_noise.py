"""The noise floor and pass@k against definitions, enumeration and simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimmer.errors import DataError, IntegrityError
from glimmer.files import write_jsonl
from glimmer.heldout.noise import noise_floor, pass_noise, read_repeats
from glimmer.heldout.samples import pass_at, pass_rates, resampling_variance


def row(i, right, number=None, same=True):
    made = {"id": f"q{i}", "outcome": "correct" if right else "wrong", "same_tokens": same}
    made["scores"] = {"exact_match": int(right), "f1": float(right), "contains": int(right)}
    return made if number is None else made | {"pass": number}


def side(*answers):
    """Noise of passes given as lists of right (1) and wrong (0)."""
    first = {f"q{i}": row(i, right) for i, right in enumerate(answers[0])}
    passes = {
        number: {f"q{i}": row(i, right, number) for i, right in enumerate(rights)}
        for number, rights in enumerate(answers[1:], start=1)
    }
    return pass_noise(first, passes, where="f")


def test_counts_by_hand():
    found = side([1, 1, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 0, 1, 1])
    assert found["passes"] == 3 and found["questions"] == 5
    assert found["correct"] == [3, 3, 4] and found["changed"] == 2
    # F1 is 0 or 1 here
    assert found["f1_pair_square"] == found["contains_pair_square"] == found["pair_rate"]
    # Pairs differ in 2, 1 and 1 questions.
    assert found["pair_rate"] == pytest.approx(4 / 3 / 5)
    assert found["pair_rate"] <= found["pair_rate_at_most"] <= 2 / 3


@given(st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=2, max_size=5))
def test_the_bound_holds_whatever_the_passes_gave(answers):
    found = side(*answers)
    assert 0 <= found["pair_rate"] <= found["pair_rate_at_most"] + 1e-12
    assert found["changed"] == 0 or found["pair_rate"] > 0


def test_the_floor_is_that_of_repeated_evaluations():
    """Weights that answer each question right with a chance of its own, evaluated again and again:
    95 % of after − before differences between equal weights lie within the floor."""
    rng = np.random.default_rng(0)
    chances = rng.choice([0.0, 0.5, 0.9, 1.0], 400, p=[0.4, 0.1, 0.1, 0.4])
    draws = rng.random((2, 4000, 400)) < chances
    differences = draws[0].sum(1) - draws[1].sum(1)
    many = (rng.random((12, 400)) < chances).astype(int).tolist()
    floor = noise_floor(side(*many), side(*many), questions=400, difference=0.0)
    assert floor["questions"] == pytest.approx(1.96 * differences.std(), rel=0.1)
    assert 0.93 < np.mean(np.abs(differences) <= floor["questions"]) < 0.975


def test_effect_against_the_floor():
    quiet, loud = side([1, 0, 1], [1, 0, 1]), side([1, 0, 1], [1, 1, 0])
    none = noise_floor(quiet, quiet, questions=300, difference=0.01)
    assert none["questions"] == 0 and none["ratio"] is None and none["above"]
    assert none["at_most"] > 0
    some = noise_floor(quiet, loud, questions=300, difference=-0.05)
    assert some["questions"] == pytest.approx(1.959964 * math.sqrt(300 * (2 / 3) / 2))
    assert some["ratio"] == pytest.approx(15 / some["questions"]) and not some["above"]
    assert noise_floor(None, None, questions=3, difference=0.0) is None


def test_means_have_floors_where_every_line_has_the_score():
    rows = [[row(i, right, number) for i, right in enumerate([1, 0, 1])] for number in (1, 2)]
    first = {r["id"]: r for r in (row(i, 1) for i in range(3))}
    for made in (*first.values(), *rows[0], *rows[1]):
        del made["scores"]["contains"]
    rows[0][0]["scores"]["f1"] = 0.5  # where the others have 1
    passes = {number: {r["id"]: r for r in made} for number, made in enumerate(rows, start=1)}
    found = pass_noise(first, passes, where="f")
    assert found["contains_pair_square"] is None
    # Of three pairs of passes: question 0 differs by 0.5 in two, question 1 by 1 in two.
    assert found["f1_pair_square"] == pytest.approx((2 * 0.25 + 2 * 1) / 3 / 3)
    floor = noise_floor(found, found, questions=100, difference=0.1)
    assert floor["contains_difference"] is None
    assert floor["f1_difference"] == pytest.approx(
        1.959964 * math.sqrt(found["f1_pair_square"] / 100)
    )


def test_wrong_files_are_named(tmp_path):
    path = tmp_path / "r.jsonl"
    for rows, message in (
        ([{"id": "q0"}], "line 1: expected a question of a repeated pass"),
        ([row(0, 1, 1) | {"scores": {"exact_match": 0.5}}], "scores"),
        ([row(0, 1, 1), row(0, 1, 1)], "line 2: .* second time in pass 1"),
    ):
        write_jsonl(path, rows)
        with pytest.raises(DataError, match=message):
            read_repeats(path)
    write_jsonl(path, [row(0, 1, 1), row(1, 1, 2)])
    with pytest.raises(IntegrityError, match="pass 2 holds other questions"):
        pass_noise({"q0": row(0, 1), "q1": row(1, 1)}, read_repeats(path), where=str(path))
    path.write_text("")
    assert read_repeats(path) == {}


@given(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(case):
    n, correct, k = case
    right = [1] * correct + [0] * (n - correct)
    subsets = list(itertools.combinations(right, k))
    assert pass_at(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(0)
    right = rng.binomial(5, 0.3, 40_000)
    for k in (1, 2, 5):
        mean = np.mean([pass_at(5, int(c), k) for c in right])
        assert mean == pytest.approx(1 - 0.7**k, abs=0.006)
    with pytest.raises(ValueError, match="expected 1 to 5"):
        pass_at(5, 1, 6)


@pytest.mark.parametrize(("n", "k"), [(4, 1), (6, 1), (6, 2), (8, 4)])
def test_resampling_variance_is_what_sampling_again_moves(n, k):
    """Weights sampled again and again: the jackknife's mean is the variance of the estimate for
    k = 1, whose textbook form it is, and for more never below it (Efron and Stein 1981)."""
    rng = np.random.default_rng(n * 10 + k)
    chances = (0.1, 0.4, 0.8)
    for chance in chances:
        right = rng.binomial(n, chance, 20_000)
        estimates = np.array([pass_at(n, int(c), k) for c in right])
        told = np.mean([resampling_variance(n, int(c), k) for c in right])
        assert 0.93 * estimates.var() < told
        assert k > 1 or told < 1.07 * estimates.var()
    for c in range(n + 1):
        assert resampling_variance(n, c, 1) == pytest.approx(c * (n - c) / (n**2 * (n - 1)))
    with pytest.raises(ValueError, match=f"expected 1 to {n - 1}"):
        resampling_variance(n, 1, n)


def test_the_floor_of_pass_at_k_is_that_of_sampling_again():
    rng = np.random.default_rng(0)
    n, questions = 5, 60
    chances = rng.beta(0.5, 0.5, questions)

    def sampled():
        right = (rng.random((questions, n)) < chances[:, None]).astype(int)
        return {
            f"q{i}": row(i, int(first)) | {"samples": [row(i, int(x)) for x in others]}
            for i, (first, *others) in enumerate(right)
        }

    ids = [f"q{i}" for i in range(questions)]
    pairs = [
        pass_rates(sampled(), sampled(), ids, seed=0, resamples=1)["pass_at"] for _ in range(300)
    ]
    assert all(found["5"]["noise"] is None for found in pairs)
    for k in ("1", "2"):
        inside = np.mean([abs(f[k]["difference"]["mean"]) <= f[k]["noise"] for f in pairs])
        assert 0.9 < inside < (0.99 if k == "1" else 1.0)  # standard error of 95 %: 1.3 %


def test_differing_numbers_of_samples_are_refused():
    one, two = row(0, 1), row(0, 1) | {"samples": [row(0, 0)]}
    with pytest.raises(IntegrityError, match=r"hold \[1, 2\] samples a question"):
        pass_rates({"q0": one}, {"q0": two}, ["q0"], seed=0, resamples=10)
    assert pass_rates({"q0": one}, {"q0": one}, ["q0"], seed=0, resamples=10) is None
