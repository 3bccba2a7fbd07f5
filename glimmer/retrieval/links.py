"""Vectors -> links of an HNSW graph, without inserting one vector after the other.

A graph of nearest neighbours alone falls apart into islands. HNSW's has long links as well, which
come from its early vectors: when few were there, the nearest were far. Here they come from scales:
a random quarter of the vectors, a quarter of that, and so on, each with nearest neighbours among
its own. What a vector is linked to is then chosen from all its candidates by HNSW's heuristic
(Malkov and Yashunin 2016, algorithm 4: a candidate is kept if it is nearer to the vector than to
any that is kept already), and every link gets its reverse, as long as there is room.

All of it is torch on one device; the vectors may lie on another one, if they do not fit it. Who
finds the neighbours is an argument (`glimmer.retrieval.cagra` on a GPU, `exact_neighbours`
anywhere); `neighbours_by_parts` puts together what was found among parts of the vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

# (vectors [m, d], k) -> row numbers [m, <= k] of near ones, -1 where there is none.
Neighbours = Callable[["torch.Tensor", int], "torch.Tensor"]
# (queries [q, d], k) -> row numbers [q, k] within a part, -1 where there is none, and scores
# float32 [q, k], higher for nearer ones.
Search = Callable[["torch.Tensor", int], tuple["torch.Tensor", "torch.Tensor"]]

_RATIO = 4  # of a scale to the next larger one
_SCALE_LINKS = 32  # neighbours that a scale gives
_SMALLEST = 64  # vectors of the smallest scale, at least
_GATHERED = {"cpu": 1 << 27, "cuda": 1 << 31}  # bytes of candidates' vectors at a time
_EXACT_ROWS = 4096
_QUERIES = 1 << 16  # searched for at a time
_LINKS_AT_ONCE = 1 << 25  # reversed at a time


def graph_links(
    vectors: torch.Tensor,
    neighbours: Neighbours,
    levels: np.ndarray,
    *,
    degree: int,
    M: int,
    device: str | torch.device | None = None,
) -> list[np.ndarray]:
    """Links of every level, 0 first: int32 [vectors of that level, in their order, 2 M or M].

    Args:
        vectors: [n, d] of length 1.
        levels: [n], the highest level of each.
        neighbours, degree, device: as in `level_links`.
    """
    import torch

    options = {"degree": degree, "device": device}
    links = [level_links(vectors, neighbours, width=2 * M, **options)]
    for level in range(1, int(levels.max()) + 1):
        members = np.flatnonzero(levels >= level)
        if len(members) == 1:  # the entry point has nobody to be linked to
            links.append(np.full((1, M), -1, np.int32))
            continue
        rows = vectors[torch.from_numpy(members).to(vectors.device)]
        found = level_links(rows, neighbours, width=M, **options)
        links.append(np.where(found < 0, -1, members[found]).astype(np.int32))
    return links


def level_links(
    vectors: torch.Tensor,
    neighbours: Neighbours,
    *,
    degree: int,
    width: int,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> np.ndarray:
    """Links of one level among its vectors.

    Args:
        vectors: [n, d] of length 1.
        neighbours: finds near vectors.
        degree: neighbours asked for on the largest scale.
        width: links of a vector, at most: 2 M on level 0, M above.
        seed: of the scales.
        device: that does the work; None takes the vectors' own.

    Returns:
        int32 [n, width], -1 behind the last link of a row.
    """
    import torch

    n, home = len(vectors), vectors.device
    device = torch.device(device) if device is not None else home
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n)).to(home)
    # scales[s]: sorted members; found[s]: their neighbours, as rows of the whole.
    scales, found = [torch.arange(n, device=home)], []
    found.append(neighbours(vectors, min(degree, n - 1)).to(home, torch.int32))
    while (size := len(scales[-1]) // _RATIO) >= _SMALLEST:
        members = order[:size].sort().values
        rows = neighbours(vectors[members], min(_SCALE_LINKS, size - 1)).to(home).long()
        found.append(torch.where(rows < 0, -1, members[rows.clamp(min=0)]).int())
        scales.append(members)
    links = torch.full((n, width), -1, dtype=torch.int32, device=home)
    # Not a whole row, so that reverse links find room.
    kept = width * 3 // 4
    for s, members in enumerate(scales):
        # Members of this scale that are in no smaller one have candidates from scales 0 to s.
        if s + 1 < len(scales):
            members = members[~torch.isin(members, scales[s + 1])]
        places = [torch.searchsorted(scales[t], members) for t in range(s + 1)]
        bytes_a_row = vectors.shape[1] * 4 * sum(found[t].shape[1] for t in range(s + 1))
        step = max(1, _GATHERED[device.type] // bytes_a_row)
        for first in range(0, len(members), step):
            part = slice(first, first + step)
            candidates = torch.cat([found[t][places[t][part]] for t in range(s + 1)], dim=1)
            chosen = diversified(
                vectors, members[part].to(device), candidates.to(device), kept, width
            )
            links[members[part]] = chosen.to(home)
    del found, places
    return with_reverse(links.to(device)).cpu().numpy()


def diversified(
    vectors: torch.Tensor, rows: torch.Tensor, candidates: torch.Tensor, kept: int, width: int
) -> torch.Tensor:
    """HNSW's heuristic for many vectors at once: int32 [m, width], nearest first, at most `kept`.

    Args:
        vectors: [n, d] of length 1, on any device.
        rows: int64 [m], the vectors that are to be linked, on the device that does the work.
        candidates: int32 [m, c], -1 for none; may hold a vector twice or the vector itself.
    """
    import torch

    ids = torch.where(candidates == rows[:, None], -1, candidates).long()
    ids = ids.sort(dim=1, descending=True).values
    twice = torch.zeros_like(ids, dtype=torch.bool)
    twice[:, 1:] = ids[:, 1:] == ids[:, :-1]
    ids = torch.where(twice, -1, ids)

    def of(places: torch.Tensor) -> torch.Tensor:
        return vectors[places.to(vectors.device)].to(rows.device).float()

    near = of(ids.clamp(min=0))
    scores = torch.bmm(near, of(rows)[:, :, None])[:, :, 0]
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


def with_reverse(links: torch.Tensor, at_once: int = _LINKS_AT_ONCE) -> torch.Tensor:
    """`links` (int32 [n, width]) with the reverse of every link, where there is room and the
    reverse is not there: those of the nearest first. About `at_once` links are looked at at a time.
    """
    import torch

    n, width = links.shape
    device = links.device
    counts = (links >= 0).sum(1)
    step = max(1, at_once // width)
    pieces = [slice(first, min(first + step, n)) for first in range(0, n, step)]
    reached = torch.zeros(n, dtype=torch.int64, device=device)
    for piece in pieces:
        part = links[piece]
        reached += torch.bincount(part[part >= 0], minlength=n)
    # Ranges of targets, each reached by about `at_once` links.
    turns = torch.div(reached.cumsum(0), at_once, rounding_mode="floor")
    bounds = [0, *((turns[1:] != turns[:-1]).nonzero()[:, 0] + 1).tolist(), n]
    columns = torch.arange(width, device=device)
    for low, high in pairwise(bounds):
        sources, ranks, targets = [], [], []
        for piece in pieces:
            part = links[piece]
            # Reverse links of earlier turns stand behind a row's own.
            wanted = (part >= low) & (part < high) & (columns < counts[piece, None])
            row, rank = wanted.nonzero(as_tuple=True)
            target = part[row, rank].long()
            row += piece.start
            new = torch.cat(
                [
                    (links[target[at : at + step]] != row[at : at + step, None]).all(1)
                    for at in range(0, len(row), step)
                ]
                or [row.bool()]
            )
            sources.append(row[new])
            ranks.append(rank[new])
            targets.append(target[new])
        source, rank, target = torch.cat(sources), torch.cat(ranks), torch.cat(targets)
        order = (((target - low) * width + rank) * n + source).argsort()
        source, target = source[order], target[order]
        starts = torch.searchsorted(target, torch.arange(low, high, device=device))
        place = torch.arange(len(target), device=device)
        column = counts[target] + place - starts[target - low]
        fits = column < width
        links[target[fits], column[fits]] = source[fits].int()
    return links


def exact_neighbours(vectors: torch.Tensor, k: int) -> torch.Tensor:
    """int64 [n, k]: each vector's nearest others by inner product."""
    import torch

    found = []
    for first in range(0, len(vectors), _EXACT_ROWS):
        scores = vectors[first : first + _EXACT_ROWS].float() @ vectors.float().T
        own = torch.arange(len(scores), device=vectors.device)
        scores[own, own + first] = -torch.inf
        found.append(scores.topk(k, dim=1).indices)
    return torch.cat(found)


