"""One line of the verdict: what was asked, what was found, what is expected, and the way out."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        what: the check, in a few words.
        level: `ok`, `warn` (the run may go on) or `refuse`.
        found: the value found, with its unit.
        expected: what it is held against.
        way_out: the key to change and to what; empty for `ok`.
    """

    what: str
    level: str
    found: str
    expected: str = ""
    way_out: str = ""


def ok(what: str, found: str, expected: str = "") -> Finding:
    """A check that passed."""
    return Finding(what, "ok", found, expected)


def refuse(what: str, found: str, expected: str, way_out: str) -> Finding:
    """A check that stops the run."""
    return Finding(what, "refuse", found, expected, way_out)


def warn(what: str, found: str, expected: str, way_out: str) -> Finding:
    """A check that a person should read; the run may go on."""
    return Finding(what, "warn", found, expected, way_out)


def gib(size: float) -> str:
    """Bytes as GiB, one decimal."""
    return f"{size / GIB:.1f} GiB"
