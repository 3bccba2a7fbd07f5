"""Several runs side by side, and training seeds pooled by question.

In: the `report.json` of each run. Runs whose settings agree in all but the run's name, the report
and `training.seed`, and that asked the same questions, are seeds of one thing: their per-question
differences are averaged over the seeds. Two intervals: over questions and seeds, which is the one
that a difference is claimed by (`glimmer.heldout.crossed`), and over questions alone, as if there
were no other seeds than these (bootstrap).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glimmer.errors import DataError
from glimmer.files import sha256_json
from glimmer.heldout.crossed import METHOD, crossed_mean
from glimmer.heldout.report_tables import flatten
from glimmer.heldout.report_words import pooled_noise, pooled_sentence
from glimmer.heldout.statistics import Z, paired_difference
from glimmer.operational import decisive

_SIDES = ("before", "after")
# Parts of a config that change no answer.
_NO_RESULT = ("run", "results", "report", "compare_runs", "cache", "cluster")


def compare_runs(
    reports: Sequence[Mapping[str, Any]], *, seed: int, resamples: int
) -> dict[str, Any]:
    """{"runs": [{"run", "sentence", "noise", "questions", "questions_sha256", "before", "after":
    right answers, "difference", "floor": of noise or None, "gained", "lost", "mcnemar_p",
    "gates": {name: passed}, "seed"}], "settings": {dotted key: [value of each run as JSON]} of
    those that differ, "pooled": [see `pool_seeds`, with "runs": their names, and in words
    "sentence" and "noise"]}.

    Args:
        reports: of `glimmer.heldout.report_machine.report_json`, at least two.
        seed, resamples: of the bootstrap over questions.

    Raises:
        DataError: fewer than two reports, two of the same run, or one of another format.
    """
    for report in reports:
        if not isinstance(report, Mapping) or report.get("format") != 1:
            raise DataError(
                "compare_runs: found a report.json of another format, expected format 1. Make the "
                "run's report again with this version."
            )
    names = [report["run"] for report in reports]
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(
            f"compare_runs: found the runs {', '.join(names) or 'none'}, expected two or more "
            "different ones. Finish another run, or name them in compare_runs.runs."
        )
    flat = [
        {".".join(filter(None, key)): value for key, value in flatten(report["config"]).items()}
        for report in reports
    ]
    differing = {
        key: [settings.get(key, "not set") for settings in flat]
        for key in dict.fromkeys(key for settings in flat for key in settings)
        if len({settings.get(key) for settings in flat}) > 1 and key not in ("run", "report.title")
    }
    # One run a seed: a second of the same seed is the same again, and says nothing of others.
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for report in reports:
        group = groups.setdefault(_same_but_seed(report), {})
        group.setdefault(report["config"]["training"]["seed"], report)
    return {
        "runs": [_run(report) for report in reports],
        "settings": differing,
        "pooled": [
            _pool(list(group.values()), seed=seed, resamples=resamples)
            for group in groups.values()
            if len(group) > 1 and _questions(group) > 1  # one question has no variance
        ],
    }


def _questions(group: Mapping[int, Mapping[str, Any]]) -> int:
    return next(iter(group.values()))["paired"]["measured"]["questions"]


def _pool(group: Sequence[Mapping[str, Any]], *, seed: int, resamples: int) -> dict[str, Any]:
    found = pool_seeds([report["paired"] for report in group], seed=seed, resamples=resamples)
    names = [report["run"] for report in group]
    words = {"sentence": pooled_sentence(names, found), "noise": pooled_noise(found)}
    return {"runs": names} | words | found


def pool_seeds(
    verdicts: Sequence[Mapping[str, Any]], *, seed: int, resamples: int
) -> dict[str, Any]:
    """Differences of several seeds, pooled by question.

    Args:
        verdicts: `paired.json` of each seed, over the same questions; two or more.
        seed, resamples: of the bootstrap over questions.

    Returns:
        {"seeds", "questions", "before", "after": mean right answers, "difference": {"mean",
        "ci95": over questions and seeds, "p", "method", "standard_error", "degrees_of_freedom",
        "components": see `glimmer.heldout.crossed`, "ci95_questions": over questions, of these
        seeds, "sd_seeds": standard deviation of the seeds' differences}, "gained_in", "lost_in":
        {seeds: questions gained, or lost, in so many of them}, "floor": how much evaluating the
        same weights again moves the mean difference in 95 % of cases, a fraction; None if not
        measured, "floor_at_most": by the upper ends of the changed questions' intervals}. The
        floor takes the passes before training for one evaluation that all seeds share, which is the
        larger of the two cases.
    """
    questions = verdicts[0]["measured"]["questions"]
    changes = [
        dict.fromkeys(v["details"]["gained"], 1.0) | dict.fromkeys(v["details"]["lost"], -1.0)
        for v in verdicts
    ]
    changed = sorted({i for change in changes for i in change})
    table = np.zeros((len(verdicts), questions))
    for row, change in zip(table, changes, strict=True):
        row[: len(changed)] = [change.get(i, 0.0) for i in changed]
    found = crossed_mean(table)
    means = table.mean(axis=0)
    over_questions = paired_difference(np.zeros(questions), means, seed=seed, resamples=resamples)
    measured = [v["measured"] for v in verdicts]
    noises = [m.get("noise") for m in measured]
    floor = at_most = None
    if all(noises):
        floor, at_most = (
            _floor(noises, rate, questions) for rate in ("pair_rate", "pair_rate_at_most")
        )
    return {
        "seeds": len(verdicts),
        "questions": questions,
        "before": float(np.mean([m["before"]["correct"] for m in measured])),
        "after": float(np.mean([m["after"]["correct"] for m in measured])),
        "difference": {
            "mean": float(found["mean"]),
            "ci95": [float(found["low"]), float(found["high"])],
            "p": float(found["p"]),
            "method": METHOD,
            "standard_error": float(found["standard_error"]),
            "degrees_of_freedom": float(found["degrees_of_freedom"]),
            "components": {name: float(sd) for name, sd in found["components"].items()},
            "ci95_questions": over_questions["ci95"],
            "sd_seeds": float(table.mean(axis=1).std(ddof=1)),
        },
        "floor": floor,
        "floor_at_most": at_most,
        "gained_in": _times(table > 0),
        "lost_in": _times(table < 0),
    }


def _floor(noises: Sequence[Mapping[str, Any]], rate: str, questions: int) -> float:
    before, after = (np.mean([noise[side][rate] for noise in noises]) for side in _SIDES)
    return Z * float(np.sqrt((before + after / len(noises)) / 2 / questions))


def _times(happened: np.ndarray) -> dict[str, int]:
    """How many questions it happened to in so many seeds, those without any left out."""
    counts = Counter(happened.sum(axis=0).tolist())
    return {str(times): counts[times] for times in sorted(counts) if times}


def _same_but_seed(report: Mapping[str, Any]) -> str:
    """Equal for runs that are seeds of one thing; what changes no result may differ."""
    config = {
        name: decisive(part) if isinstance(part, Mapping) else part
        for name, part in report["config"].items()
        if name not in _NO_RESULT
    }
    config["training"] = {k: v for k, v in config["training"].items() if k != "seed"}
    return sha256_json([config, report["paired"]["measured_on"]["questions_sha256"]])


def _run(report: Mapping[str, Any]) -> dict[str, Any]:
    measured = report["paired"]["measured"]
    noise = measured.get("noise")
    return {
        "run": report["run"],
        "seed": report["config"]["training"]["seed"],
        "sentence": report["sentence"],
        "noise": report["noise"],
        "questions": measured["questions"],
        "questions_sha256": report["paired"]["measured_on"]["questions_sha256"],
        "before": measured["before"]["correct"],
        "after": measured["after"]["correct"],
        "difference": measured["difference"],
        "floor": noise["difference"] if noise else None,
        "gained": measured["table"]["gained"],
        "lost": measured["table"]["lost"],
        "mcnemar_p": measured["mcnemar_p"],
        "gates": {name: gate["passed"] for name, gate in report["gates"].items()},
        "commit": report["provenance"].get("commit"),
    }
