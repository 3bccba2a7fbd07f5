"""A .npy file of vectors that grows block by block and survives kill -9.

While it is made, two files stand beside it:
    .NAME.part      the .npy file itself, growing
    .NAME.journal   line 1: what is being made; then {"rows", "truncated", "crc32"} a block
A process that was killed is gone on from after the last block whose checksum holds. Both files have
one writer at a time, by a lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from glimmer.errors import GlimmerError
from glimmer.files import sha256_json
from glimmer.logs import get_logger

logger = get_logger(__name__)

# Bytes after which a block is forced to disk, so that the end of a large file does not wait for all
# of it.
_SYNC_BYTES = 1 << 26


class GrowingVectors:
    """float32 [rows, width] on its way into `out`; a context manager.

    Args:
        out: the .npy file.
        rows: vectors in all.
        width: length of a vector.
        making: what decides its bytes; blocks of other settings are not gone on from.

    Attributes:
        done: rows that are written.
        truncated: passages cut among them.

    Raises:
        GlimmerError: another process is writing it.
    """

    def __init__(self, out: Path, *, rows: int, width: int, making: dict[str, Any]) -> None:
        self.out, self.rows, self._width = out, rows, width
        self.part, self.journal = (out.with_name(f".{out.name}.{s}") for s in ("part", "journal"))
        self.done = self.truncated = 0
        self._unsynced, self._failed = 0, False
        self._lines = _locked(self.journal)
        self._digest = hashlib.sha256()
        try:
            if out.exists() and not self.part.exists():
                os.replace(out, self.part)
            self._open(_line({"making": sha256_json(making)}))
        except BaseException:
            self._lines.close()
            raise

    def append(self, vectors: np.ndarray, truncated: int) -> None:
        """Write the next block, float32 [m, width]; `truncated` of its passages were cut.

        Raises:
            OSError: the disk is full; nothing more can be appended then.
        """
        if self._failed:
            raise GlimmerError(f"{self.part}: an earlier block could not be written.")
        self._failed = True
        block = memoryview(np.ascontiguousarray(vectors, dtype="<f4")).cast("B")
        self._data.write(block)
        self._data.flush()
        self._digest.update(block)
        entry = {"rows": len(vectors), "truncated": truncated, "crc32": zlib.crc32(block)}
        self._lines.write(_line(entry))
        self._lines.flush()
        self.done += len(vectors)
        self.truncated += truncated
        self._unsynced += len(block)
        if self._unsynced >= _SYNC_BYTES:
            os.fdatasync(self._data.fileno())
            self._unsynced = 0
        self._failed = False

    def finish(self) -> str:
        """Rename the whole file into place; its sha256. The journal stays until `forget`."""
        if self.done != self.rows:
            raise GlimmerError(f"{self.part}: {self.done} of {self.rows} vectors were written.")
        os.fsync(self._data.fileno())
        os.replace(self.part, self.out)
        return self._digest.hexdigest()

    def forget(self) -> None:
        """Drop the journal, once all that belongs to the file is written."""
        self.journal.unlink()

    def _open(self, identity: bytes) -> None:
        """Open the part, cut behind its last whole block, or begin it anew."""
        header = _npy_header(self.rows, self._width)
        self._lines.seek(0)
        if self.part.exists() and self._lines.readline() == identity:
            self._data = open(self.part, "r+b")
            if self._data.read(len(header)) == header:
                self._digest.update(header)
                self._read_blocks()
                self._data.truncate(len(header) + self.done * self._width * 4)
                self._data.seek(0, os.SEEK_END)
                return
            self._data.close()
        self._lines.seek(0)
        if self._lines.readline():
            logger.info(
                "%s: was begun with other settings or is damaged; starting anew", self.part.name
            )
        self._lines.seek(0)
        self._lines.truncate()
        self._data = open(self.part, "wb")
        self._data.write(header)
        self._digest.update(header)
        self._lines.write(identity)
        self._lines.flush()

    def _read_blocks(self) -> None:
        keep = self._lines.tell()
        for line in iter(self._lines.readline, b""):
            entry = _entry(line)
            block = self._data.read(entry["rows"] * self._width * 4) if entry else b""
            if not entry or zlib.crc32(block) != entry["crc32"]:
                break
            self._digest.update(block)
            self.done += entry["rows"]
            self.truncated += entry["truncated"]
            keep = self._lines.tell()
        self._lines.truncate(keep)
        self._lines.seek(keep)

    def __enter__(self) -> GrowingVectors:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in (self._data, self._lines):
            try:
                handle.close()
            except OSError:
                # A full disk is reported once; closing tries to write the same bytes again.
                if kind is None:
                    raise


def _entry(line: bytes) -> dict[str, int] | None:
    """A journal line, or None if it is half-written."""
    try:
        entry = json.loads(line)
        return {key: int(entry[key]) for key in ("rows", "truncated", "crc32")}
    except (ValueError, KeyError, TypeError):
        return None


def _locked(journal: Path) -> IO[bytes]:
    """The journal, open for reading and writing by this process alone."""
    os.close(os.open(journal, os.O_CREAT | os.O_WRONLY, 0o644))
    lines = open(journal, "r+b")
    try:
        fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lines.close()
        raise GlimmerError(
            f"{journal}: another process is making this shard. Wait for it, or end it."
        ) from error
    return lines


def _npy_header(rows: int, width: int) -> bytes:
    """The bytes before the data of a C-ordered float32 [rows, width] .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    )
    return buffer.getvalue()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"
