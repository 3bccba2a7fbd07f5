"""The report's figures of the result: rates with intervals, and the flow of outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_figures import px
from glimmer.heldout.report_tables import Html, esc, percent
from glimmer.search_r1.scoring import OUTCOMES

_WIDTH = 360  # of a figure: a phone's page, so that text keeps its size there


def bars(before: Mapping[str, Any], after: Mapping[str, Any], questions: int) -> Html:
    """Exact match before and after as bars, with Wilson intervals as whiskers and in figures."""
    left, width = 50, 190
    parts, told = [], []
    for i, (name, row) in enumerate((("before", before), ("after", after))):
        y = 6 + 58 * i
        low, high = (left + width * bound for bound in row["ci95"])
        middle = y + 23
        interval = "–".join(f"{100 * bound:.1f}" for bound in row["ci95"]) + " %"
        rate = f"{row['correct']} of {questions}, {percent(row['exact_match'])}"
        told.append(f"{name}: {rate}, interval {interval}")
        parts.append(
            f'<text class="name" x="{left - 8}" y="{middle + 5}" text-anchor="end">{name}</text>'
            f'<rect class="track" x="{left}" y="{middle - 15}" width="{width}" height="30"/>'
            f'<rect class="{name}" x="{left}" y="{middle - 15}" height="30" '
            f'width="{px(width * row["exact_match"])}"/>'
            f'<path class="whisker" d="M{px(low)} {middle}H{px(high)}'
            f'M{px(low)} {middle - 6}v12M{px(high)} {middle - 6}v12"/>'
            f'<text class="value" x="{left + width + 8}" y="{middle - 8}">'
            f"{percent(row['exact_match'])}</text>"
            f'<text class="count" x="{left + width + 8}" y="{middle + 7}">'
            f"{row['correct']:,} of {questions:,}</text>"
            f'<text class="count" x="{left + width + 8}" y="{middle + 21}">{interval}</text>'
        )
    for tick in (0, 50, 100):
        x = left + width * tick / 100
        parts.append(f'<text class="tick" x="{px(x)}" y="126" text-anchor="middle">{tick} %</text>')
    return Html(
        f'<figure class="bars"><svg viewBox="0 0 {_WIDTH} 130" role="img" '
        f'aria-label="{esc("Exact match. " + "; ".join(told))}">{"".join(parts)}</svg>'
        "<figcaption>Questions answered correctly (exact match); whiskers and last line: 95 % "
        "Wilson interval.</figcaption></figure>"
    )


def flow(outcomes: Mapping[str, Mapping[str, int]]) -> Html:
    """Questions flowing from their outcome before to their outcome after."""
    cells = [
        (was, became, count)
        for was in OUTCOMES
        for became in OUTCOMES
        if (count := outcomes.get(was, {}).get(became, 0)) > 0
    ]
    total = sum(count for *_, count in cells)
    if not total:
        return Html("")
    scale, x0, x1 = 200 / total, 118, 242
    left, bottom_left = _stack([(was, count) for was, _, count in cells], scale)
    right, bottom_right = _stack([(became, count) for _, became, count in cells], scale)
    used_left, used_right = dict.fromkeys(left, 0.0), dict.fromkeys(right, 0.0)
    sums = dict.fromkeys(("gained", "lost", "same"), 0)
    ribbons = []
    middle = (x0 + x1) / 2
    for was, became, count in cells:
        thick = count * scale
        y0 = left[was][0] + used_left[was]
        y1 = right[became][0] + used_right[became]
        used_left[was] += thick
        used_right[became] += thick
        kind = (
            "same"
            if (was == "correct") == (became == "correct")
            else ("lost" if was == "correct" else "gained")
        )
        sums[kind] += count
        label = esc(f"{_words(was)} → {_words(became)}: {count}")
        ribbons.append(
            f'<path class="ribbon {kind}" d="M{x0} {px(y0)}C{middle} {px(y0)} {middle} {px(y1)} '
            f"{x1} {px(y1)}v{px(thick)}C{middle} {px(y1 + thick)} {middle} {px(y0 + thick)} "
            f'{x0} {px(y0 + thick)}Z"><title>{label}</title></path>'
        )
    nodes = "".join(
        _node(name, count, y, count * scale, x=x, end=end, kind=kind)
        for column, x, end, kind in ((left, x0 - 8, True, "before"), (right, x1, False, "after"))
        for name, (y, count) in column.items()
    )
    height = max(bottom_left, bottom_right)
    keys = " ".join(
        f'<span class="keys"><span class="key {kind}"></span>{name} {sums[kind]:,}</span>'
        for kind, name in (("gained", "gained"), ("lost", "lost"), ("same", "other"))
    )
    told = "; ".join(f"{_words(w)} to {_words(b)} {n}" for w, b, n in cells)
    return Html(
        f'<figure class="flow"><svg viewBox="0 0 {_WIDTH} {px(height)}" role="img" '
        f'aria-label="{esc("Outcomes before and after: " + told)}">{"".join(ribbons)}{nodes}</svg>'
        f"<figcaption>Outcomes before (left) and after (right). {keys}</figcaption></figure>"
    )


def _stack(
    cells: Sequence[tuple[str, int]], scale: float
) -> tuple[dict[str, tuple[float, int]], float]:
    """(top, questions) of each outcome in a column, with room for a label each; and the bottom."""
    sums: dict[str, int] = {}
    for name, count in cells:
        sums[name] = sums.get(name, 0) + count
    places, y = {}, 10.0
    for name in OUTCOMES:
        if name in sums:
            places[name] = (y, sums[name])
            y += max(sums[name] * scale, 8) + 12
    return places, y


def _node(
    name: str, count: int, y: float, thick: float, *, x: int, end: bool, kind: str
) -> str:  # fmt: skip
    anchor, at = ("end", x - 6) if end else ("start", x + 14)
    return (
        f'<rect class="{kind}" x="{x}" y="{px(y)}" width="8" height="{px(max(thick, 1))}"/>'
        f'<text class="name" x="{at}" y="{px(y + thick / 2 + 5)}" text-anchor="{anchor}">'
        f"{esc(_words(name))} {count:,}</text>"
    )


def _words(name: str) -> str:
    return name.replace("_", " ")
