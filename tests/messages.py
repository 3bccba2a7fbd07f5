"""Whether a message of the program can be found by its text in docs/troubleshooting.md."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from glimmer.errors import GlimmerError

PAGE = Path(__file__).parents[1] / "docs/troubleshooting.md"
said: set[str] = set()  # by the library, since this was cleared


def record() -> None:
    """Have each of the project's errors noted in `said`, if the library made it."""

    def noted(self, *arguments):
        Exception.__init__(self, *arguments)
        frame = sys._getframe(1)
        while frame.f_code.co_name == "__init__":  # of a class below
            frame = frame.f_back
        if arguments and frame.f_globals["__name__"].startswith("glimmer."):
            said.add(str(arguments[0]))

    GlimmerError.__init__ = noted


@functools.cache
def templates() -> list[list[str]]:
    """The listed messages, each as the texts around its values."""
    listed = PAGE.read_text().partition("## Every message")[2].splitlines()
    texts = (line.removeprefix("- ") for line in listed if line.startswith("- "))
    return [text.replace("\\|", "|").replace("&lt;", "<").split("…") for text in texts]


def is_listed(message: str) -> bool:
    """A message of several lines, each indented below a heading, is a list of messages."""
    heading, *lines = message.split("\n  ")
    if lines and heading.endswith(":"):
        return all(map(is_listed, lines))
    text = " ".join(message.split())
    return any(_fits(text, parts) for parts in templates())


def _fits(text: str, parts: list[str]) -> bool:
    """Whether `text` is `parts` with anything between them."""
    first, *middle, last = parts if len(parts) > 1 else [*parts, ""]
    if len(parts) == 1:
        return text == first
    text += " " if not last else ""  # that before an empty value
    if not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return at <= end
