"""The report: one self-contained HTML page, and the same content as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.errors import DataError
from glimmer.files import read_json, read_jsonl, write_text
from glimmer.heldout import report_evidence as evidence
from glimmer.heldout import report_figures as figures
from glimmer.heldout import report_outcome as outcome
from glimmer.heldout import report_tables as tables
from glimmer.heldout.records import read_records
from glimmer.heldout.report_ceiling import ceiling
from glimmer.heldout.report_gates import gate_figure
from glimmer.heldout.report_gates import gates as gate_table
from glimmer.heldout.report_machine import report_json
from glimmer.heldout.report_markdown import report_markdown
from glimmer.heldout.report_page import document, unicode_only
from glimmer.heldout.report_points import curve_table, heldout_points
from glimmer.heldout.report_tables import Html, esc, together
from glimmer.heldout.report_transcripts import fitting
from glimmer.heldout.report_viewer import viewer
from glimmer.heldout.report_words import gain_sentence, tests_sentence
from glimmer.heldout.timings import read_timings, summary
from glimmer.heldout.timings import table as timing_rows

WHEN = ("before", "after")

MAX_BYTES = 9_900_000
"""Of a page; transcripts take what the rest leaves."""
_VIEWER_BYTES = 50_000  # the viewer's frame, with its choices
_SECTIONS = {
    "comparison": "Before and after",
    "gates": "Gates",
    "training": "Training",
    "transcripts": "Transcripts",
    "settings": "Settings",
    "resources": "Time and memory",
    "provenance": "Provenance",
    "reproduce": "Reproduce and cite",
}


def write_report(
    out: Path,
    *,
    paired: dict,
    before: Path,
    after: Path,
    metrics: Path,
    gates: dict[str, Path],
    provenance: dict,
    config: dict,
    defaults: dict,
    benchmarks: Path,
    json_out: Path | None = None,
    markdown_out: Path | None = None,
    piece: Callable[[int], str] | None = None,
    timings: tuple[Path, Path] | None = None,
    curve: dict | None = None,
) -> None:
    """Write the page `out`, atomically, and its content for machines; the same inputs give the
    same bytes.

    Args:
        paired: verdict of `glimmer.heldout.paired.compare`.
        before, after: record files.
        metrics: metrics.jsonl of the training; it may hold no row.
        gates: name -> verdict file.
        provenance: record of `glimmer.provenance.collect`.
        config, defaults: the run's whole config, and config/config.yaml.
        benchmarks: folder of Snakemake's benchmark files; it may be missing.
        json_out, markdown_out: where to write the content as JSON and as Markdown.
        piece: token id -> its text, for the viewer's log-probabilities; None leaves them out.
        timings: `<when>.timings.jsonl`, before and after; None leaves times of questions out.
        curve: of `glimmer.heldout.curve.heldout_curve`; None: only before and after.

    Raises:
        DataError: a record, metrics or verdict file is not what it should be.
    """
    rows = _metrics(metrics)
    timed = None if timings is None else tuple(map(read_timings, timings))
    report = report_json(
        paired,
        config,
        rows,
        {name: read_json(path) for name, path in gates.items()},
        provenance,
        defaults=defaults,
        benchmarks=tables.benchmark_rows(benchmarks),
        timings=None if timed is None else dict(zip(WHEN, map(summary, timed), strict=True)),
        curve=curve,
    )
    plots, plotted = figures.curves(rows)
    parts = {
        "comparison": _comparison(paired),
        "gates": _gates(report["gates"]),
        "training": plots,
        "transcripts": "",
        "settings": tables.settings(config, defaults),
        "resources": tables.benchmarks(report["benchmarks"]) + _timings(report["timings"]),
        "provenance": tables.provenance(provenance),
        "reproduce": _reproduce(report),
    }
    if plotted["series"]:
        parts["training"] = _training(rows, paired["measured"], plots, curve)

    def page(shown: Mapping[str, Any] | None) -> str:
        if shown is not None:
            parts["transcripts"] = viewer(shown)
        return document(
            config["report"]["title"] or config["run"],
            first=first_screen(report),
            sections={key: (name, parts[key]) for key, name in _SECTIONS.items()},
            data={"curves": plotted, "transcripts": shown},
        )

    rest = len(page(None).encode()) + _VIEWER_BYTES
    viewed = fitting(
        read_records(before),
        read_records(after),
        budget=MAX_BYTES - rest,
        piece=piece,
        timings=timed,
    )
    if json_out is not None:
        text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
        write_text(json_out, unicode_only(text + "\n"))
    if markdown_out is not None:
        write_text(markdown_out, unicode_only(report_markdown(report)))
    write_text(out, page(viewed))


def first_screen(report: Mapping[str, Any]) -> Html:
    """Sentence, noise floor, the verdict of each gate, and the questions' flow."""
    chips = "".join(
        f'<li><a href="#gates"><span class="state {_state(gate)}">{_state(gate)}</span> '
        f"{esc(name.replace('_', ' '))}</a>"
        f'<span class="figure">{esc(gate_figure(gate))}</span></li>'
        for name, gate in report["gates"].items()
    )
    failed = sum(not gate["passed"] for gate in report["gates"].values())
    verdict = f"{failed} of {len(report['gates'])} gates failed" if failed else "All gates passed"
    listed = (
        f'<div class="verdicts"><h2>{verdict}</h2><ul>{chips}</ul></div>'
        if chips
        else '<p class="warning">No gate has been measured.</p>'
    )
    outcomes = report["paired"]["measured"]["outcomes"]
    return Html(
        f'<p class="result">{together(report["sentence"])}</p>'
        f'<p class="noise">{together(report["noise"])}</p>'
        f'<div class="two">{outcome.flow(outcomes)}{listed}</div>'
    )


