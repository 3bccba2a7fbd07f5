"""The report's figure of the held-out questions beside the training's own curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_figures import Plot, finite, px
from glimmer.heldout.report_tables import Html, esc, percent


def heldout_points(rows: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> Html:
    """Exact match of the held-out questions before the first and after the last step, with Wilson
    intervals, over the exact match of the rollouts that trained; nothing without a step.

    Args:
        rows: of metrics.jsonl.
        measured: what `glimmer.heldout.paired.compare` measured.
    """
    if not rows:
        return Html("")
    last = max(int(row["step"]) for row in rows)
    points = [(0, "before", measured["before"]), (last, "after", measured["after"])]
    line = [
        (int(row["step"]), rate)
        for row in rows
        if (rate := finite(row.get("exact_match"))) is not None
    ]
    rates = [rate for _, rate in line] + [bound for *_, row in points for bound in row["ci95"]]
    plot = Plot([0, last], rates, titles=("step", "exact match, a fraction"))
    marks, told = [], []
    for step, when, row in points:
        x, y = px(plot.x(step)), px(plot.y(row["exact_match"]))
        low, high = (px(plot.y(bound)) for bound in row["ci95"])
        interval = " to ".join(map(percent, row["ci95"]))
        told.append(f"{when}, step {step}: {percent(row['exact_match'])}, interval {interval}")
        marks.append(
            f'<path class="whisker" d="M{x} {low}V{high}"/>'
            f'<circle class="held {when}" cx="{x}" cy="{y}" r="5">'
            f"<title>{esc(told[-1])}</title></circle>"
        )
    return Html(
        f'<figure class="plot" id="heldout-points"><svg viewBox="0 0 {plot.width} {plot.height}" '
        f'role="img" aria-label="{esc("Exact match of the held-out questions. " + "; ".join(told))}'
        f'">{plot.frame()}<path class="trail" d="{plot.path(line)}"/>{"".join(marks)}</svg>'
        "<figcaption>Points: the held-out questions before and after training, with 95 % Wilson "
        "intervals. Line: the rollouts that trained, on training questions and sampled as training "
        "samples, so the two need not meet.</figcaption></figure>"
    )
