"""The statistics against statsmodels, an implementation that shares no code with ours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint, proportions_ztest

from glimmer.heldout import compare
from glimmer.heldout.statistics import exact_power, holm, mcnemar_midp, mcnemar_p, rate
from tests.heldout.records import record, write

COUNTS = st.integers(0, 400)


@given(COUNTS, COUNTS)
def test_mcnemar_exact(gained, lost):
    theirs = mcnemar([[0, lost], [gained, 0]], exact=True).pvalue if gained + lost else 1.0
    assert mcnemar_p(gained, lost) == pytest.approx(theirs, rel=1e-9)


@given(st.integers(1, 300), st.data())
def test_wilson(trials, data):
    right = data.draw(st.integers(0, trials))
    low, high = proportion_confint(right, trials, method="wilson")
    assert rate(right, trials)["ci95"] == pytest.approx([low, high], abs=1e-9)


def test_holm():
    rng = np.random.default_rng(0)
    for count in (1, 2, 5, 12):
        values = list(rng.random(count) ** 3)
        assert holm(values) == pytest.approx(multipletests(values, method="holm")[1], abs=1e-12)


def test_midp_lies_between_the_exact_test_and_the_one_without_continuity_correction():
    """For many pairs all three meet; the mid-p is never above the exact p."""
    for gained, lost in ((59, 7), (120, 90), (30, 20), (400, 360)):
        plain = mcnemar([[0, lost], [gained, 0]], exact=False, correction=False).pvalue
        assert mcnemar_midp(gained, lost) < mcnemar_p(gained, lost)
        assert mcnemar_midp(gained, lost) == pytest.approx(plain, rel=0.25, abs=1e-9)


def test_power_by_their_test():
    rng = np.random.default_rng(1)
    draws = rng.multinomial(120, [0.2, 0.08, 0.72], 3000)
    found = np.mean(
        [g > n and mcnemar([[0, n], [g, 0]], exact=True).pvalue < 0.05 for g, n, _ in draws]
    )
    assert exact_power(120, 0.28, 0.12) == pytest.approx(found, abs=0.03)


def test_an_unpaired_test_would_miss_what_pairing_shows(tmp_path):
    """Fault 29: 100 → 114 of 200 with none lost. Taken for two samples of 200 questions each the
    gain is noise; the same questions asked twice show it."""
    before = [record(f"q{i}", "correct" if i < 100 else "wrong") for i in range(200)]
    after = [record(f"q{i}", "correct" if i < 114 else "wrong") for i in range(200)]
    found = compare(
        write(tmp_path / "a.jsonl", before),
        write(tmp_path / "b.jsonl", after),
        seed=0,
        resamples=2000,
    )
    unpaired = proportions_ztest([100, 114], [200, 200])[1]
    assert unpaired > 0.15
    assert found["measured"]["mcnemar_p"] == pytest.approx(2 / 2**14) and found["passed"]
    low, high = found["measured"]["difference"]["ci95"]
    assert low > 0.03
    # The interval of two independent samples would be three times as wide.
    half = 1.96 * np.sqrt(0.5 * 0.5 / 200 + 0.57 * 0.43 / 200)
    assert 2 * half > 2.5 * (high - low)
