"""Does the comparison keep its promises? False positives without an effect, coverage with one.

    python benchmarks/paired_simulation.py [--repetitions 10000] [--out FILE.json]

One run: each repetition draws 200 questions as independent pairs: gained, lost or unchanged with
given probabilities. Without an effect the exact McNemar test, which decides, may call at most 5 %
significant (it is conservative: less is right), the mid-p version about 5 %. The paired bootstrap
interval must hold the true difference in 93 to 97 % of the repetitions. The tests' rates are also
summed over all tables, which needs no draws.

Several training seeds, pooled by question: answers are drawn from a question's difficulty, which
all evaluations share (correlation 0.5), and chance; each seed's own rate lies around the mean with
a standard deviation of 0, 2 or 5 points. The interval over questions and seeds must hold the true
mean in 93 to 97 %; without an effect a difference is claimed wherever it excludes 0. Beside it,
what other formulas would give. Of two seeds 91 % is asked: docs/evaluation.md says why.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import binom
from scipy.stats import t as student

from glimmer.heldout.crossed import crossed_mean, mean_squares
from glimmer.heldout.statistics import ALPHA, Z, mcnemar_midp, mcnemar_p, paired_difference

# name -> probabilities of gained and of lost
SCENARIOS = {
    "no effect, 10 % changed": (0.05, 0.05),
    "no effect, 33 % changed": (0.165, 0.165),
    "+5 points, 15 % changed": (0.1, 0.05),
    "+12 points, 33 % changed": (0.225, 0.105),
    "+26 points, 33 % changed": (0.295, 0.035),
}
# name -> rate before, mean rate after
POOLED = {
    "no effect, 30 %": (0.3, 0.3),
    "20 to 46 %": (0.2, 0.46),
    "47 to 84 %": (0.47, 0.84),
}
QUESTIONS = (60, 200, 400)
SEEDS = (2, 3, 5)
SPREADS = (0.0, 0.02, 0.05)
# As measured on the embedded default (docs/results.md): 188 before, 353, 329 and 325 after.
MEASURED = ("as in docs/results.md", 188 / 400, 335.7 / 400, 400, 3, 0.038)
CORRELATION = 0.5
_BLOCK = 1000
KEPT = (0.93, 0.97)
KEPT_OF_TWO_SEEDS = (0.91, 0.97)  # one degree of freedom for what all other seeds may do


def simulate(gained: float, lost: float, *, questions: int, repetitions: int, resamples: int,
             seed: int) -> dict[str, float]:  # fmt: skip
    """Shares of repetitions that are significant, and whose interval holds the true difference."""

    @functools.cache
    def judged(more: int, fewer: int) -> np.ndarray:
        """Of a table: exact test, mid-p significant; interval holds the truth."""
        change = np.repeat([1.0, -1.0, 0.0], [more, fewer, questions - more - fewer])
        found = paired_difference(
            np.zeros(questions), change, seed=seed + questions * more + fewer, resamples=resamples
        )
        low, high = found["ci95"]
        return np.array(
            [
                mcnemar_p(more, fewer) < ALPHA,
                mcnemar_midp(more, fewer) < ALPHA,
                low - 1e-12 <= gained - lost <= high + 1e-12,
            ],
            dtype=float,
        )

    rng = np.random.default_rng(seed)
    draws = rng.multinomial(questions, [gained, lost, 1 - gained - lost], repetitions)
    exact, midp, covered = np.mean([judged(int(g), int(n)) for g, n, _ in draws], axis=0)
    return {
        "significant_exact": float(exact),
        "significant_midp": float(midp),
        "coverage": float(covered),
        "enumerated_exact": enumerate_test(mcnemar_p, gained, lost, questions),
        "enumerated_midp": enumerate_test(mcnemar_midp, gained, lost, questions),
    }


def enumerate_test(
    test: Callable[[int, int], float], gained: float, lost: float, questions: int
) -> float:
    """Probability that a test is significant, summed over all numbers of pairs and of gained."""
    share = gained + lost
    found = 0.0
    first, last = (int(binom.ppf(q, questions, share)) for q in (1e-10, 1 - 1e-10))
    for pairs in range(first, last + 1):
        # Both tests take gained and lost alike.
        half = [test(g, pairs - g) < ALPHA for g in range(pairs // 2 + 1)]
        more = np.flatnonzero(half + half[: (pairs + 1) // 2][::-1])
        given = binom.pmf(more, pairs, gained / share).sum()
        found += binom.pmf(pairs, questions, share) * given
    return float(found)


def tables(before: float, after: float, *, questions: int, seeds: int, spread: float,
           repetitions: int, rng: np.random.Generator) -> np.ndarray:  # fmt: skip
    """After - before, shape (repetitions, seeds, questions), -1, 0 or 1. One evaluation before is
    shared by all seeds; seeds' rates are normal about `after` with standard deviation `spread`."""
    a, b = math.sqrt(CORRELATION), math.sqrt(1 - CORRELATION)
    hard = a * rng.standard_normal((repetitions, 1, questions), dtype=np.float32)
    rates = after + spread * rng.standard_normal((repetitions, seeds, 1))
    chance = rng.standard_normal((repetitions, seeds, questions), dtype=np.float32)
    became = hard + b * chance < ndtri(np.clip(rates, 1e-3, 1 - 1e-3))
    was = hard + b * rng.standard_normal((repetitions, 1, questions)) < ndtri(before)
    return became.astype(np.int8) - was.astype(np.int8)


