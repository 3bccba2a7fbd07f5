"""The paired comparison: the same questions before and after, and how certain the gain is.

Exact McNemar test (McNemar 1947; two-sided binomial test on the discordant pairs), percentile
interval of a paired bootstrap over questions (Efron 1979), Wilson interval for each rate; the
formulas are in `glimmer.heldout.statistics`. Every question counts, whatever became of its rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.errors import IntegrityError
from glimmer.files import read_json, sha256_json
from glimmer.heldout.groups import by_outcome, grouped, transitions
from glimmer.heldout.noise import MEANS, noise_floor, pass_noise, read_repeats
from glimmer.heldout.passages import retrieval
from glimmer.heldout.reached import reached
from glimmer.heldout.records import read_records
from glimmer.heldout.samples import pass_rates
from glimmer.heldout.statistics import (
    ALPHA,
    mcnemar_midp,
    mcnemar_p,
    paired_difference,
    power,
    rate,
)
from glimmer.logs import get_logger

logger = get_logger(__name__)


def compare(
    before: Path,
    after: Path,
    *,
    seed: int,
    resamples: int,
    repeats: tuple[Path, Path] | None = None,
    leakage: Path | None = None,
    ceiling: Path | None = None,
) -> dict[str, Any]:
    """The verdict `paired.json` of two record files.

    Args:
        before, after: record files.
        seed, resamples: of the bootstrap.
        repeats: files of further passes, before and after; they give the noise floor.
        leakage: `leakage.json`; it gives the result without the questions it names.
        ceiling: `ceiling.json`; it gives the share of the retrieval ceiling that was reached.

    Returns:
        {"gate": "paired", "passed", "measured", "threshold", "measured_on", "details"}. `passed`
        says whether more questions are right after than before with p below 0.05. Rates are
        fractions, differences too; `table` and `outcomes` count questions; `details` lists the ids
        of questions gained and lost, and the held-out questions that stand in training (`leaks`,
        as in `leakage.json`).

    Raises:
        IntegrityError: the files hold other questions, or were made with other settings.
        DataError: a file is not one of records.
    """
    old, new = read_records(before), read_records(after)
    check_same(old, new, before, after)
    found = verdict(old, new, seed=seed, resamples=resamples)
    measured = found["measured"]
    if repeats is not None:
        add_noise(measured, old, new, repeats)
    if leakage is not None:
        leaks = read_json(leakage)
        measured["leakage"] = without_leaks(old, new, leaks, seed=seed, resamples=resamples)
        found["details"]["leaks"] = leaks["found"]
    if ceiling is not None:
        measured["ceiling"] = reached(read_json(ceiling), old, new)
    return found


def verdict(old: dict, new: dict, *, seed: int, resamples: int) -> dict[str, Any]:
    """What `compare` returns, of records by id that hold the same questions.

    Records need `scores.exact_match` (0 or 1); what rests on a field that not all of them have is
    left out.
    """
    ids = list(old)
    right = {name: _scores(rows, ids, "exact_match") for name, rows in _pair(old, new)}
    gained = [i for i, a, b in zip(ids, right["before"], right["after"], strict=True) if b > a]
    lost = [i for i, a, b in zip(ids, right["before"], right["after"], strict=True) if b < a]
    both = int(np.sum((right["before"] == 1) & (right["after"] == 1)))
    difference = paired_difference(right["before"], right["after"], seed=seed, resamples=resamples)
    p = mcnemar_p(len(gained), len(lost))
    measured = {
        "questions": len(ids),
        **{name: _summary(rows, ids) for name, rows in _pair(old, new)},
        "difference": difference,
        "table": {
            "both_right": both,
            "gained": len(gained),
            "lost": len(lost),
            "both_wrong": len(ids) - both - len(gained) - len(lost),
        },
        "mcnemar_p": p,
        "mcnemar_midp": mcnemar_midp(len(gained), len(lost)),
        "power": power(len(ids), len(gained) + len(lost)),
    }
    rows = [*old.values(), *new.values()]
    for name in MEANS:
        if all(name in row["scores"] for row in rows):
            sides = [_scores(side, ids, name) for side in (old, new)]
            measured[f"{name}_difference"] = paired_difference(
                *sides, seed=seed, resamples=resamples
            )
    if samples := pass_rates(old, new, ids, seed=seed, resamples=resamples):
        measured["samples"] = samples
    if all("outcome" in row for row in rows):
        measured["outcomes"] = transitions(old, new, ids)
        measured["by_outcome"] = by_outcome(old, new, ids)
    if all("type" in row for row in rows):
        measured["by_type"] = grouped(old, new, ids, lambda i: str(old[i]["type"]))
    for key in ("dataset", "hops"):
        if any(row.get(key) is not None for row in old.values()):
            measured[f"by_{key}"] = grouped(old, new, ids, lambda i, key=key: str(old[i].get(key)))
    if all("turns" in row and "golden_answers" in row for row in rows):
        measured["retrieval"] = retrieval(old, new, ids)
    logger.info(
        "before %d, after %d of %d; difference %+.1f points [%+.1f, %+.1f], p = %.2g",
        measured["before"]["correct"],
        measured["after"]["correct"],
        len(ids),
        100 * difference["mean"],
        *(100 * bound for bound in difference["ci95"]),
        p,
    )
    asked = sorted(
        (i, str(row.get("question")), row.get("golden_answers")) for i, row in old.items()
    )
    return {
        "gate": "paired",
        "passed": bool(len(gained) > len(lost) and p < ALPHA),
        "measured": measured,
        "threshold": {"mcnemar_p": ALPHA, "difference": 0.0},
        "measured_on": {
            "bootstrap_resamples": resamples,
            "bootstrap_seed": seed,
            "questions_sha256": sha256_json(asked),
        },
        "details": {"gained": gained, "lost": lost},
    }


def add_noise(measured: dict[str, Any], old: dict, new: dict, repeats: Sequence[Path]) -> None:
    """Put the noise floor of two files of further passes into `measured`; nothing where they are
    empty.

    Raises:
        DataError, IntegrityError: a file is not one of such passes, or of other questions.
    """
    sides = []
    for rows, path in zip((old, new), repeats, strict=True):
        passes = read_repeats(path)
        sides.append(pass_noise(rows, passes, where=str(path)) if passes else None)
    difference = measured["difference"]["mean"]
    floor = noise_floor(*sides, questions=len(old), difference=difference)
    if floor is not None:
        measured["noise"] = floor


def without_leaks(
    old: dict, new: dict, found: Mapping[str, Any], *, seed: int, resamples: int
) -> dict[str, Any]:
    """The result without the held-out questions that a leakage check names.

    Args:
        found: `leakage.json`.

    Returns:
        {"train", "settings", "counts", "same_answer": as there, "without": {kind that occurs, and
        "any": {"questions", "before", "after": right answers, "gained", "lost", "difference",
        "mcnemar_p"}; None where no question is left}}.
    """
    without = {}
    for kind in [kind for kind, count in found["counts"].items() if count]:
        named = {leak["id"] for leak in found["found"] if kind in ("any", leak["kind"])}
        without[kind] = _result(old, new, [i for i in old if i not in named], seed, resamples)
    return {key: found[key] for key in ("train", "settings", "counts", "same_answer")} | {
        "without": without
    }


def _result(
    old: dict, new: dict, ids: Sequence[str], seed: int, resamples: int
) -> dict[str, Any] | None:
    if not ids:
        return None
    was, became = (_scores(rows, ids, "exact_match") for rows in (old, new))
    gained, lost = int((became > was).sum()), int((became < was).sum())
    return {
        "questions": len(ids),
        "before": int(was.sum()),
        "after": int(became.sum()),
        "gained": gained,
        "lost": lost,
        "difference": paired_difference(was, became, seed=seed, resamples=resamples),
        "mcnemar_p": mcnemar_p(gained, lost),
    }


def _pair(old: dict, new: dict) -> list[tuple[str, dict]]:
    return [("before", old), ("after", new)]


def _scores(rows: Mapping[str, Any], ids: Sequence[str], name: str) -> np.ndarray:
    return np.array([rows[i]["scores"][name] for i in ids], dtype=np.float64)


def _summary(rows: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Counts, rate with its Wilson interval, and means of one evaluation."""
    correct = int(_scores(rows, ids, "exact_match").sum())
    found = rate(correct, len(ids))
    summary: dict[str, Any] = {
        "correct": correct,
        "exact_match": found["rate"],
        "ci95": found["ci95"],
    }
    for name in MEANS:
        if all(name in row["scores"] for row in rows.values()):
            summary[name] = float(_scores(rows, ids, name).mean())
    have = set.intersection(*(set(row) for row in rows.values()))
    if "searches" in have:
        summary["searches"] = float(np.mean([rows[i]["searches"] for i in ids]))
    if "failed_searches" in have:
        summary["failed_searches"] = int(sum(rows[i]["failed_searches"] for i in ids))
    if "turns" in have:
        tokens = [sum(len(t["completion_ids"]) for t in rows[i]["turns"]) for i in ids]
        summary["turns"] = float(np.mean([len(rows[i]["turns"]) for i in ids]))
        summary["completion_tokens"] = float(np.mean(tokens))
    if "outcome" in have:
        summary["outcomes"] = dict(sorted(Counter(rows[i]["outcome"] for i in ids).items()))
    return summary


def check_same(old: dict, new: dict, before: Path, after: Path) -> None:
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
            mine, theirs = row["hashes"][key], new[i]["hashes"][key]
            if mine != theirs and not (key == "prompt" and None in (mine, theirs)):
                raise IntegrityError(
                    f"{before} and {after} differ for question {i!r} in {meaning}: "
                    f"{str(mine)[:12]} before, {str(theirs)[:12]} after. "
                    "Delete both record files and run again."
                )
