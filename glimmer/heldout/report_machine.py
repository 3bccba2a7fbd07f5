"""The report's result as Markdown and as one JSON value, for machines and for pull requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report import result_sentence
from glimmer.heldout.report_evidence import p_value
from glimmer.heldout.report_tables import percent, points


def report_json(
    paired: Mapping[str, Any],
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    gates: Mapping[str, Mapping[str, Any]],
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """{"title", "sentence", "paired", "gates", "training", "config", "provenance"}.

    Args:
        paired: verdict of `glimmer.heldout.paired.compare`.
        config: the run's whole config.
        rows: training metrics; the first and last one are kept.
        gates: name -> verdict.
        provenance: record of `glimmer.provenance.collect`.
    """
    return {
        "title": config["report"]["title"],
        "sentence": result_sentence(paired, config, rows),
        "paired": dict(paired),
        "gates": {
            name: {key: verdict[key] for key in ("passed", "measured", "threshold", "measured_on")}
            for name, verdict in gates.items()
        },
        "training": {"steps": len(rows), "first": rows[0], "last": rows[-1]} if rows else None,
        "config": dict(config),
        "provenance": dict(provenance),
    }


def report_markdown(report: Mapping[str, Any]) -> str:
    """What `report_json` returns as a page of Markdown: sentence, tables, gates, commit."""
    found = report["paired"]["measured"]
    counts = found["table"]
    parts = [f"# {_plain(report['title'])}", _plain(report["sentence"])]
    right, gained = counts["both_right"], counts["gained"]
    lost, wrong = counts["lost"], counts["both_wrong"]
    parts.append(
        _table(
            ["", "right after", "wrong after"],
            [["right before", right, lost], ["wrong before", gained, wrong]],
        )
    )
    if "by_type" in found:
        rows = [
            [
                kind,
                group["questions"],
                percent(group["before"]),
                percent(group["after"]),
                points(group["after"] - group["before"]),
                p_value(group["holm_p"]),
            ]
            for kind, group in found["by_type"].items()
        ]
        head = ["type", "questions", "before", "after", "points", "p, Holm"]
        parts += ["## Types", _table(head, rows)]
    if "retrieval" in found:
        rows = [
            [
                name,
                percent(side["ceiling"]),
                f"{side['correct_found']} of {side['answer_found']}",
                f"{side['correct_not_found']} of {found['questions'] - side['answer_found']}",
            ]
            for name, side in ((n, found["retrieval"][n]) for n in ("before", "after"))
        ]
        head = ["", "retrieval ceiling", "right if found", "right if not found"]
        parts += ["## Retrieval", _table(head, rows)]
    rows = [
        [name, "passed" if gate["passed"] else "failed"] for name, gate in report["gates"].items()
    ]
    parts += ["## Gates", _table(["gate", "verdict"], rows) if rows else "None was measured."]
    parts += ["## Provenance", f"Commit {_plain(report['provenance'].get('commit') or 'unknown')}."]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines)


def _plain(value: Any) -> str:
    """Text that is neither markup nor HTML nor more than one line."""
    text = " ".join(str(value).split())
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return text
