"""The report's content as Markdown, for pull requests, issues and machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_ceiling import ceiling_sentence
from glimmer.heldout.report_figures import CURVES
from glimmer.heldout.report_gates import gate_figure
from glimmer.heldout.report_points import CURVE_HEAD, CURVE_HELP, curve_rows
from glimmer.heldout.report_tables import flatten, number, percent, points
from glimmer.heldout.report_words import floor_points, p_value, power_sentence, tests_sentence
from glimmer.heldout.timings import table as timing_rows

_WHEN = ("before", "after")


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
        plain(tests_sentence(found)),
        "## Gates",
    ]
    rows = [
        [name, "passed" if gate["passed"] else "failed", gate_figure(gate)]
        for name, gate in report["gates"].items()
    ]
    head = ["gate", "verdict", "measured"]
    parts.append(markdown_table(head, rows) if rows else "None was measured.")
    parts += [*_scores(found), *_outcomes(found), plain(report["gain"]), *_by_outcome(found)]
    for key, name in (("type", "type"), ("dataset", "data set"), ("hops", "hops")):
        if f"by_{key}" in found:
            parts += [f"## By {name}", _groups(found[f"by_{key}"], found, name)]
    parts += [*_retrieval(found), *_noise(found), *_leakage(found)]
    parts += [plain(power_sentence(found["power"], found["questions"])), *_training(report)]
    if report["curve"] is not None:
        rows = curve_rows(report["curve"], found)
        parts += ["## Held-out questions by step", markdown_table(CURVE_HEAD, rows)]
        parts.append(plain(CURVE_HELP))
    if rows := [
        [".".join(filter(None, key)), value] for key, value in flatten(report["changed"]).items()
    ]:
        parts += ["## Settings that differ", markdown_table(["setting", "this run"], rows)]
    if rows := [
        [row["rule"], number(row["seconds"]), number(row["max_rss_mb"])]
        for row in report["benchmarks"]
    ]:
        parts += [
            "## Time and memory",
            markdown_table(["rule", "seconds", "peak memory, MB"], rows),
        ]
    if report["timings"] is not None:
        rows = [[number(cell) for cell in row] for row in timing_rows(report["timings"])]
        parts += ["## A held-out question", markdown_table(["", *_WHEN], rows)]
    how = report["reproduce"]
    parts += ["## Reproduce", _code("\n".join(how["commands"]))]
    if how["run.yaml"]:
        parts += ["with `run.yaml`:", _code(how["run.yaml"].rstrip())]
    parts += [plain(warning) for warning in how["warnings"]]
    parts += ["## Cite", _code(report["cite"])]
    parts += ["## Provenance", *_provenance(report["provenance"])]
    return "\n\n".join(parts) + "\n"


def _scores(found: Mapping[str, Any]) -> list[str]:
    """Means with intervals and noise floors; of several samples a question too."""
    noise = found.get("noise") or {}
    rows = [
        [
            label,
            *(percent(found[when][key]) for when in _WHEN),
            _change(found[name]),
            _floor(noise.get(name)),
        ]
        for key, label, name in (
            ("exact_match", "exact match", "difference"),
            ("f1", "F1", "f1_difference"),
            ("contains", "contains", "contains_difference"),
        )
        if name in found
    ]
    samples = found.get("samples")
    for k, row in samples["pass_at"].items() if samples else ():
        rows.append(
            [
                f"pass@{k} of {samples['samples']}",
                percent(row["before"]),
                percent(row["after"]),
                _change(row["difference"]),
                _floor(row["noise"]),
            ]
        )
    head = ["", *_WHEN, "points, 95 % interval", "noise floor"]
    return ["## Scores", markdown_table(head, rows)]


def _floor(fraction: float | None) -> str:
    return "not measured" if fraction is None else f"±{100 * fraction:.1f}"


def _by_outcome(found: Mapping[str, Any]) -> list[str]:
    rows = [
        [name, group["before"], group["after"], p_value(group["holm_p"])]
        for name, group in found.get("by_outcome", {}).items()
    ]
    return [markdown_table(["outcome", *_WHEN, "p, Holm"], rows)] if rows else []


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


def _noise(found: Mapping[str, Any]) -> list[str]:
    noise = found.get("noise")
    if noise is None:
        return []
    rows = [
        [
            when,
            noise[when]["passes"],
            noise[when]["questions"],
            ", ".join(map(str, noise[when]["correct"])),
            noise[when]["changed"],
            noise[when]["other_tokens"],
        ]
        for when in _WHEN
    ]
    head = ["", "passes", "questions", "right, pass by pass", "changed", "other tokens"]
    return ["## The same weights evaluated again", markdown_table(head, rows)]


def _training(report: Mapping[str, Any]) -> list[str]:
    training = report["training"]
    if training is None:
        return []
    ends = training["first"], training["last"]
    rows = [
        [name, *(number(row.get(key)) for row in ends)]
        for key, name in CURVES.items()
        if any(row.get(key) is not None for row in ends)
    ]
    head = ["", *(f"step {int(row['step'])}" for row in ends)]
    return ["## Training", markdown_table(head, rows)]


def _provenance(record: Mapping[str, Any]) -> list[str]:
    machine = record.get("machine") or {}
    facts = [
        ["commit", record.get("commit") or "unknown"],
        ["lock", (record.get("lock") or {}).get("sha256") or "unknown"],
        ["python", record.get("python")],
        *([name, version or "not installed"] for name, version in record["packages"].items()),
        *([key, machine[key]] for key in ("platform", "cpu", "cores") if key in machine),
        ["GPUs", ", ".join(map(str, machine.get("gpus") or [])) or "none"],
        *([f"seed of {name}", seed] for name, seed in (record.get("seeds") or {}).items()),
    ]
    files = [[name, file["sha256"]] for name, file in (record.get("files") or {}).items()]
    return [
        markdown_table(["", ""], facts),
        markdown_table(["file", "sha256"], files) if files else "No file was hashed.",
    ]


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
