"""Statistics of paired right-or-wrong answers.

Sources: exact test, McNemar 1947 (binomial test on the discordant pairs); mid-p, Fagerland,
Lydersen and Laake 2013; power of the exact test, Duffy 1984; percentile bootstrap, Efron 1979;
interval of a rate, Wilson 1927; several tests at once, Holm 1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binom, binomtest

ALPHA = 0.05
POWER = 0.8
Z = 1.959964  # 97.5 % quantile of the normal distribution
_BLOCK = 1000  # resamples drawn at once


def mcnemar_p(gained: int, lost: int) -> float:
    """Two-sided exact p of `gained` against `lost` discordant pairs; 1.0 if there are none."""
    if gained + lost == 0:
        return 1.0
    return float(binomtest(gained, gained + lost, 0.5).pvalue)


def mcnemar_midp(gained: int, lost: int) -> float:
    """The exact p less the probability of the very table observed; 1.0 if both are equal.

    The exact test is conservative (its p is a sum of steps); this one's false-positive rate is
    nearer to the level that is asked for, and may exceed it a little.
    """
    if gained == lost:
        return 1.0
    return mcnemar_p(gained, lost) - float(binom.pmf(min(gained, lost), gained + lost, 0.5))


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for their number (step down), in the order given; none above 1."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        corrected[i] = largest
    return corrected


def rate(successes: int, trials: int) -> dict[str, Any]:
    """{"rate", "ci95": [low, high]} with Wilson's interval; both None if nothing was tried."""
    if trials == 0:
        return {"rate": None, "ci95": None}
    found = binomtest(successes, trials).proportion_ci(method="wilson")
    return {"rate": successes / trials, "ci95": [float(found.low), float(found.high)]}


def paired_difference(
    before: np.ndarray, after: np.ndarray, *, seed: int, resamples: int
) -> dict[str, Any]:
    """Mean of after - before over questions, with a 95 % percentile bootstrap interval.

    Args:
        before, after: scores, shape (questions,), of the same questions in the same order.

    Returns:
        {"mean", "ci95": [low, high]}.
    """
    difference = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    for start in range(0, resamples, _BLOCK):
        rows = min(_BLOCK, resamples - start)
        drawn = generator.integers(0, len(difference), size=(rows, len(difference)))
        means.append(difference[drawn].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return {"mean": float(difference.mean()), "ci95": [float(low), float(high)]}


def power(questions: int, discordant: int) -> dict[str, Any]:
    """What this many questions could show, if the observed share of discordant pairs is the true.

    Returns:
        {"alpha", "power", "discordant_rate",
        "significant_difference": smallest (gained - lost) / questions that the exact test calls
        significant with this many discordant pairs; None if not even all of them on one side,
        "detectable_difference": smallest true difference that the exact test finds, in the right
        direction, with probability `power` (Duffy 1984); None if there is none}.
    """
    share = discordant / questions
    allowed = int(_critical(np.array([discordant]))[0])
    return {
        "alpha": ALPHA,
        "power": POWER,
        "discordant_rate": share,
        "significant_difference": None if allowed < 0 else (discordant - 2 * allowed) / questions,
        "detectable_difference": detectable_difference(questions, share),
    }


def detectable_difference(questions: int, discordant_rate: float) -> float | None:
    """Smallest difference with power of at least `POWER`, to 1e-6; None if there is none."""
    low, high = 0.0, discordant_rate
    if high == 0 or exact_power(questions, discordant_rate, high) < POWER:
        return None
    while high - low > 1e-6:
        middle = (low + high) / 2
        if exact_power(questions, discordant_rate, middle) < POWER:
            low = middle
        else:
            high = middle
    return high


def exact_power(questions: int, discordant_rate: float, difference: float) -> float:
    """Probability that the exact test finds a true `difference` > 0, in its direction.

    The number of discordant pairs is binomial, and so, given it, are the gained ones; the test's
    rejections are summed over both.
    """
    gained_share = (1 + difference / discordant_rate) / 2
    pairs = np.arange(
        int(binom.ppf(1e-10, questions, discordant_rate)),
        int(binom.isf(1e-10, questions, discordant_rate)) + 1,
    )
    allowed = _critical(pairs)
    found = np.where(allowed < 0, 0.0, binom.cdf(allowed, pairs, 1 - gained_share))
    return float(np.sum(binom.pmf(pairs, questions, discordant_rate) * found))


def _critical(pairs: np.ndarray) -> np.ndarray:
    """Most pairs lost of `pairs` that the exact test still calls significant; -1 if none are."""
    guess = binom.ppf(ALPHA / 2, pairs, 0.5)
    # ppf is the first count whose tail reaches the level; p must stay below it.
    return np.where(2 * binom.cdf(guess, pairs, 0.5) < ALPHA, guess, guess - 1).astype(int)
