"""The report's figures, as inline SVG coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_tables import Html, esc, number

# Metric -> what its curve is called.
CURVES = {
    "reward": "reward, mean of rollouts",
    "exact_match": "exact match, mean of rollouts",
    "searches": "searches a rollout",
    "turns": "turns a rollout",
    "response_tokens": "sampled tokens a rollout",
    "group_zero_std_frac": "groups with equal rewards",
    "grad_norm": "gradient norm before clipping",
    "entropy": "entropy, nats a token",
    "loss": "loss",
    "logprob_diff_max": "largest log-probability difference",
    "tokens_per_s": "tokens a second",
    "failed_searches": "failed searches in the step",
}

_WIDTH, _HEIGHT = 300, 140  # of a curve
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 8, 20


def curves(rows: Sequence[Mapping[str, Any]]) -> tuple[Html, dict[str, Any]]:
    """Small multiples over the steps, and the data that the page's script reads them from.

    Returns:
        The figures with a table of all values, and {"steps": [int], "series": {name: [value]}}.
    """
    steps = [int(row["step"]) for row in rows]
    series = {
        name: [finite(row.get(name)) for row in rows]
        for name in CURVES
        if any(finite(row.get(name)) is not None for row in rows)
    }
    if not series:
        return Html("<p>No training step was recorded.</p>"), {"steps": [], "series": {}}
    figures = "".join(_curve(name, steps, values) for name, values in series.items())
    body = "".join(
        f'<tr><th scope="row">{step}</th>'
        + "".join(f"<td>{_shown(values[i])}</td>" for values in series.values())
        + "</tr>"
        for i, step in enumerate(steps)
    )
    head = "".join(f'<th scope="col">{esc(_words(name))}</th>' for name in ["step", *series])
    fallback = (
        "<details><summary>All values as a table</summary>"
        '<div class="scroll tall" role="region" aria-label="Training values" tabindex="0">'
        f'<table class="figures"><caption>Training, step by step</caption><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div></details>"
    )
    return Html(f'<div class="curves">{figures}</div>{fallback}'), {
        "steps": steps,
        "series": {k: [_rounded(x) for x in v] for k, v in series.items()},
    }


def _curve(name: str, steps: Sequence[int], values: Sequence[float | None]) -> str:
    known = [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]
    ticks = nice_ticks(min(0.0, *(v for _, v in known)), max(0.0, *(v for _, v in known)))
    low, high = ticks[0], ticks[-1]
    first, last = min(steps), max(steps)
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(step: float) -> float:
        return _LEFT + across * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return _TOP + down * (1 - (value - low) / (high - low))

    pieces, pen = [], "M"
    for step, value in zip(steps, values, strict=True):
        if value is None:
            pen = "M"
            continue
        pieces.append(f"{pen}{px(x(step))} {px(y(value))}")
        pen = "L"
    grid = "".join(
        f'<path class="grid" d="M{_LEFT} {px(y(t))}H{_WIDTH - _RIGHT}"/>'
        f'<text class="tick" x="{_LEFT - 5}" y="{px(y(t) + 4)}" text-anchor="end">'
        f"{esc(tick(t))}</text>"
        for t in ticks
    )
    ends = f'<text class="tick" x="{px(x(first))}" y="{_HEIGHT - 4}">{first}</text>'
    if last > first:
        ends += (
            f'<text class="tick" x="{px(x(last))}" y="{_HEIGHT - 4}" text-anchor="end">'
            f"step {last}</text>"
        )
    dots = "".join(
        f'<circle class="dot" cx="{px(x(s))}" cy="{px(y(v))}" r="2.5"/>' for s, v in known
    ) if len(known) < 3 else ""  # fmt: skip
    (s0, v0), (s1, v1) = known[0], known[-1]
    told = f"{CURVES[name]}: {number(v0)} at step {s0}, {number(v1)} at step {s1}"
    return (
        f'<figure class="curve" data-metric="{name}" data-x="{_LEFT} {across} {first} {last}" '
        f'data-y="{_TOP} {down} {low!r} {high!r}"><figcaption>{esc(CURVES[name])}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" tabindex="0" aria-label="{esc(told)}">'
        f'{grid}{ends}<path class="line" d="{"".join(pieces)}"/><path class="smooth" d=""/>{dots}'
        f'<path class="cross" d=""/><circle class="spot" r="3.5" cx="-9" cy="-9"/></svg>'
        f'<output aria-live="off">step {s1}: {esc(number(v1))}</output></figure>'
    )


def entropy_against_length(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Entropy over the length of the responses, a dot a step, joined in their order."""
    known = [
        (int(row["step"]), length, entropy)
        for row in rows
        if (length := finite(row.get("response_tokens"))) is not None
        and (entropy := finite(row.get("entropy"))) is not None
    ]
    if len(known) < 2:
        return Html("")
    plot = Plot(
        [x for _, x, _ in known],
        [y for *_, y in known],
        titles=("sampled tokens a rollout", "entropy, nats a token"),
    )
    path = plot.path([(x, y) for _, x, y in known])
    # Later steps are less transparent.
    dots = "".join(
        f'<circle class="dot" cx="{px(plot.x(x))}" cy="{px(plot.y(y))}" r="3.5" '
        f'fill-opacity="{0.25 + 0.75 * i / (len(known) - 1):.2f}">'
        f"<title>step {step}: {esc(number(_rounded(x)))} tokens, {esc(number(_rounded(y)))} nats"
        "</title></circle>"
        for i, (step, x, y) in enumerate(known)
    )
    ends = "".join(
        f'<text class="mark" x="{px(plot.x(x))}" y="{px(plot.y(y) - 8)}" text-anchor="middle">'
        f"{step}</text>"
        for step, x, y in (known[0], known[-1])
    )
    told = "; ".join(
        f"step {step}: {number(_rounded(x))} tokens, {number(_rounded(y))} nats"
        for step, x, y in (known[0], known[-1])
    )
    return Html(
        '<figure class="plot" id="entropy-length">'
        f'<svg viewBox="0 0 {plot.width} {plot.height}" role="img" '
        f'aria-label="{esc("Entropy against response length, " + told)}">{plot.frame()}'
        f'<path class="trail" d="{path}"/>{dots}{ends}</svg><figcaption>Entropy against length: a '
        "dot a step, later ones stronger, the first and the last step named.</figcaption></figure>"
    )


