"""Attributed stretches of text, of which a rendered conversation is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """A stretch of text with one attribution; `special` marks a special token."""

    text: str
    message: int  # index of the message it belongs to, -1 for none
    sampled: bool = False
    content: bool = False
    special: bool = False


def block(role: str, body: list[Piece], message: int) -> list[Piece]:
    """A block that no model writes: <|start|>ROLE<|message|>BODY<|eot|>."""
    return [
        Piece("<|start|>", message, special=True),
        Piece(role, message),
        Piece("<|message|>", message, special=True),
        *body,
        Piece("<|eot|>", message, special=True),
    ]


def runs(pieces: list[Piece]) -> Iterator[tuple[bool, list[Piece]]]:
    """(special?, pieces): each special token alone, text between two of them together."""
    run: list[Piece] = []
    for piece in pieces:
        if piece.special:
            if run:
                yield False, run
                run = []
            yield True, [piece]
        else:
            run.append(piece)
    if run:
        yield False, run
