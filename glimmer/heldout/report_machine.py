"""The report's content as one JSON value and as Markdown, for machines and pull requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_ceiling import ceiling_sentence
from glimmer.heldout.report_evidence import p_value
from glimmer.heldout.report_gates import gate_figure
from glimmer.heldout.report_reproduce import citation, difference, recipe
from glimmer.heldout.report_tables import number, percent, points
from glimmer.heldout.report_words import (
    floor_points,
    gain_sentence,
    noise_sentence,
    result_sentence,
)

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
) -> dict[str, Any]:
    """{"format", "run", "title", "sentence", "noise", "gain": sentences, "paired", "gates",
    "training": {"steps", "first", "last"} or None, "benchmarks", "timings", "config", "changed":
    settings that differ from the default, "reproduce", "cite", "provenance"}.

    Args:
        paired: verdict of `glimmer.heldout.paired.compare`.
        config: the run's whole config.
        rows: training metrics; the first and last one are kept.
        gates: name -> verdict.
        provenance: record of `glimmer.provenance.collect`.
        defaults: config/config.yaml; the run's own config if None.
        benchmarks: of `glimmer.heldout.report_tables.benchmark_rows`.
        timings: of `glimmer.heldout.timings.summary`, for "before" and "after".
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
        "benchmarks": [dict(row) for row in benchmarks],
        "timings": timings,
        "config": dict(config),
        "changed": difference(config, defaults),
        "reproduce": recipe(provenance, config, defaults),
        "cite": citation(title, config["run"], provenance),
        "provenance": dict(provenance),
    }


def report_markdown(report: Mapping[str, Any]) -> str:
    """What `report_json` returns as a page of Markdown."""
    found = report["paired"]["measured"]
    counts = found["table"]
    right, gained = counts["both_right"], counts["gained"]
    lost, wrong = counts["lost"], counts["both_wrong"]
    parts = [
        f"# {plain(report['title'])}",
        plain(report["sentence"]),
        plain(report["noise"]),
        markdown_table(
            ["", "right after", "wrong after"],
            [["right before", right, lost], ["wrong before", gained, wrong]],
        ),
        "## Gates",
    ]
    rows = [
        [name, "passed" if gate["passed"] else "failed", gate_figure(gate)]
        for name, gate in report["gates"].items()
    ]
    head = ["gate", "verdict", "measured"]
    parts.append(markdown_table(head, rows) if rows else "None was measured.")
    parts += [*_outcomes(found), plain(report["gain"])]
    for key, name in (("type", "type"), ("dataset", "data set"), ("hops", "hops")):
        if f"by_{key}" in found:
            parts += [f"## By {name}", _groups(found[f"by_{key}"], found, name)]
    parts += [*_samples(found), *_retrieval(found), *_leakage(found)]
    if rows := [
        [row["rule"], number(row["seconds"]), number(row["max_rss_mb"])]
        for row in report["benchmarks"]
    ]:
        parts += [
            "## Time and memory",
            markdown_table(["rule", "seconds", "peak memory, MB"], rows),
        ]
    how = report["reproduce"]
    parts += ["## Reproduce", _code("\n".join(how["commands"]))]
    if how["run.yaml"]:
        parts += ["with `run.yaml`:", _code(how["run.yaml"].rstrip())]
    parts += [plain(warning) for warning in how["warnings"]]
    parts += ["## Cite", _code(report["cite"])]
    parts += ["## Provenance", f"Commit {plain(report['provenance'].get('commit') or 'unknown')}."]
    return "\n\n".join(parts) + "\n"


def _outcomes(found: Mapping[str, Any]) -> list[str]:
    table = found.get("outcomes")
    if not table:
        return []
    names = sorted({*table, *(became for row in table.values() for became in row)})
    rows = [[was, *(table.get(was, {}).get(became, 0) for became in names)] for was in names]
    return ["## Outcome before (rows) and after (columns)", markdown_table(["", *names], rows)]


def _groups(groups: Mapping[str, Any], found: Mapping[str, Any], name: str) -> str:
    rows = [
        [
            kind,
            group["questions"],
            percent(group["before"]),
            percent(group["after"]),
            points(group["after"] - group["before"]),
            floor_points(found, group["questions"]),
            p_value(group["holm_p"]),
        ]
        for kind, group in groups.items()
    ]
    return markdown_table(
        [name, "questions", "before", "after", "points", "noise floor", "p, Holm"], rows
    )


def _samples(found: Mapping[str, Any]) -> list[str]:
    if "samples" not in found:
        return []
    rows = [
        [
            f"pass@{k}",
            percent(row["before"]),
            percent(row["after"]),
            _change(row["difference"]),
            "not measured" if row["noise"] is None else f"±{100 * row['noise']:.1f}",
        ]
        for k, row in found["samples"]["pass_at"].items()
    ]
    head = ["", "before", "after", "points", "noise floor"]
    return [f"## {found['samples']['samples']} samples a question", markdown_table(head, rows)]


def _retrieval(found: Mapping[str, Any]) -> list[str]:
    if "retrieval" not in found:
        return []
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
    return ["## Retrieval", markdown_table(head, rows), *_ceiling(found.get("ceiling"))]


def _ceiling(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    rows = [
        [
            name,
            row["questions"],
            *(percent(row["ceiling"][k - 1]) for k in (1, found["topk"], found["k"])),
        ]
        for name, row in found["sets"].items()
    ]
    head = [
        "answer in the passages of",
        "questions",
        "first",
        f"first {found['topk']}",
        f"first {found['k']}",
    ]
    return [markdown_table(head, rows), plain(ceiling_sentence(found))]


def _leakage(found: Mapping[str, Any]) -> list[str]:
    if "leakage" not in found:
        return []
    leaks = found["leakage"]
    rows = []
    for kind, count in leaks["counts"].items():
        row = leaks["without"].get(kind)
        result = (
            [
                f"{row['before']} → {row['after']} of {row['questions']}",
                _change(row["difference"]),
                floor_points(found, row["questions"]),
            ]
            if row
            else ["–"] * 3
        )
        rows.append([kind, count, leaks["same_answer"][kind], *result])
    head = ["kind", "questions", "same answer", "result without them", "points", "noise floor"]
    return ["## Held-out questions in the training set", markdown_table(head, rows)]


def _change(difference: Mapping[str, Any]) -> str:
    low, high = difference["ci95"]
    return f"{points(difference['mean'])} [{points(low)}, {points(high)}]"


def markdown_table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A table whose cells are plain text."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(plain(cell) for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    """Text as an indented block, which nothing in it can end."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def plain(value: Any) -> str:
    """Text that is neither markup nor HTML nor more than one line."""
    text = " ".join(str(value).split())
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return text
