"""The report's tables on how far the result carries: groups, retrieval, noise, leaks, power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_tables import Html, esc, percent, points, table
from glimmer.heldout.report_words import floor_points, noise_sentence, p_value, power_sentence

_FOUND_IN = {
    "both": "both times",
    "only_before": "only before",
    "only_after": "only after",
    "neither": "neither time",
}


def grouped(
    groups: Mapping[str, Mapping[str, Any]], measured: Mapping[str, Any], caption: str, name: str
) -> Html:
    """Exact match before and after within groups, with p corrected for their number."""
    rows = [
        [
            "unknown" if kind == "None" else kind,
            int(group["questions"]),
            percent(group["before"]),
            percent(group["after"]),
            points(group["after"] - group["before"]),
            floor_points(measured, group["questions"]),
            group["gained"],
            group["lost"],
            p_value(group["mcnemar_p"]),
            p_value(group["holm_p"]),
        ]
        for kind, group in groups.items()
    ]
    head = [name, "questions", "before", "after", "points", "noise floor", "gained", "lost", "p",
            "p, Holm"]  # fmt: skip
    return table(caption, head, rows, kind="figures")


GROUPS_HELP = (
    "p: exact McNemar; Holm: corrected for the number of rows. Noise floor: what evaluating the "
    "same weights again moves in 95 % of cases, scaled to the number of questions of the row."
)


def differences(measured: Mapping[str, Any]) -> Html:
    """Every difference of the whole with its interval and the noise floor."""
    noise = measured.get("noise") or {}
    rows = []
    for key, label in (("exact_match", "exact match"), ("f1", "F1"), ("contains", "contains")):
        name = "difference" if key == "exact_match" else f"{key}_difference"
        if name in measured:
            sides = (measured[when][key] for when in ("before", "after"))
            rows.append(_difference(label, *sides, measured[name], noise.get(name)))
    samples = measured.get("samples")
    for k, found in (samples or {"pass_at": {}})["pass_at"].items():
        sides = (found["before"], found["after"])
        rows.append(_difference(f"pass@{k}", *sides, found["difference"], found["noise"]))
    head = ["", "before", "after", "points", "95 % paired bootstrap", "noise floor, points"]
    note = (
        "Exact match: the answer is a golden one but for case, punctuation and articles; contains: "
        "a golden one stands in it."
    )
    if samples:
        note += (
            f" pass@k: of {samples['samples']} samples a question, without bias (Chen et al. 2021)."
        )
    shown = table("Means over all questions", head, rows, kind="figures")
    return Html(f"{shown}<p>{esc(note)}</p>")


def _difference(
    name: str, before: float, after: float, found: Mapping[str, Any], floor: float | None
) -> list[Any]:
    shown = "not measured" if floor is None else f"±{100 * floor:.1f}"
    return [
        name,
        percent(before),
        percent(after),
        points(found["mean"]),
        _range(found["ci95"]),
        shown,
    ]


def _range(ci95: Sequence[float]) -> str:
    return f"[{points(ci95[0])}, {points(ci95[1])}]"


def noise(measured: Mapping[str, Any]) -> Html:
    """Passes of the same weights side by side."""
    found = measured.get("noise")
    if found is None:
        return Html(f"<p>{esc(noise_sentence(measured))}</p>")
    sides = [found["before"], found["after"]]
    rows = [
        ["passes", *(side["passes"] for side in sides)],
        ["questions asked in all of them", *(side["questions"] for side in sides)],
        ["right, pass by pass", *(", ".join(map(str, side["correct"])) for side in sides)],
        ["right in one pass and wrong in another", *(side["changed"] for side in sides)],
        ["their share, 95 % Wilson interval", *(_interval(side["ci95"]) for side in sides)],
        ["other tokens were sampled", *(side["other_tokens"] for side in sides)],
    ]
    caption = "The same weights evaluated again"
    return Html(table(caption, ["", "before", "after"], rows, kind="figures"))


_LEAKS = {
    "exact": "word for word",
    "normalised": "but for case, punctuation and articles",
    "ngram": "near, by word n-grams",
    "embedding": "near, by the embedding model",
    "any": "any of these",
}


_LISTED = 50  # leaks on the page


def leakage(measured: Mapping[str, Any], leaks: Sequence[Mapping[str, Any]] = ()) -> Html:
    """Held-out questions that training has too, the result without them, and, folded, the first of
    them: those with the same answer first.

    Args:
        measured: of `glimmer.heldout.paired.compare`.
        leaks: `found` of `leakage.json`.
    """
    found = measured.get("leakage")
    if found is None:
        return Html("<p>Was not looked for.</p>")
    rows = []
    for kind, count in found["counts"].items():
        result = found["without"].get(kind)
        shown = ["–"] * 5
        if result:
            shown = [
                f"{result['before']} → {result['after']} of {result['questions']}",
                points(result["difference"]["mean"]),
                _range(result["difference"]["ci95"]),
                floor_points(measured, result["questions"]),
                p_value(result["mcnemar_p"]),
            ]
        rows.append([_LEAKS.get(kind, kind), count, found["same_answer"][kind], *shown])
    settings = found["settings"]
    near = (
        f"Near: {settings['min_overlap']:.0%} of a question's {settings['ngram']}-grams stand in "
        "one training question"
    )
    if settings["min_similarity"] is not None:
        near += f"; or a cosine from {settings['min_similarity']:g}"
    head = ["held-out question in training", "questions", "same answer", "without them: right",
            "points", "95 % interval", "noise floor", "p"]  # fmt: skip
    caption = f"Looked for in {found['train']:,} training questions"
    return Html(
        table(caption, head, rows, kind="figures")
        + f"<p>{esc(near)}. A near question about another thing is no leak; one with the same "
        "answer most likely is. The list: <code>heldout/leakage.json</code>.</p>" + _leaks(leaks)
    )


def _leaks(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return ""
    listed = sorted(found, key=lambda leak: not leak["same_answer"])[:_LISTED]
    rows = [
        [
            leak["id"],
            leak["kind"],
            f"{leak['score']:.2f}",
            leak["same_answer"],
            leak["question"],
            leak["train_question"],
        ]
        for leak in listed
    ]
    head = ["held-out id", "kind", "score", "same answer", "question", "in training"]
    caption = "Held-out questions beside the training question that is nearest"
    return (
        f"<details><summary>{len(listed)} of {len(found)} matches</summary>"
        f"{table(caption, head, rows, kind='values')}</details>"
    )


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


def retrieval(found: Mapping[str, Any], measured: Mapping[str, Any]) -> Html:
    """The retrieval ceiling, the share of it that was reached, and right answers by where the
    answer was found."""
    questions = measured["questions"]
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
                "right if found: the ceiling's share reached",
                *(_share(s["correct_found"], s["answer_found"]) for s in sides),
            ],
            [
                "right if not found",
                *(_share(s["correct_not_found"], n) for s, n in zip(sides, lost, strict=True)),
            ],
        ],
        kind="figures",
    )
    named = {_FOUND_IN[key]: group for key, group in found["found_in"].items()}
    caption = "Exact match by when the answer was found"
    return Html(ceiling + grouped(named, measured, caption, "answer found"))


def power(found: Mapping[str, Any], questions: int) -> Html:
    """What this many questions could show, in words."""
    return Html(f'<p id="power">{esc(power_sentence(found, questions))}</p>')


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}, {percent(part / whole)}" if whole else "–"


def _interval(ci95: list[float]) -> str:
    return "–".join(f"{100 * bound:.1f}" for bound in ci95) + " %"
