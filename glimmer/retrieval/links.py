"""Vectors -> links of an HNSW graph's lowest level, without inserting one vector after the other.

A graph of nearest neighbours alone falls apart into islands. HNSW's has long links as well, which
come from its early vectors: when few were there, the nearest were far. Here they come from scales:
a random quarter of the vectors, a quarter of that, and so on, each with nearest neighbours among
its own. What a vector is linked to is then chosen from all its candidates by HNSW's heuristic
(Malkov and Yashunin 2016, algorithm 4: a candidate is kept if it is nearer to the vector than to
any that is kept already), and every link gets its reverse, as long as there is room.

All of it is torch on one device; who finds the neighbours is an argument (`glimmer.retrieval.cagra`
on a GPU, `exact_neighbours` anywhere).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

# (vectors [m, d], k) -> row numbers [m, <= k] of near ones, -1 where there is none.
Neighbours = Callable[["torch.Tensor", int], "torch.Tensor"]

_RATIO = 4  # of a scale to the next larger one
_SCALE_LINKS = 32  # neighbours that a scale gives
_SMALLEST = 64  # vectors of the smallest scale, at least
_GATHERED = {"cpu": 1 << 27, "cuda": 1 << 31}  # bytes of candidates' vectors at a time
_EXACT_ROWS = 4096


def ground_links(
    vectors: torch.Tensor, neighbours: Neighbours, *, degree: int, width: int, seed: int = 0
) -> np.ndarray:
    """Links of level 0.

    Args:
        vectors: [n, d] of length 1, on the device that does the work.
        neighbours: finds near vectors.
        degree: neighbours asked for on the largest scale.
        width: links of a vector, at most: 2 M.
        seed: of the scales.

    Returns:
        int32 [n, width], -1 behind the last link of a row.
    """
    import torch

    n = len(vectors)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n)).to(vectors.device)
    # scales[s]: sorted members; found[s]: their neighbours, as rows of the whole.
    scales, found = [torch.arange(n, device=vectors.device)], []
    found.append(neighbours(vectors, min(degree, n - 1)).int())
    while (size := len(scales[-1]) // _RATIO) >= _SMALLEST:
        members = order[:size].sort().values
        rows = neighbours(vectors[members], min(_SCALE_LINKS, size - 1)).long()
        found.append(torch.where(rows < 0, -1, members[rows.clamp(min=0)]).int())
        scales.append(members)
    links = torch.full((n, width), -1, dtype=torch.int32, device=vectors.device)
    # Not a whole row, so that reverse links find room.
    kept = width * 3 // 4
    for s, members in enumerate(scales):
        # Members of this scale that are in no smaller one have candidates from scales 0 to s.
        if s + 1 < len(scales):
            members = members[~torch.isin(members, scales[s + 1])]
        places = [torch.searchsorted(scales[t], members) for t in range(s + 1)]
        bytes_a_row = vectors.shape[1] * 4 * sum(found[t].shape[1] for t in range(s + 1))
        step = max(1, _GATHERED[vectors.device.type] // bytes_a_row)
        for first in range(0, len(members), step):
            part = slice(first, first + step)
            candidates = torch.cat([found[t][places[t][part]] for t in range(s + 1)], dim=1)
            links[members[part]] = diversified(vectors, members[part], candidates, kept, width)
    return with_reverse(links).cpu().numpy()


def diversified(
    vectors: torch.Tensor, rows: torch.Tensor, candidates: torch.Tensor, kept: int, width: int
) -> torch.Tensor:
    """HNSW's heuristic for many vectors at once: int32 [m, width], nearest first, at most `kept`.

    Args:
        vectors: [n, d] of length 1.
        rows: int64 [m], the vectors that are to be linked.
        candidates: int32 [m, c], -1 for none; may hold a vector twice or the vector itself.
    """
    import torch

    ids = torch.where(candidates == rows[:, None], -1, candidates).long()
    ids = ids.sort(dim=1, descending=True).values
    twice = torch.zeros_like(ids, dtype=torch.bool)
    twice[:, 1:] = ids[:, 1:] == ids[:, :-1]
    ids = torch.where(twice, -1, ids)
    near = vectors[ids.clamp(min=0)].float()
    scores = torch.bmm(near, vectors[rows].float()[:, :, None])[:, :, 0]
    scores = torch.where(ids >= 0, scores, -torch.inf)
    # Ties by row number: `sort` of ids above, kept by a stable sort here.
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, order)
    near = near.gather(1, order[:, :, None].expand_as(near))
    between = torch.bmm(near, near.transpose(1, 2))
    del near
    open_ = ids >= 0
    taken = torch.zeros_like(open_)
    count = torch.zeros(len(rows), dtype=torch.int64, device=ids.device)
    for j in range(ids.shape[1]):
        take = open_[:, j] & (count < kept)
        taken[:, j] = take
        count += take
        # What is nearer to the one that was taken than to the vector itself is reached by it.
        open_ &= ~(take[:, None] & (between[:, j] > scores))
    links = torch.full((len(rows), width + 1), -1, dtype=torch.int32, device=ids.device)
    # What is not taken goes to a column that is cut off.
    place = torch.where(taken, taken.cumsum(1) - 1, width)
    links.scatter_(1, place, torch.where(taken, ids, -1).int())
    return links[:, :width]


def with_reverse(links: torch.Tensor) -> torch.Tensor:
    """`links` (int32 [n, width]) with the reverse of every link, where there is room and the
    reverse is not there: those of the nearest first."""
    import torch

    n, width = links.shape
    sources, ranks = (links >= 0).nonzero(as_tuple=True)
    targets = links[sources, ranks].long()
    forward = (sources * n + targets).sort().values
    backward = targets * n + sources
    place = torch.searchsorted(forward, backward).clamp(max=len(forward) - 1)
    new = forward[place] != backward
    sources, targets, ranks = sources[new], targets[new], ranks[new]
    order = ((targets * width + ranks) * n + sources).argsort()
    sources, targets = sources[order], targets[order]
    counts = (links >= 0).sum(1)
    starts = torch.searchsorted(targets, torch.arange(n, device=links.device))
    column = counts[targets] + torch.arange(len(targets), device=links.device) - starts[targets]
    fits = column < width
    links[targets[fits], column[fits]] = sources[fits].int()
    return links


def exact_neighbours(vectors: torch.Tensor, k: int) -> torch.Tensor:
    """int64 [n, k]: each vector's nearest others by inner product."""
    import torch

    found = []
    for first in range(0, len(vectors), _EXACT_ROWS):
        scores = vectors[first : first + _EXACT_ROWS] @ vectors.T
        own = torch.arange(len(scores), device=vectors.device)
        scores[own, own + first] = -torch.inf
        found.append(scores.topk(k, dim=1).indices)
    return torch.cat(found)
