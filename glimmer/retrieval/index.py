"""The HNSW index as the service opens it.

A folder, made by `glimmer.retrieval.build`, holds
    index.faiss   faiss IndexHNSWFlat or IndexHNSWSQ, inner product; of unit vectors the cosine
    offsets.npy   int64 [n + 1], where passage i lies in the corpus file
    index.json    written last: parameters, model identity, sha256 of corpus, vectors and index
An index is opened only together with its corpus and its model, and anything else is refused by
name: a wrong corpus gives plausible passages for every query, and no error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.errors import ConfigError, IntegrityError
from glimmer.files import read_json, sha256_file
from glimmer.retrieval.models import ModelIdentity
from glimmer.retrieval.passages import PassageStore

FORMAT = 2


def read_shards(
    vectors: Sequence[Path], *, corpus_sha256: str, corpus_rows: int, corpus: Path
) -> list[dict[str, Any]]:
    """Sidecars of all shards in the order of their rows, each with its `path`; all checked.

    Raises:
        IntegrityError: see `glimmer.retrieval.build.build_index`; the message names the shard.
    """
    shards = []
    for path in map(Path, vectors):
        sidecar = path.with_suffix(".json")
        if not path.is_file() or not sidecar.is_file():
            missing = path if not path.is_file() else sidecar
            raise IntegrityError(
                f"{missing}: is missing, so this shard is not finished. Run the embedding rule."
            )
        shard = read_json(sidecar)
        if shard["corpus_sha256"] != corpus_sha256:
            raise IntegrityError(
                f"{path}: holds vectors of another corpus (sha256 {shard['corpus_sha256'][:12]}, "
                f"{corpus} has {corpus_sha256[:12]}). Embed this corpus."
            )
        if sha256_file(path) != shard["sha256"]:
            raise IntegrityError(
                f"{path}: is not the file that was written (sha256 differs from {sidecar.name}). "
                f"It is truncated or damaged: delete it and embed again."
            )
        shards.append(shard | {"path": str(path)})
    shards.sort(key=lambda shard: shard["start"])
    if not shards:
        raise IntegrityError("no shard of vectors was given; expected at least one .npy file.")
    expected = shards[0]["num_shards"]
    if len(shards) != expected or [shard["shard"] for shard in shards] != list(range(expected)):
        raise IntegrityError(
            f"{Path(shards[0]['path']).parent}: found the shards "
            f"{[shard['shard'] for shard in shards]}, expected 0 to {expected - 1}, each once."
        )
    for shard in shards[1:]:
        if difference := ModelIdentity.difference(shard["model"], shards[0]["model"]):
            raise IntegrityError(
                f"{shard['path']}: was made by another model than "
                f"{Path(shards[0]['path']).name}: {difference}. Embed all shards with one model."
            )
    if sum(shard["rows"] for shard in shards) != corpus_rows:
        raise IntegrityError(
            f"{Path(shards[0]['path']).parent}: {sum(s['rows'] for s in shards)} vectors for "
            f"{corpus_rows} passages of {corpus}. Embed again."
        )
    return shards


@dataclass(slots=True)
class PassageIndex:
    """An opened index with its passages.

    Attributes:
        record: index.json.
        passages: the corpus by row.
        ef_search: candidates looked at by a search, and returned by `candidates`.
    """

    record: dict[str, Any]
    passages: PassageStore
    ef_search: int
    _faiss: Any

    def __len__(self) -> int:
        return self.record["n"]

    def candidates(
        self, queries: np.ndarray, *, ef_search: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest passages of each query, best first.

        Every search looks for the same number of candidates and the caller cuts its `topk` off, so
        that an answer depends neither on `topk` nor on what else was searched for. Scores that are
        equal to six decimals are ordered by row.

        Args:
            queries: float32 [q, d].
            ef_search: instead of the index's own.

        Returns:
            rows: int64 [q, c], scores: float32 [q, c], c = min(ef_search, n). -1 where faiss found
            no further passage, always at the end.
        """
        import faiss

        ef_search = ef_search or self.ef_search
        count = min(ef_search, len(self))
        scores, rows = self._faiss.search(
            np.ascontiguousarray(queries, dtype=np.float32),
            count,
            params=faiss.SearchParametersHNSW(efSearch=ef_search),
        )
        scores = np.where(rows < 0, -np.inf, scores)
        order = np.lexsort((rows, -np.round(scores, 6)), axis=-1)
        return np.take_along_axis(rows, order, -1), np.take_along_axis(scores, order, -1)

    def close(self) -> None:
        self.passages.close()


