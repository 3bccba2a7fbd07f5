"""Several runs side by side, and training seeds pooled by question.

In: the `report.json` of each run. Runs whose settings agree in all but the run's name, the report
and `training.seed`, and that asked the same questions, are seeds of one thing: their per-question
differences are averaged over the seeds. Two intervals: over questions alone (these seeds are all
there is), and over questions and seeds, both drawn anew (pigeonhole bootstrap, Owen 2007, "The
pigeonhole bootstrap", Annals of Applied Statistics 1; somewhat wide). The p is that of a test by
random signs over questions: without an effect a question's mean difference is as likely negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glimmer.errors import DataError
from glimmer.files import sha256_json
from glimmer.heldout.report_tables import flatten
from glimmer.heldout.report_words import pooled_sentence
from glimmer.heldout.statistics import Z

_BLOCK = 1000
_SIDES = ("before", "after")
# Parts of a config that change no answer.
_NO_RESULT = ("run", "results", "report", "compare_runs", "cache", "cluster")


def compare_runs(
    reports: Sequence[Mapping[str, Any]], *, seed: int, resamples: int
) -> dict[str, Any]:
    """{"runs": [{"run", "sentence", "noise", "questions", "questions_sha256", "before", "after":
    right answers, "difference", "floor": of noise or None, "gained", "lost", "mcnemar_p",
    "gates": {name: passed}, "seed"}], "settings": {dotted key: [value of each run as JSON]} of
    those that differ, "pooled": [see `pool_seeds`, with "runs": their names and "sentence"]}.

    Args:
        reports: of `glimmer.heldout.report_machine.report_json`, at least two.
        seed, resamples: of bootstrap and test.

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
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for report in reports:
        groups.setdefault(_same_but_seed(report), []).append(report)
    return {
        "runs": [_run(report) for report in reports],
        "settings": differing,
        "pooled": [
            _pool(group, seed=seed, resamples=resamples)
            for group in groups.values()
            if len({report["config"]["training"]["seed"] for report in group}) > 1
        ],
    }


def _pool(group: Sequence[Mapping[str, Any]], *, seed: int, resamples: int) -> dict[str, Any]:
    found = pool_seeds([report["paired"] for report in group], seed=seed, resamples=resamples)
    names = [report["run"] for report in group]
    return {"runs": names, "sentence": pooled_sentence(names, found)} | found


def pool_seeds(
    verdicts: Sequence[Mapping[str, Any]], *, seed: int, resamples: int
) -> dict[str, Any]:
    """Differences of several seeds, pooled by question.

    Args:
        verdicts: `paired.json` of each seed, over the same questions.

    Returns:
        {"seeds", "questions", "before", "after": mean right answers, "difference": {"mean",
        "ci95": over questions, "ci95_seeds": over questions and seeds, "sd_seeds": standard
        deviation of the seeds' differences}, "sign_flip_p" (1 / (1 + "resamples") if no draw gave
        as much), "gained_in", "lost_in": {seeds: questions gained, or lost, in so many of them},
        "floor": how much evaluating the same
        weights again moves the mean difference in 95 % of cases, a fraction; None if not measured}.
        The floor takes the passes before training for one evaluation that all seeds share, which
        is the larger of the two cases.
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
    means = table.mean(axis=0)
    rng = np.random.default_rng(seed)
    over_questions, over_both, extreme = [], [], 0
    for start in range(0, resamples, _BLOCK):
        rows = min(_BLOCK, resamples - start)
        drawn = rng.integers(0, questions, size=(rows, questions))
        over_questions.append(means[drawn].mean(axis=1))
        # How often each seed and each question was drawn: their products weigh the table's cells.
        seeds = rng.multinomial(len(table), np.full(len(table), 1 / len(table)), size=rows)
        weights = np.stack([np.bincount(d, minlength=questions) for d in drawn])
        over_both.append(((seeds @ table) * weights).sum(axis=1) / (len(table) * questions))
        signs = rng.choice([-1.0, 1.0], size=(rows, len(changed)))
        sums = np.abs(signs @ means[: len(changed)])
        extreme += int((sums >= abs(means.sum()) - 1e-9).sum())
    intervals = [
        np.quantile(np.concatenate(d), [0.025, 0.975]) for d in (over_questions, over_both)
    ]
    measured = [v["measured"] for v in verdicts]
    noises = [m.get("noise") for m in measured]
    floor = None
    if all(noises):
        moved = [np.mean([noise[side]["pair_rate"] for noise in noises]) for side in _SIDES]
        floor = Z * float(np.sqrt((moved[0] + moved[1] / len(verdicts)) / 2 / questions))
    return {
        "seeds": len(verdicts),
        "questions": questions,
        "before": float(np.mean([m["before"]["correct"] for m in measured])),
        "after": float(np.mean([m["after"]["correct"] for m in measured])),
        "difference": {
            "mean": float(means.mean()),
            "ci95": [float(bound) for bound in intervals[0]],
            "ci95_seeds": [float(bound) for bound in intervals[1]],
            "sd_seeds": float(table.mean(axis=1).std(ddof=1)) if len(table) > 1 else None,
        },
        "sign_flip_p": (1 + extreme) / (1 + resamples),
        "resamples": resamples,
        "floor": floor,
        "gained_in": _times(table > 0),
        "lost_in": _times(table < 0),
    }


def _times(happened: np.ndarray) -> dict[str, int]:
    """How many questions it happened to in so many seeds, those without any left out."""
    counts = Counter(happened.sum(axis=0).tolist())
    return {str(times): counts[times] for times in sorted(counts) if times}


def _same_but_seed(report: Mapping[str, Any]) -> str:
    """Equal for runs that are seeds of one thing."""
    config = {k: v for k, v in report["config"].items() if k not in _NO_RESULT}
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
