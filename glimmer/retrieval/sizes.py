"""What an index takes, by arithmetic: of its file, of memory and of a GPU. Figures are bytes."""

from __future__ import annotations

STORAGES = {"fp32": 4, "fp16": 2, "sq8": 1}  # bytes a dimension
# Vectors handed to faiss at a time; part of what the graph depends on. Few are one block; of many,
# one in 256, since each call allocates a few bytes for every vector that is there. faiss inserts by
# several threads only what is more than 100 vectors of a level, so threads need larger blocks; of
# few vectors smaller ones all the same, since a block then counts beside the index.
_ONE_BLOCK, _PARTS = 4096, 256
_LEAST_ROWS, _LEAST_ROWS_THREADS, _FEW_PARTS = 1024, 4096, 32
# On a GPU beside what grows with the vectors: a context, faiss' own room, candidates at work.
GPU_WORK = 6 << 30
_MOST_PARTS = 64


def index_bytes(n: int, d: int, M: int, storage: str = "fp32") -> int:
    """Bytes of an index file, and of memory while it is served (memory-mapped)."""
    return round(n * (STORAGES[storage] * d + 8 * M + 4 * M / (M - 1) + 12))


def build_bytes(n: int, d: int, M: int, storage: str = "fp32", threads: int = 1) -> int:
    """Peak memory of building it, by arithmetic: the index, a block of float32 vectors, the
    corpus' offsets, and a lock and each thread's mark for every vector."""
    block = 4 * d * rows_at_once(n, threads)
    return index_bytes(n, d, M, storage) + block + n * (8 + 4 + threads)


def rows_at_once(n: int, threads: int = 1) -> int:
    """Vectors in a block, of n in all."""
    least = _LEAST_ROWS
    if threads > 1:
        least = min(_LEAST_ROWS_THREADS, max(least, n // _FEW_PARTS))
    return n if n <= _ONE_BLOCK else min(n, max(least, n // _PARTS))


def gpu_bytes(n: int, d: int, graph_degree: int, intermediate_degree: int, parts: int = 1) -> int:
    """GPU memory that a build takes, by arithmetic.

    In one part: half-precision vectors, cuVS' own copy of them while it looks for neighbours, both
    graphs, links of each scale. In several, that of one part, or the links of all.
    """
    graphs = 4 * (graph_degree + intermediate_degree)
    if parts == 1:
        return n * (4 * d + graphs + 4 * 32 // 3) + GPU_WORK
    return max(-(-n // parts) * (4 * d + graphs), n * 8 * graph_degree) + GPU_WORK


def gpu_parts(
    n: int, d: int, graph_degree: int, intermediate_degree: int, there: int
) -> int | None:
    """The fewest parts in which a GPU with `there` bytes builds; None if it is too small."""
    for parts in range(1, _MOST_PARTS + 1):
        if gpu_bytes(n, d, graph_degree, intermediate_degree, parts) <= there:
            return parts
    return None
