"""HNSW's links from a GPU: cuVS' CAGRA finds the neighbours, `glimmer.retrieval.links` links them.

faiss' own way from a CAGRA graph to the CPU (`GpuIndexCagra.copyTo` to an `IndexHNSWCagra` with
`base_level_only`) is not taken: its search begins at random places, drawn anew each time, so that
two searches for one query may differ, and its links were slower at equal recall. What is made here
is the file of a CPU build: the levels above 0 are inserted by the CPU (one vector in M), level 0 is
linked on the GPU.

Needs faiss-gpu-cuvs in place of faiss-cpu, and torch for CUDA. The vectors lie on the GPU in half
precision; `gpu_bytes` says what a card must have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glimmer.errors import ConfigError
from glimmer.retrieval.hnsw import blocks
from glimmer.retrieval.links import exact_neighbours, ground_links
from glimmer.retrieval.sizes import LINKS_WORK, gpu_bytes, rows_at_once

if TYPE_CHECKING:
    import faiss
    import torch

BUILD_ALGOS = ("nn_descent", "ivf_pq")
# Below this, exact search is as fast, and CAGRA's graph degree may be more than there are vectors.
_EXACT_BELOW = 1 << 15
_ALIGNED = 8  # dimensions: CAGRA wants rows of a multiple of 16 bytes


def check_gpu(n: int, d: int, *, graph_degree: int, intermediate_degree: int) -> None:
    """Refuse what this environment or its GPU cannot build.

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
    need, there = (
        gpu_bytes(n, d, graph_degree, intermediate_degree),
        torch.cuda.get_device_properties(0).total_memory,
    )
    if need > there:
        raise ConfigError(
            f"index.backend: found 'cagra' for {n} vectors of {d} dimensions, which need {n} x "
            f"(2 x {d} + 4 x ({graph_degree} + {intermediate_degree}) + {LINKS_WORK} + 42) bytes = "
            f"{need / 1e9:.1f} GB; {torch.cuda.get_device_name(0)} has {there / 1e9:.1f} GB, room "
            f"for {int(n * there / need)} vectors. Set index.backend to faiss-cpu, lower "
            f"index.graph_degree and index.intermediate_graph_degree, or take a larger GPU."
        )


def link_on_gpu(
    index: faiss.IndexHNSW,
    shards: Sequence[Path],
    n: int,
    *,
    graph_degree: int,
    intermediate_degree: int,
    build_algo: str,
) -> np.ndarray:
    """Level 0's links of the vectors of the shards: int32 [n, 2 M]."""
    vectors = load(shards, n, index.d, device="cuda")
    settings = {"intermediate": intermediate_degree, "build_algo": build_algo}

    def neighbours(rows: torch.Tensor, k: int) -> torch.Tensor:
        if len(rows) < _EXACT_BELOW:
            return exact_neighbours(rows, k)
        return cagra_graph(rows, k, **settings)

    return ground_links(vectors, neighbours, degree=graph_degree, width=index.hnsw.nb_neighbors(0))


def load(shards: Sequence[Path], n: int, d: int, *, device: str) -> torch.Tensor:
    """The shards' vectors on a device, [n, d padded with zeros]: half precision on a GPU."""
    import torch

    dtype = torch.float32 if device == "cpu" else torch.float16
    vectors = torch.zeros(n, -(-d // _ALIGNED) * _ALIGNED, dtype=dtype, device=device)
    first = 0
    for block in blocks(shards, rows_at_once(n)):
        vectors[first : first + len(block), :d] = torch.from_numpy(block).to(device, dtype)
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

    device = vectors.device.index or 0
    # torch keeps what it frees; cuVS allocates beside it.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    index = faiss.GpuIndexCagra(
        resources(),
        vectors.shape[1],
        faiss.METRIC_L2,
        configured(k, intermediate, build_algo, device),
    )
    pointer = faiss.cast_integer_to_void_ptr(vectors.data_ptr())
    index.train_ex(len(vectors), pointer, faiss.Float16)
    graph = faiss.vector_to_array(index.get_knngraph()).astype(np.int32)
    del index
    return torch.from_numpy(graph.reshape(len(vectors), -1)).to(vectors.device)


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
