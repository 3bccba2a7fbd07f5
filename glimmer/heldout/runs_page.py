"""Several runs on one page: differences with intervals, pooled seeds, the settings that differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.report_figures import nice_ticks, tick
from glimmer.heldout.report_markdown import markdown_table, plain
from glimmer.heldout.report_page import document
from glimmer.heldout.report_tables import Html, esc, points, table, together
from glimmer.heldout.report_words import p_value

_TITLE = "Runs side by side"
_HEAD = (
    "run",
    "before",
    "after",
    "points",
    "95 % interval",
    "noise floor, points",
    "gained",
    "lost",
    "p",
    "gates",
)
_POOLED = (
    "runs",
    "seeds",
    "before",
    "after",
    "points",
    "over questions and seeds",
    "these seeds alone",
    "sd of seeds, points",
    "noise floor, points",
    "p",
)
_HELP = (
    "Each run: points, after − before of all questions, with the 95 % paired bootstrap interval. "
    "p: exact McNemar."
)
_POOLED_HELP = (
    "Pooled are runs that differ only in training.seed: their differences are averaged by "
    "question. The interval over questions and seeds, and p, hold for other questions and other "
    "seeds ({method}); a difference is claimed by it alone. The interval of these seeds alone "
    "holds for other questions only (bootstrap). In simulations the first holds the truth in 95 "
    "to 97 % of cases with three seeds or five, in 92 to 96 % with two, from which little is known "
    "of other seeds."
)


def runs_page(found: Mapping[str, Any]) -> str:
    """The page of `glimmer.heldout.pooled.compare_runs`."""
    sections = {
        "runs": (
            "Runs",
            _table("Each run", _HEAD, _run_rows(found)) + _sentences(found["runs"]),
        )
    }
    if found["pooled"]:
        pooled = _table("Training seeds, pooled by question", _POOLED, _pooled_rows(found))
        note = f"<p>{esc(_pooled_help(found))}</p>"
        sections["pooled"] = ("Seeds pooled", pooled + note + _times(found["pooled"]))
    names = [run["run"] for run in found["runs"]]
    rows = [[key, *map(_value, values)] for key, values in found["settings"].items()]
    shown = _table("Values of each run", ["setting", *names], rows) if rows else "<p>None.</p>"
    sections["settings"] = ("Settings that differ", shown)
    # What stands in the pooled sentence is not said again for each of its runs.
    pooled = {name for pool in found["pooled"] for name in pool["runs"]}
    alone = [run for run in found["runs"] if run["run"] not in pooled]
    first = [
        f'<p class="result">{together(pool["sentence"])}</p>'
        f'<p class="noise">{together(pool["noise"])}</p>'
        for pool in found["pooled"]
    ]
    first += [
        f'<p class="result"><strong>{esc(run["run"])}</strong>: {together(run["sentence"])}</p>'
        for run in alone
    ]
    return document(
        _TITLE,
        first=f"{''.join(first)}{_notes(found)}{_forest(found)}<p>{_HELP}</p>",
        sections=sections,
        data={},
        script=False,
    )


def _sentences(runs: Sequence[Mapping[str, Any]]) -> str:
    listed = "".join(
        f"<dt>{esc(run['run'])}</dt><dd>{together(run['sentence'])} {together(run['noise'])}</dd>"
        for run in runs
    )
    return f'<dl class="runs">{listed}</dl>'


def runs_markdown(found: Mapping[str, Any]) -> str:
    """The same as Markdown."""
    parts = [
        f"# {_TITLE}",
        *(plain(f"{pool['sentence']} {pool['noise']}") for pool in found["pooled"]),
        *(f"**{plain(r['run'])}**: {plain(r['sentence'])}" for r in found["runs"]),
    ]
    parts += [plain(_HELP), "## Runs", markdown_table(_HEAD, _run_rows(found))]
    if found["pooled"]:
        parts += ["## Seeds pooled", markdown_table(_POOLED, _pooled_rows(found))]
        parts += [plain(_pooled_help(found))]
    names = [run["run"] for run in found["runs"]]
    rows = [[key, *map(_value, values)] for key, values in found["settings"].items()]
    parts += [
        "## Settings that differ",
        markdown_table(["setting", *names], rows) if rows else "None.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    return table(caption, head, rows, kind="figures")


def _run_rows(found: Mapping[str, Any]) -> list[list[Any]]:
    rows = []
    for run in found["runs"]:
        gates = run["gates"]
        failed = [name for name, passed in gates.items() if not passed]
        rows.append(
            [
                run["run"],
                f"{run['before']} of {run['questions']}",
                f"{run['after']} of {run['questions']}",
                points(run["difference"]["mean"]),
                _range(run["difference"]["ci95"]),
                _floor(run["floor"]),
                run["gained"],
                run["lost"],
                p_value(run["mcnemar_p"]),
                f"failed: {', '.join(failed)}" if failed else f"{len(gates)} passed",
            ]
        )
    return rows


def _pooled_rows(found: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [
            ", ".join(pool["runs"]),
            pool["seeds"],
            f"{pool['before']:.1f} of {pool['questions']}",
            f"{pool['after']:.1f} of {pool['questions']}",
            points(pool["difference"]["mean"]),
            _range(pool["difference"]["ci95"]),
            _range(pool["difference"]["ci95_questions"]),
            f"{100 * pool['difference']['sd_seeds']:.1f}",
            _floor(pool["floor"]),
            p_value(pool["difference"]["p"]),
        ]
        for pool in found["pooled"]
    ]


def _pooled_help(found: Mapping[str, Any]) -> str:
    return _POOLED_HELP.format(method=found["pooled"][0]["difference"]["method"])


def _times(pools: Sequence[Mapping[str, Any]]) -> Html:
    rows = [
        [
            ", ".join(pool["runs"]),
            what.split("_")[0],
            *(pool[what].get(str(k + 1), 0) for k in range(n)),
        ]
        for pool in pools
        for n in [max(p["seeds"] for p in pools)]
        for what in ("gained_in", "lost_in")
    ]
    most = max(pool["seeds"] for pool in pools)
    head = ["runs", "questions", *(f"in {k + 1} of the seeds" for k in range(most))]
    return _table("In how many seeds a question was gained or lost", head, rows)


def _notes(found: Mapping[str, Any]) -> Html:
    """What keeps the runs from being compared with one another."""
    notes = []
    if len({run["questions_sha256"] for run in found["runs"]}) > 1:
        notes.append("The runs did not all ask the same questions: compare their rows with care.")
    if len({run["commit"] for run in found["runs"]}) > 1:
        notes.append("The runs are of different commits.")
    return Html("".join(f'<p class="warning">{note}</p>' for note in notes))


def _forest(found: Mapping[str, Any]) -> Html:
    """Differences with their intervals, a row a run, pooled seeds below."""
    rows = [
        (run["run"], run["difference"]["mean"], run["difference"]["ci95"]) for run in found["runs"]
    ]
    rows += [
        (f"pooled: {len(pool['runs'])} seeds", pool["difference"]["mean"],
         pool["difference"]["ci95"])
        for pool in found["pooled"]
    ]  # fmt: skip
    ticks = nice_ticks(
        min(0.0, *(100 * ci[0] for *_, ci in rows)), max(0.0, *(100 * ci[1] for *_, ci in rows))
    )
    # As wide as a phone's page, so that text keeps its size there; names stand over their lines.
    width, step = 360, 44
    height = 12 + step * len(rows)

    def x(value: float) -> str:
        at = 14 + (width - 28) * (value - ticks[0]) / (ticks[-1] - ticks[0])
        return f"{at:.2f}".rstrip("0").rstrip(".")

    parts = [
        f'<path class="{"whisker" if value == 0 else "grid"}" d="M{x(value)} 4V{height}"/>'
        f'<text class="tick" x="{x(value)}" y="{height + 14}" text-anchor="middle">'
        f"{esc(tick(value))}</text>"
        for value in ticks
    ]
    told = []
    for place, (name, mean, (low, high)) in enumerate(rows):
        y = 38 + step * place
        told.append(f"{name}: {points(mean)} {_range([low, high])}")
        shown = name if len(name) <= 30 else name[:29] + "…"
        parts.append(
            f'<text class="name over" x="20" y="{y - 14}">{esc(shown)}</text>'
            f'<text class="name over" x="{width - 20}" y="{y - 14}" text-anchor="end">'
            f"{points(mean)}</text>"
            f'<path class="whisker" d="M{x(100 * low)} {y}H{x(100 * high)}"/>'
            f'<circle class="dot" cx="{x(100 * mean)}" cy="{y}" r="5">'
            f"<title>{esc(told[-1])}</title></circle>"
        )
    return Html(
        f'<figure class="plot"><svg viewBox="0 0 {width} {height + 20}" role="img" '
        f'aria-label="{esc("Differences in points. " + "; ".join(told))}">{"".join(parts)}</svg>'
        "<figcaption>After − before in points, with 95 % intervals; pooled: over questions and "
        "seeds.</figcaption></figure>"
    )


def _range(ci95: Sequence[float]) -> str:
    return f"[{points(ci95[0])}, {points(ci95[1])}]"


def _floor(fraction: float | None) -> str:
    return "not measured" if fraction is None else f"±{100 * fraction:.1f}"


def _value(text: str) -> str:
    """A setting's JSON without the quotes of a string."""
    value = json.loads(text) if text.startswith('"') else text
    return str(value)
