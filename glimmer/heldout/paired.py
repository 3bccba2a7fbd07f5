"""The paired comparison: the same questions before and after, and how certain the gain is.

Exact McNemar test (McNemar 1947; two-sided binomial test on the discordant pairs), percentile
interval of a paired bootstrap over questions (Efron 1979), Wilson interval for each rate. Every
question counts, whatever became of its rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from glimmer.errors import IntegrityError
from glimmer.heldout.records import read_records
from glimmer.logs import get_logger

logger = get_logger(__name__)

ALPHA = 0.05
_BLOCK = 1000  # resamples drawn at once


def compare(before: Path, after: Path, *, seed: int, resamples: int) -> dict[str, Any]:
    """The verdict `paired.json` of two record files.

    Returns:
        {"gate": "paired", "passed", "measured", "threshold", "measured_on", "details"}. `passed`
        says whether more questions are right after than before with p below 0.05. Rates are
        fractions, differences too; `table` and `outcomes` count questions; `details` lists the ids
        of questions gained and lost.

    Raises:
        IntegrityError: the files hold other questions, or were made with other settings.
        DataError: a file is not one of records.
    """
    old, new = read_records(before), read_records(after)
    _check_same(old, new, before, after)
    ids = list(old)
    right = {name: _scores(rows, ids, "exact_match") for name, rows in _pair(old, new)}
    f1 = {name: _scores(rows, ids, "f1") for name, rows in _pair(old, new)}
    gained = [i for i, a, b in zip(ids, right["before"], right["after"], strict=True) if b > a]
    lost = [i for i, a, b in zip(ids, right["before"], right["after"], strict=True) if b < a]
    both = int(np.sum((right["before"] == 1) & (right["after"] == 1)))
    difference = paired_difference(right["before"], right["after"], seed=seed, resamples=resamples)
    p = mcnemar_p(len(gained), len(lost))
    measured = {
        "questions": len(ids),
        **{name: _summary(rows, ids) for name, rows in _pair(old, new)},
        "difference": difference,
        "f1_difference": paired_difference(
            f1["before"], f1["after"], seed=seed, resamples=resamples
        ),
        "table": {
            "both_right": both,
            "gained": len(gained),
            "lost": len(lost),
            "both_wrong": len(ids) - both - len(gained) - len(lost),
        },
        "mcnemar_p": p,
        "outcomes": _transitions(old, new, ids),
        "by_type": _by_type(old, new, ids),
    }
    logger.info(
        "before %d, after %d of %d; difference %+.1f points [%+.1f, %+.1f], p = %.2g",
        measured["before"]["correct"],
        measured["after"]["correct"],
        len(ids),
        100 * difference["mean"],
        *(100 * bound for bound in difference["ci95"]),
        p,
    )
    return {
        "gate": "paired",
        "passed": bool(len(gained) > len(lost) and p < ALPHA),
        "measured": measured,
        "threshold": {"mcnemar_p": ALPHA, "difference": 0.0},
        "measured_on": {"bootstrap_resamples": resamples, "bootstrap_seed": seed},
        "details": {"gained": gained, "lost": lost},
    }


def mcnemar_p(gained: int, lost: int) -> float:
    """Two-sided exact p of `gained` against `lost` discordant pairs; 1.0 if there are none."""
    if gained + lost == 0:
        return 1.0
    return float(binomtest(gained, gained + lost, 0.5).pvalue)


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


def _pair(old: dict, new: dict) -> list[tuple[str, dict]]:
    return [("before", old), ("after", new)]


def _scores(rows: Mapping[str, Any], ids: list[str], name: str) -> np.ndarray:
    return np.array([rows[i]["scores"][name] for i in ids], dtype=np.float64)


def _summary(rows: Mapping[str, Any], ids: list[str]) -> dict[str, Any]:
    """Counts, rate with its Wilson interval, and means of one evaluation."""
    correct = int(_scores(rows, ids, "exact_match").sum())
    interval = binomtest(correct, len(ids)).proportion_ci(method="wilson")
    return {
        "correct": correct,
        "exact_match": correct / len(ids),
        "ci95": [float(interval.low), float(interval.high)],
        "f1": float(_scores(rows, ids, "f1").mean()),
        "contains": float(_scores(rows, ids, "contains").mean()),
        "searches": float(np.mean([rows[i]["searches"] for i in ids])),
        "failed_searches": int(sum(rows[i]["failed_searches"] for i in ids)),
        "turns": float(np.mean([len(rows[i]["turns"]) for i in ids])),
        "completion_tokens": float(
            np.mean([sum(len(t["completion_ids"]) for t in rows[i]["turns"]) for i in ids])
        ),
        "outcomes": dict(sorted(Counter(rows[i]["outcome"] for i in ids).items())),
    }


def _transitions(old: dict, new: dict, ids: list[str]) -> dict[str, dict[str, int]]:
    """Questions by outcome before and outcome after."""
    table: dict[str, dict[str, int]] = {}
    counts = Counter((old[i]["outcome"], new[i]["outcome"]) for i in ids)
    for (was, became), count in sorted(counts.items()):
        table.setdefault(was, {})[became] = count
    return table


def _by_type(old: dict, new: dict, ids: list[str]) -> dict[str, dict[str, float]]:
    """Exact match before and after for each kind of question."""
    groups: dict[str, list[str]] = {}
    for i in ids:
        groups.setdefault(str(old[i]["type"]), []).append(i)
    return {
        kind: {
            "questions": len(members),
            "before": float(_scores(old, members, "exact_match").mean()),
            "after": float(_scores(new, members, "exact_match").mean()),
        }
        for kind, members in sorted(groups.items())
    }


def _check_same(old: dict, new: dict, before: Path, after: Path) -> None:
    """The same questions, asked with the same settings.

    Raises:
        IntegrityError: naming the first difference.
    """
    for mine, theirs, missing in ((old, new, after), (new, old, before)):
        if absent := [i for i in mine if i not in theirs]:
            raise IntegrityError(
                f"{missing}: {len(absent)} questions of {len(mine)} are missing, the first is "
                f"{absent[0]!r}. A paired comparison needs the same questions: delete both "
                "record files and run again."
            )
    for key, meaning in (
        ("question", "the question's text or golden answers"),
        ("settings", "evaluation, search or renderer settings, or the index"),
        ("prompt", "the prompt's tokens"),
    ):
        for i, row in old.items():
            if row["hashes"][key] != new[i]["hashes"][key]:
                raise IntegrityError(
                    f"{before} and {after} differ for question {i!r} in {meaning}: "
                    f"{row['hashes'][key][:12]} before, {new[i]['hashes'][key][:12]} after. "
                    "Delete both record files and run again."
                )
