"""The report's tables, as HTML. Whatever comes from data is escaped here."""

from __future__ import annotations

import csv
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.search_r1.scoring import OUTCOMES

_HASH = re.compile(r"[0-9a-f]{40,64}")
_ABSENT = "not set"
_TOGETHER = re.compile(r"\[[^]]*\]|p (?:=|&lt;) [\de.+-]*\d|±[\d.]+ points")

MEANS = {
    "searches": "searches a question",
    "failed_searches": "failed searches, sum",
    "turns": "turns a question",
    "completion_tokens": "completion tokens a question",
}


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def esc(value: Any) -> Html:
    """`value` as HTML text, safe in attributes too; HTML stays as it is."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def together(text: str) -> Html:
    """A sentence as HTML; intervals and p values are not broken over lines."""
    return Html(_TOGETHER.sub(r'<span class="together">\g<0></span>', esc(text)))


def number(value: Any) -> str:
    """A figure in short form: thousands with commas, four significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        if value.is_integer() and abs(value) < 1e15:
            return f"{int(value):,}"
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "none" if value is None else str(value)


def percent(value: float) -> str:
    """A fraction as a percentage with one decimal, whose sign stays on its line."""
    return f"{100 * value:.1f}\u00a0%"


def show(value: Any) -> Html:
    """Any JSON value: figures short, hashes cut with the whole in a title, mappings as tables."""
    if isinstance(value, Html):
        return value
    if isinstance(value, Mapping):
        return pairs(value) if value else esc("none")
    if isinstance(value, list | tuple):
        return Html(", ".join(show(item) for item in value)) if value else esc("none")
    text = number(value)
    if _HASH.fullmatch(text):
        return Html(f'<code title="{text}">{text[:12]}…</code>')
    return esc(text)


def pairs(values: Mapping[str, Any]) -> Html:
    """A mapping as a small table without a head."""
    body = "".join(
        f'<tr><th scope="row">{esc(_words(key))}</th><td>{show(value)}</td></tr>'
        for key, value in values.items()
    )
    return Html(f'<table class="pairs"><tbody>{body}</tbody></table>')


