"""The report's tables on how far the result carries: types, outcomes, retrieval, power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glimmer.heldout.report_tables import Html, esc, percent, points, table

_FOUND_IN = {
    "both": "both times",
    "only_before": "only before",
    "only_after": "only after",
    "neither": "neither time",
}


def p_value(value: float) -> str:
    """Two digits; a p that is 0 in floating point is only known to be small."""
    return f"{value:.2g}" if value >= 1e-300 else "< 1e-300"


def by_type(groups: Mapping[str, Mapping[str, Any]]) -> Html:
    """Exact match before and after for each kind of question, with p corrected for their number."""
    rows = [
        [
            "without a type" if kind == "None" else kind,
            int(group["questions"]),
            percent(group["before"]),
            percent(group["after"]),
            points(group["after"] - group["before"]),
            group["gained"],
            group["lost"],
            p_value(group["mcnemar_p"]),
            p_value(group["holm_p"]),
        ]
        for kind, group in groups.items()
    ]
    head = ["type", "questions", "before", "after", "points", "gained", "lost", "p", "p, Holm"]
    return table("Exact match by type of question", head, rows, kind="figures")


def by_outcome(groups: Mapping[str, Mapping[str, Any]]) -> Html:
    """Questions that ended so before and after, with p corrected for the number of outcomes."""
    rows = [
        [
            name.replace("_", " "),
            group["before"],
            group["after"],
            p_value(group["mcnemar_p"]),
            p_value(group["holm_p"]),
        ]
        for name, group in groups.items()
    ]
    head = ["outcome", "before", "after", "p", "p, Holm"]
    return table("Questions by outcome", head, rows, kind="figures")


def retrieval(found: Mapping[str, Any], questions: int) -> Html:
    """The retrieval ceiling, and right answers by where the answer was found."""
    sides = [found["before"], found["after"]]
    lost = [questions - side["answer_found"] for side in sides]
    ceiling = table(
        "A golden answer stands in a passage that was found",
        ["", "before", "after"],
        [
            ["found, questions", *(side["answer_found"] for side in sides)],
            ["retrieval ceiling", *(percent(side["ceiling"]) for side in sides)],
            ["95 % Wilson interval", *(_interval(side["ci95"]) for side in sides)],
            [
                "right if found",
                *(_share(s["correct_found"], s["answer_found"]) for s in sides),
            ],
            [
                "right if not found",
                *(_share(s["correct_not_found"], n) for s, n in zip(sides, lost, strict=True)),
            ],
        ],
        kind="figures",
    )
    rows = [
        [_FOUND_IN[key], group["questions"], group["before"], group["after"]]
        for key, group in found["found_in"].items()
    ]
    head = ["answer found", "questions", "right before", "right after"]
    return Html(ceiling + table("Right answers by when it was found", head, rows, kind="figures"))


def power(found: Mapping[str, Any], questions: int) -> Html:
    """What this many questions could show, in words."""
    share = percent(found["discordant_rate"])
    detectable, least = found["detectable_difference"], found["significant_difference"]
    if detectable is None:
        text = (
            f"With {share} of {questions} questions changed, no true difference would be found "
            f"by the exact test with a probability of {found['power']:.0%}."
        )
    else:
        text = (
            f"With {share} of {questions} questions changed, a true difference of "
            f"{100 * detectable:.1f} points would be found with a probability of "
            f"{found['power']:.0%} (exact power of the McNemar test, Duffy 1984)"
        )
        text += (
            f"; {100 * least:.1f} points are the smallest that could be significant at "
            f"{found['alpha']:g}."
            if least is not None
            else "."
        )
    return Html(f'<p id="power">{esc(text)}</p>')


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}, {percent(part / whole)}" if whole else "–"


def _interval(ci95: list[float]) -> str:
    return "–".join(f"{100 * bound:.1f}" for bound in ci95) + " %"