def neighbours_by_parts(
    vectors: torch.Tensor,
    k: int,
    search_in: Callable[[torch.Tensor], Search],
    *,
    parts: int,
    device: str | torch.device,
    seed: int = 0,
) -> torch.Tensor:
    """Each vector's nearest others, found part by part: int32 [n, k], nearest first, -1 for none.

    Every vector is searched for in every part, and the nearest of all parts are kept: what one part
    finds exactly, all of them do. The parts are random ones, so that they are of one size and one
    kind.

    Args:
        vectors: [n, d] of length 1, where there is room for all of them.
        search_in: a part's vectors [m, d], on `device` -> its search.
        parts: how many.
        device: that searches.
    """
    import torch

    n, home = len(vectors), vectors.device
    found = torch.full((n, k), -1, dtype=torch.int32, device=home)
    best = torch.full((n, k), -torch.inf, device=home)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n)).to(home)
    for members in order.chunk(parts):
        members = members.sort().values
        search = search_in(vectors[members].to(device))
        members = members.to(device)
        for first in range(0, n, _QUERIES):
            block = slice(first, first + _QUERIES)
            queries = vectors[block].to(device)
            own = torch.arange(first, first + len(queries), device=device)[:, None]
            # One more, since a vector finds itself.
            rows, scores = search(queries, min(k + 1, len(members)))
            rows = torch.where(rows < 0, own, members[rows.clamp(min=0)])
            scores = torch.where(rows == own, -torch.inf, scores)
            rows = torch.cat([found[block].to(device), rows.int()], dim=1)
            scores, place = torch.cat([best[block].to(device), scores], dim=1).topk(k, dim=1)
            rows = torch.where(scores > -torch.inf, rows.gather(1, place), -1)
            found[block], best[block] = rows.to(home), scores.to(home)
        del search
    return found