def _state(gate: Mapping[str, Any]) -> str:
    return "passed" if gate["passed"] else "failed"


def _metrics(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, row in read_jsonl(path):
        if not isinstance(row, dict) or not isinstance(row.get("step"), int | float):
            raise DataError(
                f'{path}, line {number}: expected one object a step with its number as "step", '
                f"found {str(row)[:60]!r}. Delete the file and run the training again."
            )
        rows.append(row)
    return rows


def _comparison(paired: Mapping[str, Any]) -> Html:
    measured = paired["measured"]
    old, new = measured["before"], measured["after"]
    groups = [
        evidence.grouped(measured[f"by_{key}"], measured, f"Exact match by {name}", name)
        for key, name in (("type", "type"), ("dataset", "data set"), ("hops", "hops"))
        if f"by_{key}" in measured
    ]
    return Html(
        '<div class="two">'
        + outcome.bars(old, new, measured["questions"])
        + tables.two_by_two(measured["table"])
        + "</div>"
        + f'<p id="tests">{together(tests_sentence(measured))}</p>'
        + evidence.differences(measured)
        + "<h3>Outcomes</h3>"
        + '<div class="two">'
        + tables.transitions(measured["outcomes"])
        + evidence.by_outcome(measured["by_outcome"])
        + "</div>"
        + f'<p id="gain">{esc(gain_sentence(measured["outcomes"]))}</p>'
        + tables.means(old, new)
        + "<h3>Types</h3>"
        + "".join(groups)
        + f"<p>{evidence.GROUPS_HELP}</p>"
        + "<h3>Retrieval</h3>"
        + evidence.retrieval(measured["retrieval"], measured)
        + ceiling(measured.get("ceiling"))
        + "<h3>Noise of evaluating again</h3>"
        + evidence.noise(measured)
        + "<h3>Held-out questions in the training set</h3>"
        + evidence.leakage(measured, paired["details"].get("leaks", ()))
        + "<h3>How far this carries</h3>"
        + evidence.power(measured["power"], measured["questions"])
    )


_CURVES_HELP = Html(
    '<p class="js">Point at a curve, or focus it and use the arrow keys, to read a step. '
    '<label class="smoothing">Smoothing <input id="smoothing" type="range" min="0" max="10" '
    'value="0"> <output for="smoothing">off</output></label></p>'
)


def _training(
    rows: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any],
    plots: Html,
    curve: Mapping[str, Any] | None,
) -> Html:
    side_by_side = heldout_points(rows, measured, curve) + figures.entropy_against_length(rows)
    asked = curve_table(curve, measured)
    return Html(f'{_CURVES_HELP}{plots}<div class="two">{side_by_side}</div>{asked}')


def _gates(gates: Mapping[str, Mapping[str, Any]]) -> Html:
    sweep = figures.recall_sweep(gates["recall"]) if "recall" in gates else ""
    return Html(gate_table(gates) + sweep)


def _timings(summaries: Mapping[str, Any] | None) -> str:
    if summaries is None:
        return ""
    caption = "A held-out question; those of a batch are answered at the same time"
    return tables.table(caption, ["", *WHEN], timing_rows(summaries), kind="figures")


def _reproduce(report: Mapping[str, Any]) -> Html:
    """Commands that make the same result again, and how to cite it."""
    how = report["reproduce"]
    parts = [f"<pre>{esc(chr(10).join(how['commands']))}</pre>"]
    if how["run.yaml"]:
        parts.append(
            f"<p>with <code>run.yaml</code>:</p><pre>{esc(how['run.yaml'].rstrip())}</pre>"
        )
    parts += [f'<p class="warning">{esc(warning)}</p>' for warning in how["warnings"]]
    parts.append(f"<h3>Cite</h3><pre>{esc(report['cite'])}</pre>")
    return Html("".join(parts))


__all__: Sequence[str] = ["first_screen", "write_report"]
