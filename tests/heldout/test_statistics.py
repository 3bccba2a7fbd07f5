"""Corrections, power and rates against published examples, definitions and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, false_discovery_control

from glimmer.heldout.statistics import (
    _critical,
    detectable_difference,
    exact_power,
    holm,
    mcnemar_midp,
    mcnemar_p,
    paired_difference,
    power,
    rate,
)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == [] and holm([0.04]) == [0.04]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_raw_p_and_bonferroni(values):
    corrected = holm(values)
    for raw, p in zip(values, corrected, strict=True):
        assert raw <= p <= min(1.0, len(values) * raw) + 1e-12
    assert np.argsort(values, kind="stable").tolist() == sorted(
        range(len(values)), key=lambda i: (corrected[i], values[i], i)
    )
    # Benjamini and Hochberg's, which allows more, is never larger.
    assert np.all(false_discovery_control(values) <= np.array(corrected) + 1e-12)


def test_midp_is_the_published_one():
    """Fagerland et al. 2013, airway hyper-responsiveness: 1 against 7 discordant pairs."""
    assert mcnemar_p(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert mcnemar_midp(1, 7) == pytest.approx(0.0391, abs=5e-5)
    assert mcnemar_midp(3, 3) == 1.0 and mcnemar_midp(0, 0) == 1.0


def test_rates():
    assert rate(0, 0) == {"rate": None, "ci95": None}
    # Wilson 1927, by its formula.
    z, n, p = 1.959964, 20, 0.25
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert rate(5, 20)["ci95"] == pytest.approx([centre - half, centre + half], abs=1e-6)


def test_critical_counts_are_those_of_the_test():
    for pairs in range(120):
        fits = [k for k in range(pairs // 2 + 1) if mcnemar_p(pairs - k, k) < 0.05]
        assert _critical(np.array([pairs]))[0] == max(fits, default=-1)


def test_power_against_simulation():
    rng = np.random.default_rng(0)
    questions, share, difference, rounds = 200, 0.33, 0.117, 20_000
    pairs = rng.binomial(questions, share, rounds)
    gained = rng.binomial(pairs, (1 + difference / share) / 2)
    shown = (gained > pairs - gained) & (
        2 * binom.cdf(np.minimum(gained, pairs - gained), pairs, 0.5) < 0.05
    )
    assert exact_power(questions, share, difference) == pytest.approx(shown.mean(), abs=0.01)


@pytest.mark.parametrize(("questions", "share"), [(200, 0.33), (400, 0.1), (7405, 0.27)])
def test_the_detectable_difference_is_near_connors(questions, share):
    """Connor 1987's sample size for this difference; the exact test needs somewhat more."""
    found = detectable_difference(questions, share)
    z = 1.959964 * math.sqrt(share) + 0.841621 * math.sqrt(share - found**2)
    assert 0.85 * questions < (z / found) ** 2 <= questions
    assert exact_power(questions, share, found) >= 0.8 > exact_power(questions, share, found - 1e-3)


def test_what_cannot_be_shown():
    assert power(4, 0)["detectable_difference"] is None
    assert power(200, 5)["significant_difference"] is None  # 5 to 0: p = 0.0625
    assert power(200, 6)["significant_difference"] == pytest.approx(0.03)
    # 66 discordant pairs: 24 lost are still significant, 25 are not.
    assert power(200, 66)["significant_difference"] == pytest.approx((66 - 48) / 200)
    assert mcnemar_p(42, 24) < 0.05 < mcnemar_p(41, 25)


def test_simulated_null_and_effect():
    """300 rounds of each, seeded; benchmarks/paired_simulation.py does 2,000."""
    rng = np.random.default_rng(0)
    questions, rounds = 200, 300
    null = rng.multinomial(questions, [0.15, 0.15, 0.7], rounds)
    wrong = sum(mcnemar_p(int(g), int(n)) < 0.05 for g, n, _ in null)
    assert wrong <= binom.isf(0.005, rounds, 0.05)
    covered = 0
    for seed, (gained, lost, same) in enumerate(
        rng.multinomial(questions, [0.3, 0.1, 0.6], rounds)
    ):
        after = np.repeat([1.0, -1.0, 0.0], [gained, lost, same])
        found = paired_difference(np.zeros(questions), after, seed=seed, resamples=500)
        covered += found["ci95"][0] <= 0.2 <= found["ci95"][1]
    assert binom.ppf(0.005, rounds, 0.95) - 0.02 * rounds <= covered
