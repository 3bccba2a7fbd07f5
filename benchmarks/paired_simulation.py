"""Does the comparison keep its promises? False positives without an effect, coverage with one.

    python benchmarks/paired_simulation.py [--repetitions 2000] [--out FILE.json]

Each repetition draws 200 questions as independent pairs: gained, lost or unchanged with given
probabilities. Without an effect the exact McNemar test may call at most 5 % significant (it is
conservative: less is right), the mid-p version about 5 %. With and without an effect the paired
bootstrap interval must hold the true difference in 93 to 97 % of the repetitions.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

from glimmer.heldout.statistics import ALPHA, mcnemar_midp, mcnemar_p, paired_difference

# name -> probabilities of gained and of lost
SCENARIOS = {
    "null, 10 % changed": (0.05, 0.05),
    "null, 33 % changed": (0.165, 0.165),
    "effect +5 points": (0.1, 0.05),
    "effect +12 points": (0.225, 0.105),
    "effect +26 points": (0.295, 0.035),
}


def simulate(gained: float, lost: float, *, questions: int, repetitions: int, resamples: int,
             seed: int) -> dict[str, float]:  # fmt: skip
    """Shares of repetitions that are significant, and whose interval holds the true difference."""
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(questions, [gained, lost, 1 - gained - lost], repetitions)
    exact = midp = covered = 0
    for k, (more, fewer, same) in enumerate(draws):
        exact += mcnemar_p(int(more), int(fewer)) < ALPHA
        midp += mcnemar_midp(int(more), int(fewer)) < ALPHA
        change = np.repeat([1.0, -1.0, 0.0], [more, fewer, same])
        found = paired_difference(
            np.zeros(questions), change, seed=seed + 1 + k, resamples=resamples
        )
        low, high = found["ci95"]
        covered += low - 1e-12 <= gained - lost <= high + 1e-12
    return {
        "significant_exact": exact / repetitions,
        "significant_midp": midp / repetitions,
        "coverage": covered / repetitions,
    }


def main() -> int:
    """Print a line a scenario; exit status 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    error = 1.96 * math.sqrt(ALPHA * (1 - ALPHA) / options.repetitions)
    print(f"binomial error of 5 % over {options.repetitions} repetitions: ±{100 * error:.2f} %")
    results, kept = {}, True
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
        good = 0.93 <= found["coverage"] <= 0.97
        if gained == lost:
            good = good and found["significant_exact"] <= ALPHA + error
        kept = kept and good
        results[name] = found
        print(
            f"{name}: exact {100 * found['significant_exact']:.2f} %, mid-p "
            f"{100 * found['significant_midp']:.2f} %, coverage {100 * found['coverage']:.2f} % "
            f"({time.perf_counter() - start:.0f} s){'' if good else '  NOT KEPT'}",
            flush=True,
        )
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
