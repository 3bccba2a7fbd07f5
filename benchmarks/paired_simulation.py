"""Does the comparison keep its promises? False positives without an effect, coverage with one.

    python benchmarks/paired_simulation.py [--repetitions 2000] [--out FILE.json]

Each repetition draws 200 questions as independent pairs: gained, lost or unchanged with given
probabilities. Without an effect the exact McNemar test may call at most 5 % significant (it is
conservative: less is right), the mid-p version about 5 %. With and without an effect the paired
bootstrap interval must hold the true difference in 93 to 97 % of the repetitions.

Then the same of training seeds pooled by question: questions of two kinds, easily gained or hardly
ever, and seeds whose own effect varies by so many points. The interval over questions and seeds
must hold the true mean in at least 93 %; without an effect a difference may be claimed (by the test
and this interval both) in at most 5 %.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.heldout.pooled import pool_seeds
from glimmer.heldout.statistics import ALPHA, mcnemar_midp, mcnemar_p, paired_difference

# name -> probabilities of gained and of lost
SCENARIOS = {
    "null, 10 % changed": (0.05, 0.05),
    "null, 33 % changed": (0.165, 0.165),
    "effect +5 points": (0.1, 0.05),
    "effect +12 points": (0.225, 0.105),
    "effect +26 points": (0.295, 0.035),
}


# name -> mean gain, standard deviation of the seeds' own effects, seeds
POOLED = {
    "2 seeds that differ by 3.5 points": (0.2, 0.035, 2),
    "3 seeds that differ by 3.5 points": (0.2, 0.035, 3),
    "3 seeds alike": (0.2, 0.0, 3),
    "null, 2 seeds that differ by 3.5 points": (0.0, 0.035, 2),
    "null, 3 seeds that differ by 3.5 points": (0.0, 0.035, 3),
    "null, 3 seeds alike": (0.0, 0.0, 3),
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


def simulate_pooled(gain: float, spread: float, seeds: int, *, questions: int, repetitions: int,
                    resamples: int, seed: int) -> dict[str, float]:  # fmt: skip
    """Shares of repetitions whose intervals hold the true mean, and in which something is
    claimed."""
    rng = np.random.default_rng(seed)
    both = over_questions = p_small = claimed = 0
    for k in range(repetitions):
        # Half of the questions change easily, half hardly ever; seeds shift all of them.
        change = rng.choice([0.1, 0.5], questions) + np.zeros((seeds, 1))
        mean = gain * change / 0.3 + rng.normal(0.0, spread, (seeds, 1))
        up, down = (np.clip((change + sign * mean) / 2, 0, 1) for sign in (1, -1))
        drawn = rng.random((seeds, questions))
        table = (drawn < up).astype(int) - (drawn > 1 - down)
        found = pool_seeds([_verdict(row) for row in table], seed=k, resamples=resamples)
        low, high = found["difference"]["ci95_seeds"]
        both += low - 1e-12 <= gain <= high + 1e-12
        inner = found["difference"]["ci95"]
        over_questions += inner[0] - 1e-12 <= gain <= inner[1] + 1e-12
        p_small += found["sign_flip_p"] < ALPHA
        claimed += found["sign_flip_p"] < ALPHA and not low <= 0 <= high
    return {
        "coverage": both / repetitions,
        "coverage_over_questions": over_questions / repetitions,
        "significant": p_small / repetitions,
        "claimed": claimed / repetitions,
    }


def _verdict(row: np.ndarray) -> dict[str, Any]:
    """What `pool_seeds` reads of a verdict."""
    right = {"correct": 0}
    return {
        "measured": {"questions": len(row), "before": right, "after": right},
        "details": {
            "gained": [str(i) for i in np.flatnonzero(row > 0)],
            "lost": [str(i) for i in np.flatnonzero(row < 0)],
        },
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
    for name, (gain, spread, seeds) in POOLED.items():
        start = time.perf_counter()
        found = simulate_pooled(
            gain,
            spread,
            seeds,
            questions=options.questions,
            repetitions=options.repetitions,
            resamples=min(options.resamples, 1000),
            seed=options.seed,
        )
        good = found["coverage"] >= 0.93
        if gain == 0:
            good = good and found["claimed"] <= ALPHA + error
        kept = kept and good
        results[name] = found
        print(
            f"{name}: interval over questions and seeds {100 * found['coverage']:.2f} %, over "
            f"questions {100 * found['coverage_over_questions']:.2f} %, p below {ALPHA} in "
            f"{100 * found['significant']:.2f} %, claimed {100 * found['claimed']:.2f} % "
            f"({time.perf_counter() - start:.0f} s){'' if good else '  NOT KEPT'}",
            flush=True,
        )
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
