"""What the model reads: the instruction, the search tool's schema, and passages as text.

Instruction, schema and passage layout are TitanRL's Search-R1 example's own (torchtitan 0.3.0), so
that a checkpoint trained there and one trained here have seen the same prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from glimmer.titanrl import ensure_importable

ensure_importable()

from torchtitan.experiments.rl.examples.search_r1.env import (  # noqa: E402
    INSTRUCTION,
    SEARCH_TOOL,
    _passages_to_string,
)

__all__ = ["INSTRUCTION", "SEARCH_TOOL", "HasContents", "opening_messages", "passages_to_text"]


class HasContents(Protocol):
    """A passage: the title in quotes on the first line of `contents`, then the text."""

    contents: str


def opening_messages(question: str) -> list[dict[str, Any]]:
    """The conversation before the model's first turn."""
    return [{"role": "user", "content": INSTRUCTION + question}]


def passages_to_text(passages: Sequence[HasContents]) -> str:
    """The tool's answer: one `Doc i(Title: ...) ...` line a passage, best first."""
    return _passages_to_string([{"contents": p.contents} for p in passages])
