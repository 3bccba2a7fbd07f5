"""HNSW's links from a GPU: cuVS' CAGRA finds the neighbours, `glimmer.retrieval.links` links them.

faiss' own way from a CAGRA graph to the CPU (`GpuIndexCagra.copyTo` to an `IndexHNSWCagra` with
`base_level_only`) is not taken: its search begins at random places, drawn anew each time, so that
two searches for one query may differ, and its links were slower at equal recall. What is made here
is the file of a CPU build: levels are drawn as HNSW draws them, and each is linked on the GPU.

Needs faiss-gpu-cuvs in place of faiss-cpu, and torch for CUDA. Vectors are in half precision there;
`glimmer.retrieval.sizes.gpu_bytes` says what a card must have. Where they do not all fit it, they
lie in the host's memory: neighbours are then looked for part by part, each part's graph being
searched for every vector, and candidates are fetched from the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glimmer.errors import ConfigError
from glimmer.retrieval.hnsw import blocks
from glimmer.retrieval.links import Search, exact_neighbours, graph_links, neighbours_by_parts
from glimmer.retrieval.sizes import gpu_bytes, gpu_parts, rows_at_once

if TYPE_CHECKING:
    import torch

BUILD_ALGOS = ("nn_descent", "ivf_pq")
# Below this, exact search is as fast, and CAGRA's graph degree may be more than there are vectors.
_EXACT_BELOW = 1 << 15
_ALIGNED = 8  # dimensions: CAGRA wants rows of a multiple of 16 bytes
_DEVICE = "cuda"
_COPIED = 1 << 26  # links of a graph
_CANDIDATES = 32  # of a search by CAGRA, in multiples of these


def check_gpu(
    n: int, d: int, *, graph_degree: int, intermediate_degree: int, there: int | None = None
) -> int:
    """In how many parts this environment's GPU builds; `there`: bytes to take instead of all.

    Raises:
        ConfigError: faiss is not the one with cuVS, no GPU is seen, or it is too small.
    """
    import faiss
    import torch

    if not hasattr(faiss, "GpuIndexCagra"):
        raise ConfigError(
            f"index.backend: found 'cagra', but faiss {faiss.__version__} of this environment is "
            f"built without cuVS. Install faiss-gpu-cuvs in place of faiss-cpu (the index files "
            f"are the same), or set index.backend to faiss-cpu."
        )
    if not torch.cuda.is_available() or faiss.get_num_gpus() < 1:
        raise ConfigError(
            f"index.backend: found 'cagra', but torch {torch.__version__} and faiss see no GPU. "
            f"Ask the scheduler for one, or set index.backend to faiss-cpu."
        )
    there = there or torch.cuda.get_device_properties(0).total_memory
    degrees = graph_degree, intermediate_degree
    parts = gpu_parts(n, _padded(d), *degrees, there)
    if parts is None:
        raise ConfigError(
            f"index.backend: found 'cagra' for {n} vectors of {d} dimensions, graph_degree "
            f"{graph_degree} and intermediate_graph_degree {intermediate_degree}; they need "
            f"{gpu_bytes(n, _padded(d), *degrees) / 1e9:.1f} GB on a GPU, or less in parts, but "
            f"{torch.cuda.get_device_name(0)} has {there / 1e9:.1f} GB, too few for any number of "
            f"parts. Set index.backend to faiss-cpu, lower the degrees, or take a larger GPU."
        )
    return parts


def link_on_gpu(
    shards: Sequence[Path],
    levels: np.ndarray,
    d: int,
    *,
    M: int,
    graph_degree: int,
    intermediate_degree: int,
    build_algo: str,
    parts: int = 1,
) -> list[np.ndarray]:
    """Links of each level, 0 first, as `links.graph_links` has them; levels: of each vector, [n].

    In host memory this takes about 12 bytes for each of a vector's neighbours, and the
    half-precision vectors as well if there is more than one part.
    """
    n = len(levels)
    vectors = load(shards, n, d, device=_DEVICE if parts == 1 else "cpu", dtype="float16")
    settings = {"intermediate": intermediate_degree, "build_algo": build_algo}

    def neighbours(rows: torch.Tensor, k: int) -> torch.Tensor:
        if len(rows) < _EXACT_BELOW:
            return exact_neighbours(rows.to(_DEVICE), k)
        # A smaller scale may do with fewer parts.
        wanted = -(-parts * len(rows) // n)
        if wanted == 1:
            return cagra_graph(rows.to(_DEVICE), k, **settings)
        return neighbours_by_parts(
            rows, k, lambda part: cagra_search(part, k, **settings), parts=wanted, device=_DEVICE
        )

    return graph_links(vectors, neighbours, levels, degree=graph_degree, M=M, device=_DEVICE)


def load(
    shards: Sequence[Path], n: int, d: int, *, device: str, dtype: str = "float32"
) -> torch.Tensor:
    """The shards' vectors on a device: `dtype` [n, d padded with zeros to a multiple of 8]."""
    import torch

    vectors = torch.zeros(n, _padded(d), dtype=getattr(torch, dtype), device=device)
    first = 0
    for block in blocks(shards, rows_at_once(n)):
        vectors[first : first + len(block), :d] = torch.from_numpy(block).to(device)
        first += len(block)
    return vectors


