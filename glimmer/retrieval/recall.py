"""The recall gate: HNSW against exact search over the same vectors.

recall@k of a query = |first k of HNSW and first k of exact search| / k, averaged over the queries
(the measure of ann-benchmarks). Retrieval is the ceiling of everything after it, so this is
measured before training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.errors import ConfigError, IntegrityError
from glimmer.files import write_json
from glimmer.logs import get_logger
from glimmer.retrieval.encoder import Encoder
from glimmer.retrieval.index import SEARCH, check_k, check_model, open_index, read_shards

logger = get_logger(__name__)

# Vectors compared at a time by exact search: 0.8 GB at d = 768.
_EXACT_ROWS = 1 << 18
_SWEEP = (8, 16, 32, 64, 128, 256, 512)


def measure_recall(
    index: Path,
    corpus: Path,
    vectors: Sequence[Path],
    *,
    queries: Sequence[str],
    k: int = 3,
    min_recall: float = 0.99,
    threads: int = 1,
    model: str | None = None,
    device: str = "cpu",
    ef_search: int | None = None,
    encoder: Encoder | None = None,
) -> dict[str, Any]:
    """Verdict on the index: recall@k of its HNSW search over `queries`.

    Args:
        index: folder written by `build_index`.
        corpus: its corpus.
        vectors: the .npy shards it was built from.
        queries: query texts, without prefix.
        k: passages that count.
        min_recall: the gate, 0 to 1.
        threads: torch and faiss threads.
        model: the embedding model's setting; None takes the name recorded in the index.
        device: torch device for the queries.
        ef_search: candidates of a search; None takes the index's own.
        encoder: a loaded model to use instead.

    Returns:
        {"gate": "recall", "passed", "measured", "threshold", "measured_on", "details"}; `details`
        lists the queries with the lowest recall.

    Raises:
        ConfigError: k < 1, k > n, efSearch < k, no queries, or min_recall not within 0 to 1.
        IntegrityError: index, corpus, vectors and model do not belong together.
    """
    import faiss

    opened = open_index(index, corpus, ef_search=ef_search)
    check_k(k, opened.ef_search, len(opened), "recall.k")
    if not queries:
        raise ConfigError("recall.queries: no query to measure with; expected at least one.")
    if not 0 < min_recall <= 1:
        raise ConfigError(f"recall.min_recall: found {min_recall}, expected more than 0, up to 1.")
    record = opened.record
    shards = read_shards(
        vectors,
        corpus_sha256=record["corpus"]["sha256"],
        corpus_rows=record["n"],
        corpus=corpus,
    )
    if [shard["sha256"] for shard in shards] != [shard["sha256"] for shard in record["vectors"]]:
        raise IntegrityError(
            f"{index}: was built from other vectors than {Path(shards[0]['path']).parent}. "
            f"Build the index again."
        )
    encoder = encoder or Encoder(
        model or record["model"]["name"],
        device=device,
        max_length=record["model"]["max_length"],
        threads=threads,
    )
    check_model(encoder.identity, record, index)
    faiss.omp_set_num_threads(threads)
    embedded = encoder.queries(list(queries))
    began = time.perf_counter()
    found = opened.candidates(embedded)[0][:, :k]
    seconds = time.perf_counter() - began
    exact, kth = _exact(shards, embedded, k)
    hits = _hits(found, exact)
    recall = float(hits.mean() / k)
    # What a smaller efSearch would do: the way to a faster service, or the reason against it.
    sweep = {
        ef: float(_hits(opened.candidates(embedded, ef_search=ef)[0][:, :k], exact).mean() / k)
        for ef in _SWEEP
        if k <= ef < opened.ef_search
    } | {opened.ef_search: recall}
    opened.close()
    worst = np.argsort(hits, kind="stable")[:10]
    verdict = {
        "gate": "recall",
        "passed": recall >= min_recall,
        "measured": {
            "recall": recall,
            "queries_with_all": float((hits == k).mean()),
            "queries_with_none": float((hits == 0).mean()),
            "worst": float(hits.min() / k),
            "mean_kth_score": float(kth.mean()),
            "recall_by_ef_search": {str(ef): value for ef, value in sweep.items()},
            "smallest_ef_search": min(
                (ef for ef, value in sweep.items() if value >= min_recall), default=None
            ),
        },
        "threshold": {"min_recall": min_recall},
        "measured_on": {
            "queries": len(queries),
            "k": k,
            "ef_search": opened.ef_search,
            "n": record["n"],
            "index_sha256": record["index"]["sha256"],
            "model": encoder.identity.name,
        },
        "details": [
            {
                "query": queries[i],
                "recall": float(hits[i] / k),
                "exact": exact[i].tolist(),
                "found": found[i].tolist(),
            }
            for i in worst
            if hits[i] < k
        ],
    }
    logger.info(
        "recall@%d %.4f over %d queries (gate %.4f), efSearch %d, %.0f queries/s",
        k,
        recall,
        len(queries),
        min_recall,
        opened.ef_search,
        len(queries) / max(seconds, 1e-9),
    )
    return verdict


def sampled(questions: Sequence[str], count: int, *, seed: int = 0) -> list[str]:
    """A seeded draw of `count` of the questions, in their order; all, if there are no more."""
    places = np.random.default_rng(seed).permutation(len(questions))[:count]
    return [questions[i] for i in np.sort(places)]


def hand_over(verdict: dict[str, Any], index: Path, *, choose: str) -> None:
    """Write search.json beside the index's folder: the efSearch that the service is to use.

    Args:
        verdict: of `measure_recall`, passed.
        index: the folder that was measured.
        choose: "smallest" takes the smallest efSearch that meets the gate, "index" its own.
    """
    measured, on = verdict["measured"], verdict["measured_on"]
    ef_search = on["ef_search"] if choose == "index" else measured["smallest_ef_search"]
    write_json(
        Path(index).parent / SEARCH,
        {
            "ef_search": ef_search,
            "recall": measured["recall_by_ef_search"][str(ef_search)],
            "k": on["k"],
            "index_sha256": on["index_sha256"],
        },
    )


def _hits(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """How many of a query's exact rows were found: int64 [q], of two arrays [q, k]."""
    pairs = zip(found.tolist(), exact.tolist(), strict=True)
    return np.array([len(set(a) & set(b)) for a, b in pairs], dtype=np.int64)


def _exact(
    shards: list[dict[str, Any]], queries: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows int64 [q, k] of the k largest inner products, and the k-th one's value [q].

    Exact search in blocks, so that no shard has to fit in memory; ties are ordered by row, as in
    `PassageIndex.candidates`.
    """
    import faiss

    rows = np.empty((len(queries), 0), dtype=np.int64)
    scores = np.empty((len(queries), 0), dtype=np.float32)
    for shard in shards:
        vectors = np.load(shard["path"], mmap_mode="r")
        for start in range(0, len(vectors), _EXACT_ROWS):
            flat = faiss.IndexFlatIP(vectors.shape[1])
            flat.add(np.ascontiguousarray(vectors[start : start + _EXACT_ROWS]))
            # A few more than k, so that ties at the border are resolved by row.
            values, found = flat.search(queries, min(k + 8, flat.ntotal))
            rows = np.concatenate([rows, found + shard["start"] + start], axis=1)
            scores = np.concatenate([scores, values], axis=1)
            order = np.lexsort((rows, -np.round(scores, 6)), axis=-1)[:, : k + 8]
            rows = np.take_along_axis(rows, order, 1)
            scores = np.take_along_axis(scores, order, 1)
    return rows[:, :k], scores[:, k - 1]
