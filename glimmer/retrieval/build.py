"""Vectors -> HNSW index with its record: the folder that `glimmer.retrieval.index` opens.

Shards are read one after the other, block by block, into memory that was reserved for all of them,
and the file is written from there: peak memory is that of the index and a little (`build_bytes`).

What is deterministic: with `faiss-cpu` and one thread, equal vectors give an equal file. With more
threads, the order in which they insert decides, and two builds differ in their links; `cagra`
differs from build to build as well. index.json says which it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glimmer.errors import ConfigError, DataError
from glimmer.files import atomic_path, sha256_file, write_json
from glimmer.progress import Progress
from glimmer.retrieval.hnsw import assemble, draw_levels, fill, new_index
from glimmer.retrieval.index import FORMAT, read_shards
from glimmer.retrieval.passages import scan_corpus
from glimmer.retrieval.sizes import STORAGES

if TYPE_CHECKING:
    import faiss

BACKENDS = ("faiss-cpu", "cagra")


def build_index(
    vectors: Sequence[Path],
    corpus: Path,
    out: Path,
    *,
    M: int = 32,
    ef_construction: int = 200,
    ef_search: int = 64,
    threads: int = 1,
    storage: str = "fp32",
    backend: str = "faiss-cpu",
    graph_degree: int = 64,
    intermediate_graph_degree: int = 128,
    build_algo: str = "nn_descent",
) -> dict[str, Any]:
    """Build the HNSW index of a corpus from the shards of its vectors, in any order.

    Args:
        vectors: the .npy files of all shards, each with its .json beside it.
        corpus: the JSONL that was embedded.
        out: folder to write to.
        M: neighbours a node keeps on the upper layers; twice as many on the lowest.
        ef_construction: candidates looked at when a node is inserted.
        ef_search: candidates looked at by a search; recorded for the service.
        threads: faiss threads; with 1 the file is the same each time.
        storage: fp32, fp16 or sq8, see `glimmer.retrieval.hnsw`.
        backend: faiss-cpu inserts every vector; cagra links all levels on a GPU, see
            `glimmer.retrieval.cagra`. The file is of the same kind.
        graph_degree, intermediate_graph_degree, build_algo: of CAGRA's graph; of cagra only.

    Returns:
        What index.json holds.

    Raises:
        ConfigError: a parameter out of range, or a backend that this environment does not have.
        IntegrityError: shards that are missing, too many, damaged, of different models or of
            another corpus.
        DataError: the disk is full or `out` cannot be written.
    """
    import faiss

    for name, value in (("M", M), ("ef_construction", ef_construction), ("ef_search", ef_search)):
        if value < (2 if name == "M" else 1):
            raise ConfigError(f"index.{name}: found {value}, expected a positive number (M >= 2).")
    if threads < 1:
        raise ConfigError(f"index.threads: found {threads}, expected at least 1.")
    if storage not in STORAGES:
        raise ConfigError(
            f"index.storage: found {storage!r}, expected one of {', '.join(STORAGES)}."
        )
    if backend not in BACKENDS:
        raise ConfigError(
            f"index.backend: found {backend!r}, expected one of {', '.join(BACKENDS)}."
        )
    out = Path(out)
    scan = scan_corpus(corpus)
    shards = read_shards(vectors, corpus_sha256=scan.sha256, corpus_rows=len(scan), corpus=corpus)
    files = [Path(shard["path"]) for shard in shards]
    width = shards[0]["dimension"]
    on_gpu = backend == "cagra"
    made_by: dict[str, Any] = {"backend": backend, "threads": threads}
    if on_gpu:
        from glimmer.retrieval.cagra import check_gpu, link_on_gpu

        graph = {"graph_degree": graph_degree, "intermediate_degree": intermediate_graph_degree}
        parts = check_gpu(len(scan), width, **graph)
        made_by |= graph | {"build_algo": build_algo, "parts": parts}
    previous = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        if on_gpu:
            # Before the index has memory: what leads to the links takes a third of it.
            levels = draw_levels(len(scan), M)
            links = link_on_gpu(
                files, levels, width, M=M, build_algo=build_algo, parts=parts, **graph
            )
        index = new_index(width, M, storage)
        index.hnsw.efConstruction = ef_construction
        index.hnsw.efSearch = ef_search
        with Progress(len(scan), "building the index", unit=" passages") as progress:
            if on_gpu:
                assemble(index, files, levels, links, progress=progress.update)
            else:
                fill(index, files, len(scan), progress=progress.update)
        record = {
            "format": FORMAT,
            "metric": "inner_product",
            "n": len(scan),
            "d": width,
            "M": M,
            "ef_construction": ef_construction,
            "ef_search": ef_search,
            "storage": storage,
            **made_by,
            "deterministic": threads == 1 and not on_gpu,
            "faiss": faiss.__version__,
            "model": shards[0]["model"],
            "corpus": {"sha256": scan.sha256, "bytes": int(scan.offsets[-1]), "rows": len(scan)},
            "vectors": [
                {"file": Path(shard["path"]).name, "rows": shard["rows"], "sha256": shard["sha256"]}
                for shard in shards
            ],
        }
        return _write(index, scan.offsets, record, out)
    finally:
        faiss.omp_set_num_threads(previous)


def _write(index: faiss.Index, offsets: np.ndarray, record: dict[str, Any], out: Path) -> dict:
    """Write the folder, index.json last; the completed record."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "index.json").unlink(missing_ok=True)
        with atomic_path(out / "offsets.npy") as path, open(path, "wb") as handle:
            np.save(handle, offsets)
        with atomic_path(out / "index.faiss") as path:
            write_faiss(index, path)
        record["offsets"] = {"sha256": sha256_file(out / "offsets.npy")}
        record["index"] = {
            "file": "index.faiss",
            "bytes": (out / "index.faiss").stat().st_size,
            "sha256": sha256_file(out / "index.faiss"),
        }
        write_json(out / "index.json", record)
    except OSError as error:
        raise DataError(
            f"{out}: the index could not be written ({error.strerror or error}). "
            f"Free some space or correct the folder's permissions, and run again; the vectors "
            f"are kept."
        ) from error
    return record


def write_faiss(index: faiss.Index, path: Path) -> None:
    """faiss's own writer over a Python file, so that a full disk raises OSError. It copies no more
    than a megabyte at a time."""
    import faiss

    with open(path, "wb") as handle:
        faiss.write_index(index, faiss.PyCallbackIOWriter(handle.write))