def open_index(
    index: Path, corpus: Path, *, ef_search: int | None = None, verify: bool = True
) -> PassageIndex:
    """Open an index together with its corpus; the file is memory-mapped, opening it is cheap.

    Args:
        index: folder written by `glimmer.retrieval.build.build_index`.
        corpus: the corpus it was built from.
        ef_search: candidates of a search; None takes the recorded one.
        verify: hash index and corpus as well; False compares sizes only.

    Raises:
        IntegrityError: a truncated or changed index, another corpus.
    """
    import faiss

    index, corpus = Path(index), Path(corpus)
    if not (index / "index.json").is_file():
        raise IntegrityError(
            f"{index}: has no index.json, so the index was never finished. Run the index rule."
        )
    record = read_json(index / "index.json")
    if record.get("format") != FORMAT:
        raise IntegrityError(
            f"{index / 'index.json'}: format {record.get('format')!r}, this code reads {FORMAT}. "
            f"Build the index again."
        )
    path = index / record["index"]["file"]
    size = path.stat().st_size if path.is_file() else 0
    if size != record["index"]["bytes"]:
        raise IntegrityError(
            f"{path}: {size} bytes, expected {record['index']['bytes']}; the file is truncated or "
            f"of another build. Build the index again."
        )
    if verify and sha256_file(path) != record["index"]["sha256"]:
        raise IntegrityError(
            f"{path}: sha256 differs from the one in index.json; the file was changed or damaged. "
            f"Build the index again."
        )
    expected = record["corpus"]
    found = corpus.stat().st_size if corpus.is_file() else None
    if found != expected["bytes"] or (verify and sha256_file(corpus) != expected["sha256"]):
        raise IntegrityError(
            f"{index}: was built from another corpus than {corpus} (sha256 "
            f"{expected['sha256'][:12]}, {expected['bytes']} bytes; found {found} bytes). Build "
            f"the index of this corpus, or name the one it belongs to."
        )
    try:
        loaded = faiss.read_index(os.fspath(path), faiss.IO_FLAG_MMAP_IFC)
        offsets = np.load(index / "offsets.npy", mmap_mode="r")
    except (RuntimeError, OSError, ValueError) as error:
        raise IntegrityError(
            f"{index}: cannot be opened ({error}). Build the index again."
        ) from error
    if loaded.ntotal != record["n"] or len(offsets) != record["n"] + 1:
        raise IntegrityError(
            f"{index}: {loaded.ntotal} vectors and {len(offsets) - 1} offsets, expected "
            f"{record['n']}. Build the index again."
        )
    if (found := storage_of(loaded)) != record["storage"]:
        raise IntegrityError(
            f"{path}: stores its vectors as {found}, index.json says {record['storage']}. Build "
            f"the index again."
        )
    return PassageIndex(
        record, PassageStore(corpus, offsets), ef_search or record["ef_search"], loaded
    )


def storage_of(index: Any) -> str:
    """How an index stores its vectors: fp32, fp16, sq8, or faiss' name of another class."""
    import faiss

    inner = faiss.downcast_index(index.storage)
    if isinstance(inner, faiss.IndexFlat):
        return "fp32"
    if isinstance(inner, faiss.IndexScalarQuantizer):
        kinds = {faiss.ScalarQuantizer.QT_fp16: "fp16", faiss.ScalarQuantizer.QT_8bit: "sq8"}
        return kinds.get(inner.sq.qtype, f"scalar quantizer {inner.sq.qtype}")
    return type(inner).__name__


SEARCH = "search.json"  # beside the index's folder, by the recall gate


def served_ef_search(index: Path, setting: int | None) -> int | None:
    """efSearch of the service: the setting's, else the recall gate's choice; None where the gate
    leaves it to the index.

    Raises:
        IntegrityError: the gate measured another index.
    """
    path = Path(index).parent / SEARCH
    if setting is not None or not path.is_file():
        return setting
    chosen, record = read_json(path), read_json(Path(index) / "index.json")
    if chosen["index_sha256"] != record["index"]["sha256"]:
        raise IntegrityError(
            f"{path}: was chosen for the index {chosen['index_sha256'][:12]}, {index} is "
            f"{record['index']['sha256'][:12]}. Run the recall gate again."
        )
    return chosen["ef_search"]


def read_offsets(index: Path, corpus: Path) -> np.ndarray:
    """Where passage i lies in the corpus, memory-mapped int64 [n + 1]; checked by sha256.

    Raises:
        IntegrityError: the index was never finished, its offsets are damaged, or it is of a corpus
            of another size.
    """
    index, corpus = Path(index), Path(corpus)
    if not (index / "index.json").is_file():
        raise IntegrityError(
            f"{index}: has no index.json, so the index was never finished. Run the index rule."
        )
    path = index / "offsets.npy"
    promised = read_json(index / "index.json")["offsets"]["sha256"]
    found = sha256_file(path) if path.is_file() else None
    if found != promised:
        raise IntegrityError(
            f"{path}: is not the file that was written (sha256 {found}, expected {promised}). "
            f"Delete {index / 'index.json'} and run again: the index is built anew."
        )
    offsets = np.load(path, mmap_mode="r")
    size = corpus.stat().st_size if corpus.is_file() else None
    if size != int(offsets[-1]):
        raise IntegrityError(
            f"{index}: was built from another corpus than {corpus} ({int(offsets[-1])} bytes "
            f"expected, found {size}). Build the index of this corpus."
        )
    return offsets


def check_k(k: int, ef_search: int, n: int, setting: str) -> None:
    """Refuse a k that an index of n passages, searched with efSearch, cannot answer well.

    Raises:
        ConfigError: k < 1, k > n, or efSearch < k.
    """
    if k < 1:
        raise ConfigError(f"{setting}: found {k}, expected at least 1.")
    if k > n:
        raise ConfigError(
            f"{setting}: found {k}, but the corpus has {n} passages. Set it to at most {n}."
        )
    if ef_search < k:
        raise ConfigError(
            f"ef_search: found {ef_search}, below {setting} = {k}; HNSW then returns passages it "
            f"has hardly looked for. Set ef_search to at least {k}, better 10 times that."
        )


def check_model(identity: ModelIdentity, record: dict[str, Any], index: Path) -> None:
    """Refuse a model that is not the one whose vectors the index holds.

    Raises:
        IntegrityError: names the fields that differ.
    """
    if difference := ModelIdentity.difference(identity.as_dict(), record["model"]):
        raise IntegrityError(
            f"{index}: holds vectors of {record['model']['name']!r}, the queries would be embedded "
            f"by {identity.name!r}: {difference}. Use the index's model, or embed the corpus again."
        )