def other_formulas(table: np.ndarray) -> dict[str, np.ndarray]:
    """Half-widths of 95 % intervals that were not taken."""
    seeds, questions = table.shape[-2:]
    s, q, e = mean_squares(table)
    cells = seeds * questions
    # V = (S + Q - E) / (k n) with Satterthwaite's degrees of freedom.
    v = np.maximum(s + q - e, 1e-12)
    terms = ((s, seeds - 1), (q, questions - 1), (e, (seeds - 1) * (questions - 1)))
    freedom = np.maximum(v**2 / sum(x**2 / d for x, d in terms), seeds - 1)
    # Each part of the variance with the t quantile of its own degrees of freedom.
    own = np.maximum(q - e, 0)
    quantiles = student.ppf(0.975, [seeds - 1, questions - 1])
    return {
        "Satterthwaite": student.ppf(0.975, freedom) * np.sqrt(v / cells),
        "sum of squared half-widths": np.sqrt(
            (quantiles[0] ** 2 * s + quantiles[1] ** 2 * own) / cells
        ),
        # A bootstrap of rows and of columns draws each seed and each question with a variance of
        # (k - 1) / k and (n - 1) / n, and their interaction with both.
        "rows and columns drawn anew": Z
        * np.sqrt(
            (s * (seeds - 1) / seeds + q * (questions - 1) / questions + e * (seeds - 1) / seeds)
            / cells
        ),
        "these seeds alone": quantiles[1] * np.sqrt(q / cells),
    }


def simulate_pooled(before: float, after: float, *, questions: int, seeds: int, spread: float,
                    repetitions: int, seed: int) -> dict[str, Any]:  # fmt: skip
    """Shares of repetitions whose interval holds the true mean, and of those that claim one."""
    rng = np.random.default_rng([seed, questions, seeds, int(1000 * spread), int(100 * after)])
    truth = after - before
    held = claimed = width = 0.0
    others: dict[str, float] = {}
    for start in range(0, repetitions, _BLOCK):
        drawn = tables(
            before,
            after,
            questions=questions,
            seeds=seeds,
            spread=spread,
            repetitions=min(_BLOCK, repetitions - start),
            rng=rng,
        ).astype(np.float64)
        found = crossed_mean(drawn)
        low, high = found["low"], found["high"]
        held += np.sum((low - 1e-12 <= truth) & (truth <= high + 1e-12))
        claimed += np.sum((low > 0) | (high < 0))
        width += np.sum(high - low)
        for name, half in other_formulas(drawn).items():
            inside = np.abs(found["mean"] - truth) <= half + 1e-12
            others[name] = others.get(name, 0.0) + np.sum(inside)
    return {
        "coverage": held / repetitions,
        "claimed": claimed / repetitions,
        "mean_width": width / repetitions,
        "others": {name: count / repetitions for name, count in others.items()},
    }


