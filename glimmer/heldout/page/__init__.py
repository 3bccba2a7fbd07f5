"""Style and script of the report. A package of its own, so that only the report's rule is stale
when they change."""

from __future__ import annotations

from importlib import resources


def asset(name: str) -> str:
    """Text of a file in this folder."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
