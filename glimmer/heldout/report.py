"""The report: one self-contained HTML page that makes no request."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from glimmer.errors import DataError
from glimmer.files import read_jsonl, write_text
from glimmer.heldout import report_evidence as evidence
from glimmer.heldout import report_figures as figures
from glimmer.heldout import report_tables as tables
from glimmer.heldout.page import asset
from glimmer.heldout.records import read_records
from glimmer.heldout.report_tables import Html, esc
from glimmer.heldout.report_transcripts import fitting

_ALPHA = 0.05
_TOGETHER = re.compile(r"\[[^]]*\]|p (?:=|&lt;) [\de.+-]*\d")
_CONTROLS = {
    "shuffled_rewards": "rewards were shuffled before they were learned from",
    "zero_advantages": "every advantage was set to zero",
}
_SECTIONS = {
    "comparison": "Before and after",
    "gates": "Gates",
    "training": "Training",
    "transcripts": "Transcripts",
    "settings": "Settings",
    "resources": "Time and memory",
    "provenance": "Provenance",
    "reproduce": "Reproduce",
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
) -> None:
    """Write the page `out`, atomically; the same inputs give the same bytes.

    Args:
        paired: verdict of `glimmer.heldout.paired.compare`.
        before, after: record files.
        metrics: metrics.jsonl of the training; it may hold no row.
        gates: name -> verdict file.
        provenance: record of `glimmer.provenance.collect`.
        config, defaults: the run's whole config, and config/config.yaml.
        benchmarks: folder of Snakemake's benchmark files; it may be missing.

    Raises:
        DataError: a record, metrics or verdict file is not what it should be.
    """
    rows = _metrics(metrics)
    plots, plotted = figures.curves(rows)
    viewed = fitting(read_records(before), read_records(after))
    parts = {
        "comparison": _comparison(paired["measured"]),
        "gates": tables.gates(gates),
        "training": _CURVES_HELP + plots if plotted["series"] else plots,
        "transcripts": _viewer(viewed),
        "settings": tables.settings(config, defaults),
        "resources": tables.benchmarks(benchmarks),
        "provenance": tables.provenance(provenance),
        "reproduce": _reproduce(provenance, config, defaults),
    }
    # What looks like half a surrogate pair cannot be written as UTF-8.
    page = _page(paired, rows, config, parts, {"curves": plotted, "transcripts": viewed})
    write_text(out, page.encode("utf-8", "replace").decode("utf-8"))


def result_sentence(
    paired: Mapping[str, Any], config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> str:
    """The result in one sentence, after one that says so if the run is a control.

    A difference is claimed only if the interval excludes 0 and the exact test is below 0.05.

    Args:
        paired: verdict of `glimmer.heldout.paired.compare`.
        config: the run's whole config.
        rows: training metrics; the last one's step is the number of steps.
    """
    measured = paired["measured"]
    questions = measured["questions"]
    old, new = measured["before"]["correct"], measured["after"]["correct"]
    low, high = measured["difference"]["ci95"]
    p = measured["mcnemar_p"]
    change = tables.points(measured["difference"]["mean"])
    interval = f"[{tables.points(low)}, {tables.points(high)}]"
    steps = int(rows[-1]["step"]) if rows else None
    when = (
        "After a training of which no step is recorded"
        if steps is None
        else f"After {steps} GRPO step{'' if steps == 1 else 's'}"
    )
    answers = f"{new} of {questions} held-out questions"
    if p >= _ALPHA or low <= 0 <= high:
        text = (
            f"{when} the model answers {answers}, {old} before: no difference that this many "
            f"questions can show ({change} points {interval}, 95 % paired bootstrap; exact "
            f"McNemar {_p(p)})."
        )
    else:
        fewer = "fewer questions than before, " if new < old else ""
        text = (
            f"{when} the model answers {fewer}{answers}, {old} before: {change} points "
            f"{interval} (95 % paired bootstrap), exact McNemar {_p(p)}."
        )
    return _control(config) + text


def _sentence(*arguments: Any) -> Html:
    """The sentence as HTML; intervals and p values are not broken over lines."""
    text = esc(result_sentence(*arguments))
    return Html(_TOGETHER.sub(r'<span class="together">\g<0></span>', text))


def _control(config: Mapping[str, Any]) -> str:
    control = (config.get("training") or {}).get("control") or "none"
    if control == "none":
        return ""
    meaning = _CONTROLS.get(control, "training was altered")
    return (
        f"This is a control run: {meaning} (training.control: {control}), so a gain here would "
        "not be learning from the reward. "
    )


def _p(value: float) -> str:
    """ "p = ..." with two digits; a p that is 0 in floating point is only known to be small."""
    return f"p = {value:.2g}" if value >= 1e-300 else "p < 1e-300"


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


def _comparison(measured: Mapping[str, Any]) -> Html:
    old, new = measured["before"], measured["after"]
    f1 = measured["f1_difference"]
    low, high = f1["ci95"]
    return Html(
        '<div class="two">'
        + figures.bars(old, new, measured["questions"])
        + tables.two_by_two(measured["table"])
        + "</div><h3>Outcomes</h3>"
        + '<div class="two">'
        + figures.flow(measured["outcomes"])
        + tables.transitions(measured["outcomes"])
        + evidence.by_outcome(measured["by_outcome"])
        + tables.means(old, new)
        + "</div><h3>Types</h3>"
        + evidence.by_type(measured["by_type"])
        + "<p>p: exact McNemar; Holm: corrected for the number of rows.</p>"
        + '<h3>Retrieval</h3><div class="two">'
        + evidence.retrieval(measured["retrieval"], measured["questions"])
        + "</div><h3>How far this carries</h3>"
        + evidence.power(measured["power"], measured["questions"])
        + f"<p>F1 changed by {tables.points(f1['mean'])} points "
        f"[{tables.points(low)}, {tables.points(high)}] (95 % paired bootstrap).</p>"
    )


_CURVES_HELP = Html(
    '<p class="js">Point at a curve, or focus it and use the arrow keys, to read a step.</p>'
)


def _viewer(viewed: Mapping[str, Any]) -> Html:
    """The viewer's frame; the script fills it from the data block."""
    totals, shown = viewed["totals"], viewed["shown"]
    others = sum(totals[kind] for kind in ("both_right", "both_wrong"))
    listed = sum(shown[kind] for kind in ("both_right", "both_wrong"))
    buttons = "".join(
        f'<button type="button" data-kind="{kind}" aria-pressed="{str(kind == "all").lower()}">'
        f"{kind.replace('_', ' ')} <span>{count}</span></button>"
        for kind, count in {**shown, "all": sum(shown.values())}.items()
    )
    return Html(
        f"<p>All {totals['gained']} questions gained and all {totals['lost']} lost are here, and "
        f"{listed} of the {others} others. Full records: <code>heldout/before.jsonl</code>, "
        "<code>heldout/after.jsonl</code>.</p>"
        "<noscript><p>The viewer needs JavaScript; the record files above do not.</p></noscript>"
        '<div id="viewer" class="js"><div class="controls"><div role="group" '
        f'aria-label="Which questions">{buttons}</div>'
        + _selects(viewed["questions"])
        + '<label>Search <input id="search" type="search" autocomplete="off" '
        'placeholder="question, answer, query or passage"></label>'
        '<span id="count" role="status"></span></div>'
        '<div class="panes"><ul id="list" aria-label="Questions"></ul>'
        '<div id="transcript" tabindex="-1" aria-label="Transcript" role="region"></div>'
        "</div></div>"
    )