def table(
    caption: str, head: Sequence[Any], rows: Sequence[Sequence[Any]], *, kind: str = ""
) -> Html:
    """A table in a frame that scrolls by itself; the first cell of a row heads it."""
    top = "".join(f'<th scope="col">{esc(c)}</th>' if c else "<td></td>" for c in head)
    body = "".join(
        f'<tr><th scope="row">{show(row[0])}</th>'
        + "".join(f"<td>{show(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    # A scrolling region must be reachable by keyboard.
    return Html(
        f'<div class="scroll" role="region" aria-label="{esc(caption)}" tabindex="0">'
        f'<table class="{kind}"><caption>{esc(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def two_by_two(counts: Mapping[str, int]) -> Html:
    """Questions by right or wrong, before and after, with sums."""
    right, gained = counts["both_right"], counts["gained"]
    lost, wrong = counts["lost"], counts["both_wrong"]
    return table(
        "Questions right and wrong, before and after",
        ["", "right after", "wrong after", "sum"],
        [
            ["right before", _tag(right, "both right"), _tag(lost, "lost"), right + lost],
            ["wrong before", _tag(gained, "gained"), _tag(wrong, "both wrong"), gained + wrong],
            ["sum", right + gained, lost + wrong, right + gained + lost + wrong],
        ],
        kind="figures",
    )


def transitions(outcomes: Mapping[str, Mapping[str, int]]) -> Html:
    """Questions by outcome before (rows) and after (columns)."""
    seen = set(outcomes) | {became for row in outcomes.values() for became in row}
    names = [name for name in OUTCOMES if name in seen]
    rows: list[list[Any]] = []
    for was in names:
        counts = [outcomes.get(was, {}).get(became, 0) for became in names]
        rows.append([_words(was), *counts, sum(counts)])
    totals = [sum(row[i] for row in rows) for i in range(1, len(names) + 2)]
    return table(
        "Outcome before (rows) and after (columns)",
        ["before ↓ after →", *map(_words, names), "sum"],
        [*rows, ["sum", *totals]],
        kind="figures",
    )


def points(fraction: float) -> str:
    """A difference of rates in percentage points, with its sign."""
    text = f"{100 * fraction:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def means(before: Mapping[str, Any], after: Mapping[str, Any]) -> Html:
    """What both evaluations did, side by side; scores have a table of their own, with their
    differences: of these no noise floor is measured."""
    rows = [[label, before[key], after[key]] for key, label in MEANS.items()]
    head = ["", "before", "after"]
    return table("What it did, means over the questions", head, rows, kind="figures")


def settings(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Html:
    """The settings that differ from `defaults`, with both values; then, folded, every setting by
    section, those marked."""
    mine, theirs = flatten(config), flatten(defaults)
    parts, changed = [], []
    for section in dict.fromkeys(key[0] for key in [*mine, *theirs]):
        rows = []
        for key in dict.fromkeys(k for k in [*mine, *theirs] if k[0] == section):
            value, default = (_plain(flat.get(key, _ABSENT)) for flat in (mine, theirs))
            shown = esc(value)
            if mine.get(key) != theirs.get(key):
                changed.append([".".join(filter(None, key)), value, default])
                shown = Html(f"<mark>{shown}</mark>")
            rows.append([".".join(key[1:]), shown])
        title = section or "run"
        parts.append(f"<div><h3>{esc(title)}</h3>{_settings_table(title, rows)}</div>")
    every = len({*mine, *theirs})
    note = f"{len(changed)} of {every} settings differ from config/config.yaml."
    differing = (
        table("Settings that differ", ["setting", "this run", "default"], changed, kind="values")
        if changed
        else ""
    )
    return Html(
        f"<p>{note}</p>{differing}<details><summary>All {every} settings</summary>"
        f'<div class="sections">{"".join(parts)}</div></details>'
    )


def _settings_table(title: str, rows: list[list[Any]]) -> Html:
    body = "".join(f'<tr><th scope="row">{esc(k)}</th><td>{v}</td></tr>' for k, v in rows)
    label = esc(f"Settings of {title}")
    return Html(f'<table class="pairs" aria-label="{label}"><tbody>{body}</tbody></table>')


def _plain(text: str) -> str:
    """A JSON string without its quotes, unless it would then look like another value."""
    value = json.loads(text) if text.startswith('"') else ""
    if not value or value == _ABSENT:
        return text
    try:
        json.loads(value)
    except ValueError:
        return value
    return text


def flatten(config: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Settings by path, section first ("" for those without), each value as JSON."""
    flat: dict[tuple[str, ...], str] = {}

    def walk(path: tuple[str, ...], value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                walk((*path, str(key)), inner)
        else:
            # JSON tells "5" from 5; default=str: YAML knows dates.
            text = json.dumps(value, ensure_ascii=False, default=str)
            flat[path if len(path) > 1 else ("", *path)] = text

    walk((), config)
    return flat


def benchmark_rows(folder: Path) -> list[dict[str, Any]]:
    """{"rule", "seconds", "max_rss_mb"} of each rule, from Snakemake's benchmark files; None where
    nothing was measured. A rule that ran several times has the sum of its seconds."""
    rows = []
    for path in sorted(folder.rglob("*.tsv")) if folder.is_dir() else []:
        with open(path, encoding="utf-8", newline="") as handle:
            runs = list(csv.DictReader(handle, delimiter="\t"))
        seconds = [x for run in runs if (x := _float(run.get("s"))) is not None]
        memory = [x for run in runs if (x := _float(run.get("max_rss"))) is not None]
        rows.append(
            {
                "rule": path.relative_to(folder).with_suffix("").as_posix(),
                "seconds": sum(seconds) if seconds else None,
                "max_rss_mb": max(memory) if seconds and memory else None,
            }
        )
    return rows


def benchmarks(measured: Sequence[Mapping[str, Any]]) -> Html:
    """Seconds and peak memory of each rule, of `benchmark_rows`."""
    if not measured:
        return Html("<p>No benchmark file was found.</p>")
    rows = []
    for row in measured:
        seconds = row["seconds"]
        shown = ["–", "–"] if seconds is None else [f"{seconds:,.1f}", clock(seconds)]
        rows.append([row["rule"], *shown, _megabytes(row["max_rss_mb"])])
    total = sum(row["seconds"] or 0.0 for row in measured)
    peak = max(
        (row["max_rss_mb"] for row in measured if row["max_rss_mb"] is not None), default=None
    )
    rows.append(["all rules", f"{total:,.1f}", clock(total), _megabytes(peak)])
    head = ["rule", "seconds", "h:mm:ss", "peak memory, MB"]
    note = (
        "Seconds of the last row are a sum, its memory a maximum; rules may have run side by side."
    )
    return Html(table("Time and memory by rule", head, rows, kind="figures") + f"<p>{note}</p>")


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def provenance(record: Mapping[str, Any]) -> Html:
    """Commit, lock, seeds, machine; then versions and file hashes."""
    machine = dict(record.get("machine") or {})
    if machine.get("memory_bytes"):
        machine["memory"] = f"{machine['memory_bytes'] / 2**30:.1f} GiB"
    machine.pop("memory_bytes", None)
    lock = record.get("lock") or {}
    changed = record.get("changed")
    state = {None: "unknown", False: "clean"}.get(
        record.get("dirty"), f"{changed} changed or new files"
    )
    facts = {
        "glimmer": record.get("glimmer"),
        "commit": _whole(record.get("commit")),
        "working tree": state,
        f"lock {lock.get('name', '')}".strip(): _whole(lock.get("sha256")),
        "python": record.get("python"),
        "seeds": record.get("seeds") or {},
        "machine": machine,
    }
    files = [
        [name, file["bytes"], _whole(file["sha256"])]
        for name, file in (record.get("files") or {}).items()
    ]
    versions = {k: v or "not installed" for k, v in (record.get("packages") or {}).items()}
    body = f'<div class="scroll" tabindex="0" role="region" aria-label="Facts">{pairs(facts)}</div>'
    if files:
        body += table("Files", ["file", "bytes", "sha256"], files, kind="files")
    if versions:
        body += f"<h3>Versions</h3>{pairs(versions)}"
    return Html(body)


def _whole(digest: Any) -> Html:
    """A hash in full, which may wrap anywhere."""
    return Html(f'<code class="hash">{esc(digest or "unknown")}</code>')


def _tag(count: int, label: str) -> Html:
    return Html(f'{number(count)} <span class="tag">{esc(label)}</span>')


def _words(name: Any) -> str:
    return str(name).replace("_", " ")


def _float(text: str | None) -> float | None:
    """A cell of a benchmark file; "-" and "NA" stand for "not measured"."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
