"""Several samples a question: pass@1 as a mean, pass@k without bias.

pass@k = mean over questions of 1 - C(n - c, k) / C(n, k), with c of n samples right (Chen et al.
2021, "Evaluating Large Language Models Trained on Code", equation 1). With k = 1 that is c / n.

The n samples also tell how much such a rate moves when the same weights are sampled again: the
variance of one question's estimate by the jackknife over its samples, which for k = 1 is
c (n - c) / (n^2 (n - 1)) and for more is too large rather than too small (Efron and Stein 1981).
An after - before difference of N questions then moves by 1.96 times the root of the sum of both
sides' variances, over N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glimmer.errors import IntegrityError
from glimmer.heldout.statistics import Z, paired_difference


def pass_at(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of `k` samples is right, of `correct` among `n`."""
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, expected 1 to {n}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def resampling_variance(n: int, correct: int, k: int) -> float:
    """Jackknife variance of `pass_at(n, correct, k)` from drawing the samples anew; needs k < n."""
    if not 1 <= k < n:
        raise ValueError(f"k is {k}, expected 1 to {n - 1}")
    # Each right sample left out gives the first value, each wrong one the second.
    values = [(correct, correct - 1), (n - correct, correct)]
    left = [(times, pass_at(n - 1, right, k)) for times, right in values if times]
    mean = sum(times * value for times, value in left) / n
    return (n - 1) / n * sum(times * (value - mean) ** 2 for times, value in left)


def pass_rates(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    ids: Sequence[str],
    *,
    seed: int,
    resamples: int,
) -> dict[str, Any] | None:
    """pass@k before and after, and its difference; None where every question has one sample.

    Returns:
        {"samples": n, "pass_at": {"k": {"before", "after", "difference": {"mean", "ci95"},
        "noise": how much sampling again moves the difference in 95 % of cases, None for k = n}}},
        k being 1, 2, 4, ... and n.

    Raises:
        IntegrityError: the questions do not all have the same number of samples.
    """
    counts = {len(_right(rows[i])) for rows in (old, new) for i in ids}
    if counts == {1}:
        return None
    if len(counts) > 1:
        raise IntegrityError(
            f"the records hold {sorted(counts)} samples a question, expected one number for all. "
            "Delete both record files and run again."
        )
    n = counts.pop()
    rates = {}
    for k in sorted({2**power for power in range(n.bit_length()) if 2**power <= n} | {n}):
        right = [[sum(_right(rows[i])) for i in ids] for rows in (old, new)]
        sides = [np.array([pass_at(n, c, k) for c in side]) for side in right]
        moved = sum(resampling_variance(n, c, k) for side in right for c in side) if k < n else None
        rates[str(k)] = {
            "before": float(sides[0].mean()),
            "after": float(sides[1].mean()),
            "difference": paired_difference(*sides, seed=seed, resamples=resamples),
            "noise": None if moved is None else Z * math.sqrt(moved) / len(ids),
        }
    return {"samples": n, "pass_at": rates}


def _right(row: Mapping[str, Any]) -> list[int]:
    return [sample["scores"]["exact_match"] for sample in (row, *row.get("samples", []))]
