"""The tokens of a bridged prompt: ids at once, masks when they are read.

All that grows with the history in a bridge is copying, and of the four lists of full length that
`RenderedTokens` has, a rollout reads the ids alone. The other three say nothing about the history
but that it is neither new nor content, so they are made on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from renderers.base import RenderedTokens

# What a mask says of each token of the history.
_OF_HISTORY = {"message_indices": -1, "sampled_mask": False, "is_content": False}


class BridgedTokens(RenderedTokens):
    """`RenderedTokens` of a history and of what was rendered behind it.

    Every field is the list that it always is; copies and pickles are plain `RenderedTokens`.
    """

    _new: RenderedTokens
    _known: int

    @classmethod
    def of(
        cls, history: Sequence[int], sampled: Sequence[int], new: RenderedTokens
    ) -> BridgedTokens:
        """The ids of `history`, then `sampled`, then `new`, whose masks are the only ones set."""
        made = cls.__new__(cls)
        made.token_ids = [*history, *sampled, *new.token_ids]
        made.message_roles = new.message_roles
        made.message_tool_names = new.message_tool_names
        made._known = len(history) + len(sampled)
        made._new = new
        return made

    def __getattr__(self, name: str) -> Any:
        """Makes a mask; Python asks here only for what is not set yet."""
        if name not in _OF_HISTORY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        mask = [_OF_HISTORY[name]] * self._known
        mask += getattr(self._new, name)
        setattr(self, name, mask)
        return mask

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RenderedTokens):
            return NotImplemented
        return self._values() == tuple(getattr(other, field.name) for field in fields(self))

    __hash__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RenderedTokens, self._values()
