"""faiss HNSW indexes as this project uses them: storage, reserved memory, links as arrays.

storage  faiss class                 bytes a vector
fp32     IndexHNSWFlat               4 d
fp16     IndexHNSWSQ, QT_fp16        2 d
sq8      IndexHNSWSQ, QT_8bit        d, ranges of each dimension from a seeded sample
Links, level and offset of a vector take 8 M + 4 M / (M - 1) + 12 bytes more, in the file and in
memory alike: level 0 has 2 M links of 4 bytes, and one vector in M has M on each level above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glimmer.errors import ConfigError
from glimmer.retrieval.sizes import STORAGES, rows_at_once

if TYPE_CHECKING:
    import faiss

# Vectors by which an 8-bit storage sets its ranges.
_LEAST_SAMPLE, _SAMPLE_SEED = 4096, 0
_LINKED_AT_ONCE = 1 << 16


def new_index(d: int, M: int, storage: str) -> faiss.IndexHNSW:
    """An empty index of inner products.

    Raises:
        ConfigError: no such storage.
    """
    import faiss

    if storage == "fp32":
        return faiss.IndexHNSWFlat(d, M, faiss.METRIC_INNER_PRODUCT)
    kinds = {"fp16": faiss.ScalarQuantizer.QT_fp16, "sq8": faiss.ScalarQuantizer.QT_8bit}
    if storage not in kinds:
        raise ConfigError(
            f"index.storage: found {storage!r}, expected one of {', '.join(STORAGES)}."
        )
    return faiss.IndexHNSWSQ(d, kinds[storage], M, faiss.METRIC_INNER_PRODUCT)


def reserve(index: faiss.IndexHNSW, n: int) -> None:
    """Make room for n vectors, so that none of faiss' arrays is ever copied into a larger one.

    They grow by doubling, and while one is copied there are two of it. faiss offers no `reserve`;
    an array that was resized and emptied keeps its room.
    """
    import faiss

    inner = faiss.downcast_index(index.storage)
    M = index.hnsw.nb_neighbors(1)
    # Links on upper levels vary: eight standard deviations, so a second copy is never needed.
    links = int(n * (2 * M + M / (M - 1)) + 8 * math.sqrt(n * M) + 8 * M)
    for array, size, kept in (
        (inner.codes, n * inner.code_size, 0),
        (index.hnsw.levels, n, 0),
        (index.hnsw.offsets, n + 1, 1),
        (index.hnsw.neighbors, links, 0),
    ):
        array.resize(size)
        array.resize(kept)


def fill(
    index: faiss.IndexHNSW,
    shards: Sequence[Path],
    n: int,
    *,
    progress: Callable[[int], None] = lambda rows: None,
) -> None:
    """Train the storage if it needs it, and add the n vectors of the shards, in their order."""
    import faiss

    if not index.is_trained:
        index.train(sample(shards, n))
    reserve(index, n)
    for block in blocks(shards, rows_at_once(n, faiss.omp_get_max_threads())):
        index.add(block)
        progress(len(block))


def sample(shards: Sequence[Path], n: int) -> np.ndarray:
    """Float32 vectors at seeded random places: half a block, and no fewer than 4,096.

    Read one by one into one array, as `blocks` does and for its reason.
    """
    size = min(n, max(_LEAST_SAMPLE, rows_at_once(n) // 2))
    chosen = np.sort(np.random.default_rng(_SAMPLE_SEED).choice(n, size, replace=False))
    found: np.ndarray | None = None
    first = place = 0
    for path in shards:
        with open(path, "rb", buffering=0) as handle:
            count, width = _shape(handle)
            begin = handle.tell()
            if found is None:
                found = np.empty((size, width), np.float32)
            while place < size and chosen[place] < first + count:
                handle.seek(begin + int(chosen[place] - first) * width * 4)
                if handle.readinto(memoryview(found[place]).cast("B")) != width * 4:
                    raise OSError(f"{path}: ended before its {count} vectors")
                place += 1
            first += count
    return found[:place]


def blocks(shards: Sequence[Path], rows: int) -> Iterator[np.ndarray]:
    """Float32 [<= rows, d] of the shards' vectors, read into one buffer that is used again.

    Not memory-mapped: pages of a mapped shard would count as this process' memory.
    """
    buffer: np.ndarray | None = None
    for path in shards:
        with open(path, "rb") as handle:
            count, width = _shape(handle)
            if buffer is None:
                buffer = np.empty((rows, width), np.float32)
            for start in range(0, count, rows):
                block = buffer[: min(rows, count - start)]
                if handle.readinto(memoryview(block).cast("B")) != block.nbytes:
                    raise OSError(f"{path}: ended before its {count} vectors")
                yield block


def _shape(handle: Any) -> tuple[int, int]:
    """Rows and width of a float32 .npy file; the handle is left at its first vector."""
    version = np.lib.format.read_magic(handle)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else (np.lib.format.read_array_header_2_0)
    )
    shape, fortran, dtype = read(handle)
    if fortran or dtype != np.dtype("<f4") or len(shape) != 2:
        raise OSError(f"{handle.name}: found {dtype} {shape}, expected float32 [rows, width]")
    return shape


def draw_levels(n: int, M: int, seed: int = 0) -> np.ndarray:
    """The highest level of each of n vectors, int32 [n]: one in M reaches a level's next one.

    Malkov and Yashunin 2016, algorithm 1: floor(-ln(u) / ln(M)) for u uniform in (0, 1].
    """
    uniform = 1.0 - np.random.default_rng(seed).random(n)
    return np.floor(-np.log(uniform) / math.log(M)).astype(np.int32)


def assemble(
    index: faiss.IndexHNSW,
    shards: Sequence[Path],
    levels: np.ndarray,
    links: Sequence[np.ndarray],
    *,
    progress: Callable[[int], None] = lambda rows: None,
) -> None:
    """Fill an empty index with the vectors of the shards and links that are there already.

    Args:
        levels: int32 [n], the highest level of each vector.
        links: of each level, 0 first: int32 [vectors of that level, in their order, <= 2 M or M],
            rows of the whole, -1 behind the last one of a row.
    """
    import faiss

    n = len(levels)
    if not index.is_trained:
        index.train(sample(shards, n))
    reserve(index, n)
    hnsw = index.hnsw
    hnsw.levels.resize(n)
    faiss.rev_swig_ptr(hnsw.levels.data(), n)[:] = levels + 1  # faiss counts them
    hnsw.max_level = hnsw.prepare_level_tab(n, True)
    hnsw.entry_point = int(levels.argmax())
    neighbors = faiss.rev_swig_ptr(hnsw.neighbors.data(), hnsw.neighbors.size())
    offsets = faiss.rev_swig_ptr(hnsw.offsets.data(), n + 1)
    for level, of_level in enumerate(links):
        members = np.flatnonzero(levels >= level)
        places = hnsw.cum_nb_neighbors(level) + np.arange(of_level.shape[1])
        for first in range(0, len(members), _LINKED_AT_ONCE):
            part = slice(first, first + _LINKED_AT_ONCE)
            at = offsets[members[part]].astype(np.int64)
            neighbors[at[:, None] + places] = of_level[part]
    storage = faiss.downcast_index(index.storage)
    for block in blocks(shards, rows_at_once(n)):
        storage.add(block)
        index.ntotal = storage.ntotal
        progress(len(block))
