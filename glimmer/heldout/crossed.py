"""The mean of a table of seeds × questions, and how far other seeds and questions would move it.

In: what each question changed by with each seed. Out: the mean with a 95 % interval and a p that
hold for seeds and questions drawn anew: both are random effects, crossed.

The variance components are those of the analysis of variance of a two-way layout with one
observation a cell (Searle, Casella and McCulloch 1992, Variance Components, ch. 4). With mean
squares S of seeds (k - 1 degrees of freedom), Q of questions (n - 1) and E of what is left,

    variance of the mean = (S + Q - E) / (k n),    Q - E not below 0,

in which what one question does with one seed counts once; a bootstrap that draws rows and columns
anew counts it up to three times, and with few seeds the spread of seeds too little. The t
quantile's degrees of freedom are 1 / (share of S / (k - 1) + share of Q - E / (n - 1)), in shares
of that variance. Satterthwaite 1946 squares these shares, so that seeds which happen to agree pass
for seeds whose spread is known; of two or three that covers too little
(benchmarks/paired_simulation.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import t as student

from glimmer.heldout.statistics import ALPHA

METHOD = "crossed random effects of questions and seeds, t quantile"


def mean_squares(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean squares of seeds, of questions and of the rest.

    Args:
        table: shape (..., seeds, questions), two or more of each.

    Returns:
        three arrays of the shape of the leading dimensions.
    """
    seeds, questions = table.shape[-2:]
    mean = table.mean(axis=(-2, -1), keepdims=True)
    of_seeds = table.mean(axis=-1, keepdims=True) - mean
    of_questions = table.mean(axis=-2, keepdims=True) - mean
    rest = table - mean - of_seeds - of_questions
    return (
        questions * (of_seeds**2).sum(axis=(-2, -1)) / (seeds - 1),
        seeds * (of_questions**2).sum(axis=(-2, -1)) / (questions - 1),
        (rest**2).sum(axis=(-2, -1)) / ((seeds - 1) * (questions - 1)),
    )


def crossed_mean(table: np.ndarray) -> dict[str, Any]:
    """Mean of a table with its interval over seeds and questions both.

    Args:
        table: after - before, shape (..., seeds, questions), two or more of each.

    Returns:
        of the shape of the leading dimensions each: {"mean", "low", "high": 95 % interval, "p": two
        sided, of a mean of 0, "standard_error", "degrees_of_freedom", "components": {"seeds",
        "questions", "rest": standard deviations, 0 where the estimated variance is negative}}.
    """
    table = np.asarray(table, dtype=np.float64)
    seeds, questions = table.shape[-2:]
    mean = table.mean(axis=(-2, -1))
    of_seeds, of_questions, rest = mean_squares(table)
    own = np.maximum(of_questions - rest, 0.0)
    total = of_seeds + own
    # A table of equal cells has no variance, and any degrees of freedom.
    share = np.divide(of_seeds, total, out=np.zeros_like(total), where=total > 0)
    freedom = 1 / (share / (seeds - 1) + (1 - share) / (questions - 1))
    error = np.sqrt(total / (seeds * questions))
    half = student.ppf(1 - ALPHA / 2, freedom) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(mean == 0, 1.0, 2 * student.sf(np.abs(mean) / error, freedom))
    return {
        "mean": mean,
        "low": np.maximum(mean - half, -1.0),
        "high": np.minimum(mean + half, 1.0),
        "p": p,
        "standard_error": error,
        "degrees_of_freedom": freedom,
        "components": {
            "seeds": np.sqrt(np.maximum(of_seeds - rest, 0.0) / questions),
            "questions": np.sqrt(own / seeds),
            "rest": np.sqrt(rest),
        },
    }