def recall_sweep(verdict: Mapping[str, Any]) -> Html:
    """Recall of the index over efSearch, with the gate's threshold; nothing if it has no sweep."""
    sweep = verdict["measured"].get("recall_by_ef_search") or {}
    known = sorted((int(ef), float(recall)) for ef, recall in sweep.items())
    if len(known) < 2:
        return Html("")
    allowed = finite(verdict["threshold"].get("min_recall"))
    values = [recall for _, recall in known] + ([allowed] if allowed is not None else [])
    logs = [math.log2(ef) for ef, _ in known]
    titles = ("efSearch", "recall against exact search")
    plot = Plot(logs, values, titles=titles, from_zero=False, across=known)
    path = plot.path([(log, recall) for log, (_, recall) in zip(logs, known, strict=True)])
    dots = "".join(
        f'<circle class="dot" cx="{px(plot.x(log))}" cy="{px(plot.y(recall))}" r="3.5">'
        f"<title>efSearch {ef}: {recall:.4f}</title></circle>"
        for log, (ef, recall) in zip(logs, known, strict=True)
    )
    limit = (
        f'<path class="limit" d="M{plot.left} {px(plot.y(allowed))}H{plot.width - plot.right}"/>'
        if allowed is not None
        else ""
    )
    told = "; ".join(f"efSearch {ef}: {recall:.4f}" for ef, recall in known)
    at = verdict.get("measured_on", {}).get("ef_search")
    return Html(
        f'<figure class="plot" id="recall-sweep"><svg viewBox="0 0 {plot.width} {plot.height}" '
        f'role="img" aria-label="{esc("Recall: " + told)}">{plot.frame()}{limit}'
        f'<path class="line" d="{path}"/>{dots}</svg><figcaption>Recall of the index'
        + (f"; the run searches with {esc(at)}" if at is not None else "")
        + (f"; dashed: the gate's threshold, {esc(number(allowed))}" if limit else "")
        + ".</figcaption></figure>"
    )


class Plot:
    """A frame of x and y with round ticks; `x` and `y` turn values into coordinates.

    Args:
        xs, ys: the values that must fit.
        titles: what the x axis and the y axis show.
        from_zero: whether the y axis starts at 0.
        across: (label, ...) of each x where ticks stand at the values themselves, "" for none;
            None: round ones.
    """

    # As wide as a phone's page, so that text keeps its size there.
    width, height = 360, 232
    left, right, top, bottom = 46, 16, 28, 40

    def __init__(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        *,
        titles: tuple[str, str],
        from_zero: bool = True,
        across: Sequence[tuple[Any, ...]] | None = None,
    ) -> None:
        self._titles = titles
        self._ys = nice_ticks(min(0.0, *ys) if from_zero else min(ys), max(ys))
        if across is None:
            ticks = nice_ticks(min(xs), max(xs))
            self._xs = [(value, tick(value)) for value in ticks]
        else:
            self._xs = [(x, str(label[0])) for x, label in zip(xs, across, strict=True)]

    def x(self, value: float) -> float:
        low, high = self._xs[0][0], self._xs[-1][0]
        return self.left + (self.width - self.left - self.right) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self._ys[0], self._ys[-1]
        down = self.height - self.top - self.bottom
        return self.top + down * (1 - (value - low) / (high - low))

    def frame(self) -> str:
        """Grid lines and tick labels."""
        rows = "".join(
            f'<path class="grid" d="M{self.left} {px(self.y(t))}H{self.width - self.right}"/>'
            f'<text class="tick" x="{self.left - 10}" y="{px(self.y(t) + 4)}" text-anchor="end">'
            f"{esc(tick(t))}</text>"
            for t in self._ys
        )
        columns = "".join(
            f'<text class="tick" x="{px(self.x(t))}" y="{self.height - 22}" text-anchor="middle">'
            f"{esc(label)}</text>"
            for t, label in self._xs
            if label
        )
        across, up = map(esc, self._titles)
        return (
            f'{rows}{columns}<text class="axis" x="0" y="12">{up}</text>'
            f'<text class="axis" x="{self.width - self.right}" y="{self.height - 4}" '
            f'text-anchor="end">{across}</text>'
        )

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Lines through the points, as the `d` of a path."""
        return "".join(
            f"{'L' if i else 'M'}{px(self.x(x))} {px(self.y(y))}" for i, (x, y) in enumerate(points)
        )


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to six round ticks that enclose low to high."""
    span = (high - low) or 1.0
    raw = span / 3
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    start, stop = math.floor(low / step), math.ceil(round(high / step, 9))
    # From a product of whole numbers: no 0.30000000000000004 on an axis.
    return [float(f"{i * step:.12g}") for i in range(start, max(stop, start + 1) + 1)]


def tick(value: float) -> str:
    """A figure on an axis."""
    return number(value).replace("-", "−", 1) if value < 0 else number(value)


def finite(value: Any) -> float | None:
    """A number that is one; None for anything else, NaN and infinity included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _shown(value: float | None) -> str:
    return "–" if value is None else number(value)


def px(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _words(name: str) -> str:
    return name.replace("_", " ")