def _selects(questions: Sequence[Mapping[str, Any]]) -> str:
    """Choices of outcome before, outcome after and type, of those that occur."""
    values = {
        "before": {q["before"]["outcome"] for q in questions},
        "after": {q["after"]["outcome"] for q in questions},
        "type": {q["type"] for q in questions if q["type"]},
    }
    return "".join(
        f'<label class="choice">{name.capitalize()} <select data-field="{name}">'
        '<option value="">any</option>'
        + "".join(
            f'<option value="{esc(value)}">'
            f"{esc(value if name == 'type' else value.replace('_', ' '))}</option>"
            for value in sorted(found)
        )
        + "</select></label>"
        for name, found in values.items()
    )


def _reproduce(record: Mapping[str, Any], config: Mapping, defaults: Mapping) -> Html:
    """Commands that make the same result again."""
    commit, notes = record.get("commit"), []
    lines = [f"git checkout {commit}"] if commit else []
    overlay = difference(config, defaults)
    if overlay:
        text = yaml.safe_dump(overlay, sort_keys=False, allow_unicode=True)
        lines += ["make .venv/installed", ".venv/bin/snakemake --configfile run.yaml"]
        notes.append(f"<p>with <code>run.yaml</code>:</p><pre>{esc(text.rstrip())}</pre>")
    else:
        lines.append("make run")
    if not commit:
        notes.append('<p class="warning">The commit is unknown: the code was in no git clone.</p>')
    if record.get("dirty"):
        notes.append(
            f'<p class="warning">{esc(record.get("changed"))} files differed from the commit or '
            "were not in it: the commands above may give another result.</p>"
        )
    return Html(f"<pre>{esc(chr(10).join(lines))}</pre>{''.join(notes)}")


def difference(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `config` that `defaults` does not have or has otherwise, nested alike."""
    changed: dict[str, Any] = {}
    for key, value in config.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            if inner := difference(value, default):
                changed[key] = inner
        elif key not in defaults or value != default:
            changed[key] = value
    # A plain copy: YAML's safe writer refuses subclasses of dict.
    return json.loads(json.dumps(changed, default=str))


def _page(
    paired: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    parts: Mapping[str, str],
    data: Mapping[str, Any],
) -> str:
    style, script = asset("style.css"), asset("viewer.js")
    title = esc(config["report"]["title"])
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    contents = "".join(f'<li><a href="#{key}">{name}</a></li>' for key, name in _SECTIONS.items())
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{name}</h2>{parts[key]}</section>\n'
        for key, name in _SECTIONS.items()
    )
    blocks = "".join(
        f'<script type="application/json" id="data-{name}">{_json(value)}</script>\n'
        for name, value in data.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1 dir="auto">{title}</h1>
<p class="result">{_sentence(paired, config, rows)}</p>
<nav aria-label="Contents"><ul>{contents}</ul></nav>
</header>
<main>
{body}</main>
{blocks}<script>{script}</script>
</body>
</html>
"""


def _json(value: Any) -> str:
    """JSON that cannot end its script element or open a comment in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    """The source expression that lets the page run exactly this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
