"""Several samples a question: pass@1 as a mean, pass@k without bias.

pass@k = mean over questions of 1 - C(n - c, k) / C(n, k), with c of n samples right (Chen et al.
2021, "Evaluating Large Language Models Trained on Code", equation 1). With k = 1 that is c / n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glimmer.errors import IntegrityError
from glimmer.heldout.statistics import paired_difference


def pass_at(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of `k` samples is right, of `correct` among `n`."""
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, expected 1 to {n}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


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
        {"samples": n, "pass_at": {"k": {"before", "after", "difference": {"mean", "ci95"}}}}, k
        being 1, 2, 4, ... and n.

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
        sides = [
            np.array([pass_at(n, sum(_right(rows[i])), k) for i in ids]) for rows in (old, new)
        ]
        rates[str(k)] = {
            "before": float(sides[0].mean()),
            "after": float(sides[1].mean()),
            "difference": paired_difference(*sides, seed=seed, resamples=resamples),
        }
    return {"samples": n, "pass_at": rates}


def _right(row: Mapping[str, Any]) -> list[int]:
    return [sample["scores"]["exact_match"] for sample in (row, *row.get("samples", []))]
