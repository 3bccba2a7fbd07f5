"""The report's figure and table of the retrieval ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glimmer.heldout.report_figures import Plot, px
from glimmer.heldout.report_tables import Html, esc, percent, table

_NAMES = {"train": "training questions", "heldout": "held-out questions"}
_TOLD = (1, 3, 5, 10, 20)


def ceiling(found: Mapping[str, Any] | None) -> Html:
    """Share of questions whose answer is in the first k passages, over k, and how much of it was
    reached; nothing where it was not measured."""
    if found is None:
        return Html("")
    ks = sorted({k for k in (*_TOLD, found["topk"], found["k"]) if k <= found["k"]})
    rows = [
        [_NAMES[name], row["questions"], *(percent(row["ceiling"][k - 1]) for k in ks)]
        for name, row in found["sets"].items()
    ]
    head = ["", "questions", *(f"first {k}" if k > 1 else "first" for k in ks)]
    caption = "The answer stands in the first passages that the question itself finds"
    shown = table(caption, head, rows, kind="figures") + f"<p>{esc(ceiling_sentence(found))}</p>"
    return Html(f'<div class="two apart">{_curve(found)}<div>{shown}</div></div>')


def ceiling_sentence(found: Mapping[str, Any]) -> str:
    """The share of the ceiling that was reached, in words."""
    reached = found["reached"]
    if not reached["questions"]:
        return f"No question has its answer in its first {found['topk']} passages."
    sides = ", ".join(
        f"{reached[name]['correct']} ({percent(reached[name]['rate'])}) {name}"
        for name in ("before", "after")
    )
    return (
        f"Of the {reached['questions']} held-out questions whose answer stands in their first "
        f"{found['topk']} passages, as many as a search returns, {sides} training were answered "
        "correctly. No model's searches are in this ceiling: a second search, or one with other "
        "words, can find more."
    )


def _curve(found: Mapping[str, Any]) -> str:
    if found["k"] < 2:
        return ""
    ks = range(1, found["k"] + 1)
    labels = [(k if k in _TOLD or k == found["k"] else "",) for k in ks]
    titles = ("first k passages", "share of questions with their answer there")
    plot = Plot([*ks], [0.0, 1.0], titles=titles, across=labels)
    parts, told = [], []
    for name, row in found["sets"].items():
        points = [*zip(ks, row["ceiling"], strict=True)]
        kind = "line" if name == "heldout" else "second"
        parts.append(f'<path class="{kind}" d="{plot.path(points)}"/>')
        if name == "heldout":
            parts += [
                f'<circle class="dot" cx="{px(plot.x(k))}" cy="{px(plot.y(value))}" r="3">'
                f"<title>first {k}: {percent(value)}</title></circle>"
                for k, value in points
            ]
        told.append(
            f"{_NAMES[name]}: {percent(row['ceiling'][0])} in the first, "
            f"{percent(row['ceiling'][-1])} in the first {found['k']}"
        )
    return (
        '<figure class="plot" id="ceiling">'
        f'<svg viewBox="0 0 {plot.width} {plot.height}" role="img" '
        f'aria-label="{esc("Retrieval ceiling. " + "; ".join(told))}">{plot.frame()}'
        f'{"".join(parts)}</svg><figcaption>Retrieval ceiling: <span class="keys"><span '
        'class="key line"></span>held-out</span> <span class="keys"><span class="key second">'
        "</span>training questions (dashed)</span></figcaption></figure>"
    )
