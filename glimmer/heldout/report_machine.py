"""The report's content as one JSON value, for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_reproduce import citation, difference, recipe
from glimmer.heldout.report_words import gain_sentence, noise_sentence, result_sentence

FORMAT = 1
_GATE = ("passed", "measured", "threshold", "measured_on", "details")


def report_json(
    paired: Mapping[str, Any],
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    gates: Mapping[str, Mapping[str, Any]],
    provenance: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    benchmarks: Sequence[Mapping[str, Any]] = (),
    timings: Mapping[str, Any] | None = None,
    curve: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """{"format", "run", "title", "sentence", "noise", "gain": sentences, "paired", "gates",
    "training": {"steps", "first", "last"} or None, "curve", "benchmarks", "timings", "config",
    "changed": settings that differ from the default, "reproduce", "cite", "provenance"}.

    Args:
        paired: verdict of `glimmer.heldout.paired.compare`.
        config: the run's whole config.
        rows: training metrics; the first and last one are kept.
        gates: name -> verdict.
        provenance: record of `glimmer.provenance.collect`.
        defaults: config/config.yaml; the run's own config if None.
        benchmarks: of `glimmer.heldout.report_tables.benchmark_rows`.
        timings: of `glimmer.heldout.timings.summary`, for "before" and "after".
        curve: of `glimmer.heldout.curve.heldout_curve`.
    """
    defaults = config if defaults is None else defaults
    title = config["report"]["title"] or config["run"]
    return {
        "format": FORMAT,
        "run": config["run"],
        "title": title,
        "sentence": result_sentence(paired, config, rows),
        "noise": noise_sentence(paired["measured"]),
        "gain": gain_sentence(paired["measured"]["outcomes"]),
        "paired": dict(paired),
        "gates": {
            name: {key: verdict[key] for key in _GATE if key in verdict}
            for name, verdict in gates.items()
        },
        "training": {"steps": len(rows), "first": rows[0], "last": rows[-1]} if rows else None,
        "curve": curve,
        "benchmarks": [dict(row) for row in benchmarks],
        "timings": timings,
        "config": dict(config),
        "changed": difference(config, defaults),
        "reproduce": recipe(provenance, config, defaults),
        "cite": citation(title, config["run"], provenance),
        "provenance": dict(provenance),
    }
