"""Corpus -> one shard of vectors: `shard-00000-of-00002.npy` and, written last, its `.json`.

Shard s of S holds rows n*s//S to n*(s+1)//S of the corpus, float32 [rows, d], each of length 1.
A passage is embedded as Search-R1 does it: its whole `contents`, title line and text.

While a shard is made, two files stand beside it:
    .shard-….npy.part      the .npy file itself, growing
    .shard-….npy.journal   line 1: what is being made; then {"rows", "truncated", "crc32"} a block
A run that was killed goes on after the last block whose checksum holds; nothing is redone and the
bytes are those of an undisturbed run, since a vector does not depend on its batch (see `Encoder`).
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from glimmer.errors import ConfigError, DataError, GlimmerError
from glimmer.files import sha256_file, sha256_json, write_json
from glimmer.logs import get_logger
from glimmer.progress import Progress
from glimmer.retrieval.models import Encoder
from glimmer.retrieval.passages import PassageStore, scan_corpus

logger = get_logger(__name__)

# Batches embedded between two journal lines: what kill -9 costs at most. Also the window within
# which texts of equal length are brought together.
_BATCHES_A_BLOCK = 8


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
    threads: int = 1,
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
        device: torch device.
        threads: batches worked on at a time on a CPU; the bytes do not depend on it.
        revision: the full commit, if `model` is on the hub.
        code: fingerprint of the code that embeds; rows of other code are not gone on from.
        encoder: a loaded model to use instead of loading `model` (tests, several shards at once).

    Returns:
        What the .json holds: rows, dimension, start, stop, sha256, corpus_sha256, model, truncated.

    Raises:
        ConfigError: a setting out of range, or the model is absent.
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
    model = f"{model}@{revision}" if revision else model
    encoder = encoder or Encoder(model, device=device, max_length=max_length, threads=threads)
    identity = encoder.identity
    making = {
        "corpus_sha256": scan.sha256,
        "shard": shard,
        "num_shards": num_shards,
        "start": start,
        "stop": stop,
        "model": identity.as_dict(),
        "batch_size": batch_size,
        "device": device,
        "versions": _versions(),
    }
    part, journal = (out.with_name(f".{out.name}.{suffix}") for suffix in ("part", "journal"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".json").unlink(missing_ok=True)
        with _locked(journal) as lines:
            if out.exists() and not part.exists():
                os.replace(out, part)
            began = time.perf_counter()
            done, truncated = _fill(corpus, part, lines, scan.offsets, encoder, making, code)
            seconds = max(time.perf_counter() - began, 1e-9)
            record = {
                "file": out.name,
                "rows": stop - start,
                "dimension": identity.dimension,
                "dtype": "float32",
                "sha256": sha256_file(part),
                **making,
                "truncated": truncated,
            }
            os.replace(part, out)
            write_json(out.with_suffix(".json"), record)
            journal.unlink()
    except OSError as error:
        raise DataError(
            f"{out}: could not be written ({error.strerror or error}). Blocks finished so far are "
            f"kept; free some space or correct the permissions of {out.parent}, and run again."
        ) from error
    logger.info(
        "%s: %d passages (%d by this run, %.0f a second), %d cut at %d tokens",
        out.name,
        stop - start,
        done,
        done / seconds,
        truncated,
        identity.max_length,
    )
    return record


def _fill(
    corpus: Path,
    part: Path,
    lines: IO[bytes],
    offsets: np.ndarray,
    encoder: Encoder,
    making: dict[str, Any],
    code: str,
) -> tuple[int, int]:
    """Append the rows that `part` lacks; (rows embedded by this call, passages cut in all)."""
    start, stop = making["start"], making["stop"]
    block_rows = making["batch_size"] * _BATCHES_A_BLOCK
    resumed, truncated = _finished_rows(
        lines, part, making | {"code": code}, stop - start, encoder.identity.dimension
    )
    store = PassageStore(corpus, offsets)
    what = f"embedding {part.name.removeprefix('.').removesuffix('.npy.part')}"
    with (
        open(part, "r+b") as data,
        Progress(stop - start, what, unit=" passages", done=resumed) as progress,
    ):
        data.seek(0, os.SEEK_END)
        for first in range(start + resumed, stop, block_rows):
            last = min(first + block_rows, stop)
            before = encoder.truncated
            vectors = encoder.passages(
                list(store.contents(first, last)), batch_size=making["batch_size"]
            )
            if not np.isfinite(vectors).all():
                raise GlimmerError(
                    f"{corpus}, lines {first + 1} to {last}: the model gave vectors that are not "
                    f"finite. Its weights are damaged, or the device's precision is too low."
                )
            block, cut = vectors.tobytes(), encoder.truncated - before
            data.write(block)
            data.flush()
            entry = {"rows": last - first, "truncated": cut, "crc32": zlib.crc32(block)}
            lines.write(_line(entry))
            lines.flush()
            truncated += cut
            progress.update(last - first)
        os.fsync(data.fileno())
    store.close()
    return stop - start - resumed, truncated


def _finished_rows(
    lines: IO[bytes], part: Path, making: dict[str, Any], rows: int, width: int
) -> tuple[int, int]:
    """(rows of `part` whose checksums hold, passages cut among them).

    Both files are cut behind these rows, or begun anew.
    """
    header = _npy_header(rows, width)
    identity = _line({"making": sha256_json(making)})
    lines.seek(0)
    if part.exists() and lines.readline() == identity:
        done, truncated, keep = 0, 0, lines.tell()
        with open(part, "r+b") as data:
            whole = data.read(len(header)) == header
            for line in iter(lines.readline, b"") if whole else ():
                entry = _entry(line)
                block = data.read(entry["rows"] * width * 4) if entry else b""
                if not entry or zlib.crc32(block) != entry["crc32"]:
                    break
                done, truncated = done + entry["rows"], truncated + entry["truncated"]
                keep = lines.tell()
            if whole:
                data.truncate(len(header) + done * width * 4)
                lines.truncate(keep)
                lines.seek(keep)
                return done, truncated
    lines.seek(0)
    if lines.readline():
        logger.info("%s: was begun with other settings or is damaged; starting anew", part.name)
    lines.seek(0)
    lines.truncate()
    part.write_bytes(header)
    lines.write(identity)
    lines.flush()
    return 0, 0


def _entry(line: bytes) -> dict[str, int] | None:
    """A journal line, or None if it is half-written."""
    try:
        entry = json.loads(line)
        return {key: int(entry[key]) for key in ("rows", "truncated", "crc32")}
    except (ValueError, KeyError, TypeError):
        return None


@contextmanager
def _locked(journal: Path) -> Iterator[IO[bytes]]:
    """The journal, open for reading and writing by this process alone."""
    with open(journal, "a+b") as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GlimmerError(
                f"{journal}: another process is making this shard. Wait for it, or end it."
            ) from error
        with open(journal, "r+b") as lines:
            yield lines


def _npy_header(rows: int, width: int) -> bytes:
    """The bytes before the data of a C-ordered float32 [rows, width] .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    )
    return buffer.getvalue()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"


def _versions() -> dict[str, str]:
    """Versions of the libraries that decide a vector's bytes."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "sentence-transformers")}
