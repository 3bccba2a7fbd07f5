"""The verdict as text that a person reads: refusals first, then warnings, then what is well."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from glimmer.preflight.findings import gib

_WORDS = {"refuse": "REFUSED", "warn": "warning", "ok": "ok"}
_WIDTH = 100


def as_text(verdict: Mapping[str, Any]) -> str:
    """A table of findings, and the memory items of a trainer and a generator GPU."""
    counts = verdict["measured"]
    head = (
        f"preflight: {'passed' if verdict['passed'] else 'REFUSED'}, {counts['checks']} checks, "
        f"{counts['refused']} refused, {counts['warned']} warnings"
    )
    lines = [head, ""]
    for level in ("refuse", "warn", "ok"):
        for finding in verdict["details"]:
            if finding["level"] == level:
                lines += _finding(finding)
    if verdict["memory"]:
        lines += ["", *_memory(verdict["memory"])]
    return "\n".join(lines) + "\n"


def _finding(finding: Mapping[str, Any]) -> list[str]:
    told = finding["found"]
    if finding["expected"]:
        joint = "; " if finding["level"] == "ok" else "; expected "
        told += joint + finding["expected"]
    first = f"{_WORDS[finding['level']]:8} {finding['what']:32} "
    lines = textwrap.wrap(
        told, _WIDTH, initial_indent=first, subsequent_indent=" " * 12, break_on_hyphens=False
    ) or [first]
    if finding["way_out"]:
        lines += textwrap.wrap(
            finding["way_out"],
            _WIDTH,
            initial_indent=" " * 9 + "-> ",
            subsequent_indent=" " * 12,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return lines


def _memory(memory: Mapping[str, Any]) -> list[str]:
    one, two = memory["trainer"]["step 1"], memory["trainer"]["step 2"]
    lines = [f"{'memory of a trainer GPU, by arithmetic':52} {'step 1':>11} {'step 2':>11}"]
    names = list(dict.fromkeys([*one, *two]))
    lines += [
        f"  {name:50} {gib(one.get(name, 0)):>11} {gib(two.get(name, 0)):>11}" for name in names
    ]
    lines.append(f"  {'in all':50} {gib(sum(one.values())):>11} {gib(sum(two.values())):>11}")
    lines += ["", "memory of a generator GPU, by arithmetic"]
    lines += [f"  {name:50} {gib(size):>11}" for name, size in memory["generator"].items()]
    lines.append(f"  {'in all':50} {gib(sum(memory['generator'].values())):>11}")
    lines.append(f"  {'the card':50} {gib(memory['card']):>11}")
    return lines