def main() -> int:
    """Print a line a scenario; exit status 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=10_000)
    parser.add_argument("--questions", type=int, default=200, help="of one run")
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    error = 1.96 * math.sqrt(ALPHA * (1 - ALPHA) / options.repetitions)
    print(f"binomial error of 5 % over {options.repetitions} repetitions: ±{100 * error:.2f} %")
    results: dict[str, Any] = {"one run": {}, "pooled": []}
    kept = True
    for name, (gained, lost) in SCENARIOS.items():
        start = time.perf_counter()
        found = simulate(
            gained,
            lost,
            questions=options.questions,
            repetitions=options.repetitions,
            resamples=options.resamples,
            seed=options.seed,
        )
        good = KEPT[0] <= found["coverage"] <= KEPT[1]
        if gained == lost:
            good = good and found["significant_exact"] <= ALPHA + error
        kept = kept and good
        results["one run"][name] = found
        print(
            f"{name}: exact {100 * found['significant_exact']:.2f} % "
            f"(enumerated {100 * found['enumerated_exact']:.2f}), mid-p "
            f"{100 * found['significant_midp']:.2f} % "
            f"({100 * found['enumerated_midp']:.2f}), coverage {100 * found['coverage']:.2f} % "
            f"({time.perf_counter() - start:.0f} s){'' if good else '  NOT KEPT'}",
            flush=True,
        )
    cases = [
        (name, *rates, questions, seeds, spread)
        for name, rates in POOLED.items()
        for questions in QUESTIONS
        for seeds in SEEDS
        for spread in SPREADS
    ]
    for name, before, after, questions, seeds, spread in [*cases, MEASURED]:
        found = simulate_pooled(
            before,
            after,
            questions=questions,
            seeds=seeds,
            spread=spread,
            repetitions=options.repetitions,
            seed=options.seed,
        )
        low, high = KEPT_OF_TWO_SEEDS if seeds == 2 else KEPT
        good = low <= found["coverage"] <= high
        kept = kept and good
        case = {"scenario": name, "questions": questions, "seeds": seeds, "spread": spread}
        results["pooled"].append(case | found)
        print(
            f"{name}, {questions} questions, {seeds} seeds, {100 * spread:g} points: "
            f"{100 * found['coverage']:.1f} %, claimed {100 * found['claimed']:.1f} %, "
            f"width {100 * found['mean_width']:.1f}; "
            + ", ".join(f"{k} {100 * v:.1f}" for k, v in found["others"].items())
            + ("" if good else "  NOT KEPT"),
            flush=True,
        )
    for line in summary(results["pooled"]):
        print(line)
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if kept else 1


def summary(pooled: list[dict[str, Any]]) -> list[str]:
    """The pooled cases as Markdown: coverage of each, then the range of each formula."""
    head = ["scenario", "questions", "seeds", *(f"{100 * s:g} points" for s in SPREADS)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    rows: dict[tuple[Any, ...], list[str]] = {}
    for case in pooled:
        key = (case["scenario"], case["questions"], case["seeds"])
        rows.setdefault(key, []).append(f"{100 * case['coverage']:.1f}")
    lines += ["| " + " | ".join(map(str, [*key, *row])) + " |" for key, row in rows.items()]
    lines += ["", "| formula | 2 seeds | 3 seeds | 5 seeds |", "|---|---|---|---|"]
    for name in ("ours", *pooled[0]["others"]):
        cells = []
        for seeds in SEEDS:
            found = [
                case["coverage"] if name == "ours" else case["others"][name]
                for case in pooled
                if case["seeds"] == seeds
            ]
            cells.append(f"{100 * min(found):.1f}–{100 * max(found):.1f}")
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
