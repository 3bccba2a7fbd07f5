"""Corpus -> one shard of vectors: `shard-00000-of-00002.npy` and, written last, its `.json`.

Shard s of S holds rows n*s//S to n*(s+1)//S of the corpus, float32 [rows, d], each of length 1.
A passage is embedded as Search-R1 does it: its whole `contents`, title line and text.

A shard is made window by window: while the model works on one, the next ones are tokenised
(`glimmer.retrieval.tokens`), and on a GPU the one before is written (`glimmer.retrieval.vectors`).
Where windows begin follows from the shard alone, so that a run that was killed goes on with the
same windows and gives the bytes of an undisturbed run. A kill costs one window at most; on a GPU
also what it had begun of the next one while that was being written.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.errors import ConfigError, DataError, GlimmerError
from glimmer.files import write_json
from glimmer.logs import get_logger
from glimmer.progress import Progress
from glimmer.retrieval.encoder import Encoder, Vectors
from glimmer.retrieval.passages import scan_corpus
from glimmer.retrieval.tokens import TokeniserPool, Tokens
from glimmer.retrieval.vectors import GrowingVectors

logger = get_logger(__name__)

# Passages that a tokeniser is given at a time, and windows that are tokenised ahead.
_PASSAGES_A_REQUEST = 512
_WINDOWS_AHEAD = 2


def embed_shard(
    corpus: Path,
    out: Path,
    *,
    shard: int,
    num_shards: int,
    model: str,
    batch_size: int = 64,
    max_length: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 1,
    workers: int | None = None,
    revision: str | None = None,
    code: str = "",
    encoder: Encoder | None = None,
) -> dict[str, Any]:
    """Embed one shard of a corpus into `out` (.npy) and `out` with suffix .json; resumes.

    Args:
        corpus: JSONL in wiki-18's layout.
        out: the shard's .npy file.
        shard: 0 to num_shards - 1.
        num_shards: shards in all, at most one a passage.
        model: a model setting, see `glimmer.retrieval.models`.
        batch_size: texts in one forward pass.
        max_length: tokens after which a passage is cut; None or 0 takes the model's limit.
        device: torch device; "cuda" takes GPU shard % (GPUs that torch sees).
        dtype: precision on a GPU, see `Encoder`.
        threads: batches worked on at a time on a CPU; the bytes do not depend on it.
        workers: processes that tokenise; None takes threads - 1, at least 1, for a GPU and none
            for a CPU, where one thread of this process is enough.
        revision: the full commit, if `model` is on the hub.
        code: fingerprint of the code that embeds; rows of other code are not gone on from.
        encoder: a loaded model to use instead of loading `model` (tests, several shards at once).

    Returns:
        What the .json holds: rows, dimension, start, stop, sha256, corpus_sha256, model, truncated.

    Raises:
        ConfigError: a setting out of range, or model or device are absent.
        DataError: a corpus line is not a passage, or the disk is full.
    """
    corpus, out = Path(corpus), Path(out)
    if num_shards < 1 or not 0 <= shard < num_shards:
        raise ConfigError(
            f"embedding.shards: shard {shard} of {num_shards} does not exist; expected 0 <= shard "
            f"< shards."
        )
    if batch_size < 1:
        raise ConfigError(f"embedding.batch_size: found {batch_size}, expected at least 1.")
    scan = scan_corpus(corpus)
    if num_shards > len(scan):
        raise ConfigError(
            f"embedding.shards: {num_shards} shards for the {len(scan)} passages of {corpus}; "
            f"expected at most one shard a passage."
        )
    start, stop = len(scan) * shard // num_shards, len(scan) * (shard + 1) // num_shards
    encoder = encoder or Encoder(
        f"{model}@{revision}" if revision else model,
        device=_share_of_gpus(device, shard),
        dtype=dtype,
        max_length=max_length,
        threads=threads,
    )
    identity = encoder.identity
    making = {
        "corpus_sha256": scan.sha256,
        "shard": shard,
        "num_shards": num_shards,
        "start": start,
        "stop": stop,
        "model": identity.as_dict(),
        "batch_size": batch_size,
        "device": encoder.hardware,
        "precision": encoder.dtype,
        "versions": _versions(),
    }
    if workers is None:
        workers = 0 if encoder.on_cpu else max(1, threads - 1)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".json").unlink(missing_ok=True)
        with GrowingVectors(
            out,
            rows=stop - start,
            width=identity.dimension,
            making=making | {"code": code, "windows": encoder.windows},
        ) as vectors:
            began, resumed = time.perf_counter(), vectors.done
            with TokeniserPool(
                corpus, encoder.tokeniser, prefix=identity.passage_prefix, workers=workers
            ) as pool:
                _fill(vectors, pool, encoder, scan.offsets[start : stop + 1], start, batch_size)
            seconds = max(time.perf_counter() - began, 1e-9)
            record = {
                "file": out.name,
                "rows": stop - start,
                "dimension": identity.dimension,
                "dtype": "float32",
                "sha256": vectors.finish(),
                **making,
                "truncated": vectors.truncated,
            }
            write_json(out.with_suffix(".json"), record)
            vectors.forget()
    except OSError as error:
        raise DataError(
            f"{out}: could not be written ({error.strerror or error}). Blocks finished so far are "
            f"kept; free some space or correct the permissions of {out.parent}, and run again."
        ) from error
    logger.info(
        "%s: %d passages (%d by this run, %.0f a second), %d cut at %d tokens",
        out.name,
        stop - start,
        stop - start - resumed,
        (stop - start - resumed) / seconds,
        vectors.truncated,
        identity.max_length,
    )
    return record


def windows(rows: int, first: int, largest: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of the windows of a shard: each twice the one before, up to `largest` rows."""
    start, size = 0, first
    while start < rows:
        yield start, min(start + size, rows)
        start, size = start + size, min(2 * size, largest)


