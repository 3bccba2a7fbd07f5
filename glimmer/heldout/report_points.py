"""The report's figure and table of the held-out questions beside the training's own curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_figures import Plot, finite, px
from glimmer.heldout.report_tables import Html, esc, percent, points, table
from glimmer.heldout.report_words import floor_points, p_value

CURVE_HEAD = (
    "step",
    "right",
    "share",
    "95 % Wilson",
    "points from before",
    "95 % paired bootstrap",
    "noise floor",
    "gained",
    "lost",
    "p",
    "p, Holm",
)
CURVE_HELP = (
    "Every checkpoint that training kept, asked the same questions with the same settings, each "
    "paired with before; p: exact McNemar, Holm: corrected for the number of steps. To choose a "
    "checkpoint by these points is to train on these questions: its result needs others."
)


def heldout_points(
    rows: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any],
    curve: Mapping[str, Any] | None = None,
) -> Html:
    """Exact match of the held-out questions before the first and after the last step, and of the
    steps between that a curve has, with Wilson intervals, over the exact match of the rollouts that
    trained; nothing without a step.

    Args:
        rows: of metrics.jsonl.
        measured: what `glimmer.heldout.paired.compare` measured.
        curve: of `glimmer.heldout.curve.heldout_curve`.
    """
    if not rows:
        return Html("")
    last = max(int(row["step"]) for row in rows)
    held = [
        (0, "before", measured["before"]),
        *((int(row["step"]), "after", row) for row in (curve or {"points": []})["points"][1:-1]),
        (last, "after", measured["after"]),
    ]
    line = [
        (int(row["step"]), rate)
        for row in rows
        if (rate := finite(row.get("exact_match"))) is not None
    ]
    rates = [rate for _, rate in line] + [bound for *_, row in held for bound in row["ci95"]]
    plot = Plot([0, last], rates, titles=("step", "exact match, a fraction"))
    marks, told = [], []
    for step, when, row in held:
        x, y = px(plot.x(step)), px(plot.y(row["exact_match"]))
        low, high = (px(plot.y(bound)) for bound in row["ci95"])
        interval = " to ".join(map(percent, row["ci95"]))
        told.append(f"{when}, step {step}: {percent(row['exact_match'])}, interval {interval}")
        marks.append(
            f'<path class="whisker" d="M{x} {low}V{high}"/>'
            f'<circle class="held {when}" cx="{x}" cy="{y}" r="5">'
            f"<title>{esc(told[-1])}</title></circle>"
        )
    which = "before and after training" if curve is None else "by step"
    return Html(
        f'<figure class="plot" id="heldout-points"><svg viewBox="0 0 {plot.width} {plot.height}" '
        f'role="img" aria-label="{esc("Exact match of the held-out questions. " + "; ".join(told))}'
        f'">{plot.frame()}<path class="trail" d="{plot.path(line)}"/>{"".join(marks)}</svg>'
        f"<figcaption>Points: the held-out questions {which}, with 95 % Wilson "
        "intervals. Line: the rollouts that trained, on training questions and sampled as training "
        "samples, so the two need not meet.</figcaption></figure>"
    )


def curve_rows(curve: Mapping[str, Any], measured: Mapping[str, Any]) -> list[list[Any]]:
    """A line a point, as text, under `CURVE_HEAD`."""
    rows = []
    for point in curve["points"]:
        bounds = "–".join(f"{100 * bound:.1f}" for bound in point["ci95"]) + " %"
        row = [point["step"], point["correct"], percent(point["exact_match"]), bounds]
        if "difference" in point:
            low, high = map(points, point["difference"]["ci95"])
            row += [points(point["difference"]["mean"]), f"[{low}, {high}]", floor_points(measured)]
            row += [point["gained"], point["lost"]]
            row += [p_value(point["mcnemar_p"]), p_value(point["holm_p"])]
        rows.append(row + ["–"] * (len(CURVE_HEAD) - len(row)))
    return rows


def curve_table(curve: Mapping[str, Any] | None, measured: Mapping[str, Any]) -> Html:
    """The points as a table; nothing without a curve."""
    if curve is None:
        return Html("")
    rows = curve_rows(curve, measured)
    shown = table("Held-out questions by step", CURVE_HEAD, rows, kind="figures")
    return Html(f"{shown}<p>{esc(CURVE_HELP)}</p>")
