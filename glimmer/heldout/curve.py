"""The held-out questions on the way: each checkpoint that training kept, paired with before.

In: record files of the same questions, before, after so many steps, and after training. Out:
`curve.json`, {"points": [{"step", "questions", "correct", "exact_match", "ci95": Wilson, and from
the second on "difference" from before {"mean", "ci95": paired bootstrap}, "gained", "lost",
"mcnemar_p", "holm_p": corrected for the number of these points}]}, by step.

The points are to be looked at. Who chooses a checkpoint by them has trained on the held-out
questions: a result of that checkpoint needs other questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.heldout.groups import corrected
from glimmer.heldout.paired import check_same
from glimmer.heldout.records import read_records
from glimmer.heldout.statistics import mcnemar_p, paired_difference, rate


def heldout_curve(
    before: Path, later: Mapping[int, Path], *, seed: int, resamples: int
) -> dict[str, Any]:
    """`curve.json`, see the module.

    Args:
        before: record file of step 0.
        later: step -> record file, the last step's among them.
        seed, resamples: of the bootstrap.

    Raises:
        IntegrityError: a file holds other questions, or was made with other settings.
        DataError: a file is not one of records.
    """
    old = read_records(before)
    was = _right(old, old)
    points: dict[int, dict[str, Any]] = {}
    for step, path in sorted(later.items()):
        new = read_records(path)
        check_same(old, new, before, path)
        became = _right(new, old)
        gained, lost = int((became > was).sum()), int((became < was).sum())
        points[step] = _point(step, became) | {
            "difference": paired_difference(was, became, seed=seed, resamples=resamples),
            "gained": gained,
            "lost": lost,
            "mcnemar_p": mcnemar_p(gained, lost),
        }
    return {"points": [_point(0, was), *corrected(points).values()]}


def _right(rows: Mapping[str, Any], ids: Mapping[str, Any]) -> np.ndarray:
    return np.array([rows[i]["scores"]["exact_match"] for i in ids], dtype=np.float64)


def _point(step: int, right: np.ndarray) -> dict[str, Any]:
    correct = int(right.sum())
    found = rate(correct, len(right))
    return {
        "step": step,
        "questions": len(right),
        "correct": correct,
        "exact_match": found["rate"],
        "ci95": found["ci95"],
    }