def cagra_graph(
    vectors: torch.Tensor, k: int, *, intermediate: int, build_algo: str
) -> torch.Tensor:
    """cuVS' CAGRA graph of half-precision vectors on a GPU: int32 [n, k] on that GPU.

    By distance, which orders vectors of length 1 as their inner product does. Not deterministic.
    """
    import faiss
    import torch

    index = _trained(vectors, k, intermediate=intermediate, build_algo=build_algo, search=False)
    graph = index.get_knngraph()
    flat = faiss.rev_swig_ptr(graph.data(), graph.size())
    found = torch.empty(len(flat), dtype=torch.int32, device=vectors.device)
    for first in range(0, len(flat), _COPIED):
        block = flat[first : first + _COPIED].astype(np.int32)
        found[first : first + len(block)] = torch.from_numpy(block).to(vectors.device)
    return found.reshape(len(vectors), -1)


def cagra_search(vectors: torch.Tensor, k: int, *, intermediate: int, build_algo: str) -> Search:
    """A search of half-precision vectors on a GPU, by a CAGRA graph of degree k."""
    import faiss
    import torch

    index = _trained(vectors, k, intermediate=intermediate, build_algo=build_algo, search=True)

    def search(queries: torch.Tensor, wanted: int) -> tuple[torch.Tensor, torch.Tensor]:
        params = faiss.SearchParametersCagra()
        params.itopk_size = _CANDIDATES * -(-2 * wanted // _CANDIDATES)
        distances, rows = index.search(
            queries.cpu().numpy(), wanted, params=params, numeric_type=faiss.Float16
        )
        rows = torch.from_numpy(rows).to(vectors.device)
        return rows, -torch.from_numpy(distances).to(vectors.device)

    return search


def _trained(
    vectors: torch.Tensor, k: int, *, intermediate: int, build_algo: str, search: bool
) -> Any:
    """A faiss.GpuIndexCagra over vectors that it does not copy; they live as long as it does."""
    import faiss
    import torch

    device = vectors.device.index or 0
    config = configured(k, intermediate, build_algo, device)
    # Only a search needs the vectors attached to the graph.
    config.store_dataset = search
    index = faiss.GpuIndexCagra(resources(), vectors.shape[1], faiss.METRIC_L2, config)
    # faiss has a stream of its own, and torch keeps memory that it has freed.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    index.train_ex(len(vectors), faiss.cast_integer_to_void_ptr(vectors.data_ptr()), faiss.Float16)
    return index


def _padded(d: int) -> int:
    return -(-d // _ALIGNED) * _ALIGNED


def configured(k: int, intermediate: int, build_algo: str, device: int = 0) -> Any:
    """A faiss.GpuIndexCagraConfig."""
    import faiss

    config = faiss.GpuIndexCagraConfig()
    config.device = device
    config.graph_degree = k
    config.intermediate_graph_degree = max(intermediate, k)
    config.build_algo = {
        "nn_descent": faiss.graph_build_algo_NN_DESCENT,
        "ivf_pq": faiss.graph_build_algo_IVF_PQ,
    }[build_algo]
    return config


_RESOURCES: list[Any] = []


def resources() -> Any:
    """faiss' GPU resources, made once a process."""
    import faiss

    if not _RESOURCES:
        _RESOURCES.append(faiss.StandardGpuResources())
    return _RESOURCES[0]
