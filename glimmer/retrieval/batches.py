"""Token counts -> which texts go through the model together, and in which shapes.

A CPU's batches, and by default a GPU's, hold texts of one token count: nothing is computed for
nothing, and attention needs no mask. `plan_shapes` is the other way, of few shapes: each text is
padded to a multiple of `Shapes.room` above its own length, and each such length has batches of one
number of rows, the last of them filled up. Then a text's shape, and with it its vector's last bit,
follows from the text alone, and a CUDA graph can be kept for each shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Batch = tuple[int, int, int, bool]
ShapedBatch = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Shapes:
    """A GPU's batches; internal, no setting: what is faster is a matter of the GPU.

    Attributes:
        room: texts are padded to multiples of this; 0 brings texts of one token count together.
        tokens: in a batch, at most, of `room` > 0.
        graphs: whether each shape is kept as a CUDA graph, of `room` > 0.
    """

    room: int = 0
    tokens: int = 32_768
    graphs: bool = False


def plan_batches(
    lengths: np.ndarray, batch_size: int, *, pad: bool, max_tokens: int | None = None
) -> tuple[np.ndarray, list[Batch]]:
    """Texts of one length make up batches.

    With `pad`, what would be a batch of less than a quarter of `batch_size` is set aside, and these
    texts, sorted by length, are padded to the longest of their batch: a small batch takes a GPU as
    long as a large one.

    Args:
        lengths: int [n], tokens of each text.
        batch_size: texts in a batch, at most.
        pad: whether a batch may hold several lengths.
        max_tokens: tokens in a batch of texts of one length, unless a single text has more.

    Returns:
        order: int64 [n], the texts' numbers; batches: (first, last, length, padded), which says
        that order[first:last] are to be padded to `length` tokens, if `padded`.
    """
    by_length = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[by_length])) + 1
    kept: list[np.ndarray] = []
    aside: list[np.ndarray] = []
    for rows in np.split(by_length, edges) if len(lengths) else []:
        size = batch_size
        if max_tokens is not None:
            size = max(1, min(size, max_tokens // max(1, int(lengths[rows[0]]))))
        for first in range(0, len(rows), size):
            batch = rows[first : first + size]
            (aside if pad and len(batch) < size / 4 else kept).append(batch)
    rest = np.concatenate(aside) if aside else by_length[:0]
    kept += [rest[first : first + batch_size] for first in range(0, len(rest), batch_size)]
    batches: list[Batch] = []
    first = 0
    for batch in kept:
        shortest, longest = lengths[batch[0]], lengths[batch[-1]]
        batches.append((first, first + len(batch), int(longest), bool(shortest != longest)))
        first += len(batch)
    return (np.concatenate(kept) if kept else by_length), batches


def plan_shapes(
    lengths: np.ndarray, batch_size: int, shapes: Shapes, *, limit: int, fill: bool = True
) -> tuple[np.ndarray, list[ShapedBatch]]:
    """Batches of few shapes.

    Args:
        lengths: int [n], tokens of each text.
        batch_size: texts in a batch, at most.
        shapes: with room > 0.
        limit: tokens that the model takes.
        fill: whether the last batch of a length has as many rows as the others; else as many as
            the next power of two.

    Returns:
        order: int64 [n], the texts' numbers; batches: (first, last, length, rows), which says that
        order[first:last] are to be padded to `length` tokens and repeated to make `rows`.
    """
    padded = np.minimum(-(-lengths // shapes.room) * shapes.room, limit)
    order, batches = plan_batches(padded, batch_size, pad=False, max_tokens=shapes.tokens)
    shaped = []
    for first, last, length, _ in batches:
        whole = max(1, min(batch_size, shapes.tokens // max(1, length)))
        rows = whole if fill else min(whole, 1 << (last - first - 1).bit_length())
        shaped.append((first, last, length, rows))
    return order, shaped