def _fill(
    vectors: GrowingVectors,
    pool: TokeniserPool,
    encoder: Encoder,
    offsets: np.ndarray,
    first_row: int,
    batch_size: int,
) -> None:
    """Append the rows that `vectors` lacks; `offsets` are those of the shard's passages."""
    rows, resumed = vectors.rows, vectors.done
    sizes = (batch_size * batches for batches in encoder.windows)
    bounds = [bound for bound in windows(rows, *sizes) if bound[1] > resumed]

    def write(result: Vectors, start: int, stop: int, truncated: int) -> None:
        block = result()
        if not np.isfinite(block).all():
            raise GlimmerError(
                f"passages {first_row + start + 1} to {first_row + stop} of the corpus: the model "
                f"gave vectors that are not finite. Its weights are damaged, or the precision "
                f"({encoder.dtype}) is too low: set embedding.dtype."
            )
        vectors.append(block, truncated)
        progress.update(stop - start)

    what = f"embedding {vectors.out.stem}"
    with (
        Progress(rows, what, unit=" passages", done=resumed) as progress,
        ThreadPoolExecutor(1, thread_name_prefix="write") as writer,
    ):
        writing: Future[None] | None = None
        for (start, stop), tokens in _tokenised(pool, bounds, offsets, first_row):
            result = encoder.embed(tokens, batch_size=batch_size)
            if writing is not None:
                writing.result()
            writing = writer.submit(write, result, start, stop, tokens.truncated)
            if encoder.on_cpu:  # written before the next one is begun: it is done within ms
                writing.result()
        if writing is not None:
            writing.result()


def _tokenised(
    pool: TokeniserPool,
    bounds: Iterable[tuple[int, int]],
    offsets: np.ndarray,
    first_row: int,
) -> Iterator[tuple[tuple[int, int], Tokens]]:
    """Each window with its tokens, some windows ahead of their use."""
    waiting: deque[tuple[tuple[int, int], list[Future[Tokens]]]] = deque()
    for start, stop in bounds:
        parts = [
            pool.submit(
                first_row + first, offsets[first : min(first + _PASSAGES_A_REQUEST, stop) + 1]
            )
            for first in range(start, stop, _PASSAGES_A_REQUEST)
        ]
        waiting.append(((start, stop), parts))
        if len(waiting) > _WINDOWS_AHEAD:
            window, parts = waiting.popleft()
            yield window, Tokens.joined([part.result() for part in parts])
    for window, parts in waiting:
        yield window, Tokens.joined([part.result() for part in parts])


def _share_of_gpus(device: str, shard: int) -> str:
    """The GPU of a shard, where several shards are made at a time on one host."""
    if device != "cuda":
        return device
    import torch

    return f"cuda:{shard % max(1, torch.cuda.device_count())}"


def _versions() -> dict[str, str]:
    """Versions of the libraries that decide a vector's bytes."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "sentence-transformers")}
