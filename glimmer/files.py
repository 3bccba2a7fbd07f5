"""Files that are either whole or absent: hashing, atomic writes, JSON and JSONL."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from glimmer.errors import DataError, GlimmerError

_REASONS = {
    errno.ENOSPC: "the disk is full. Free some space",
    errno.EDQUOT: "the disk quota is used up. Free some space",
    errno.EACCES: "no permission. Correct the permissions of the file and its folder",
    errno.EPERM: "no permission. Correct the permissions of the file and its folder",
    errno.EROFS: "the file system is read-only. Choose another results folder",
    errno.ENOTDIR: "a part of this path is a file, not a folder. Correct the path",
    errno.EISDIR: "this is a folder, expected a file. Remove it",
    errno.ENAMETOOLONG: "the path is too long. Choose a shorter results folder",
}


def disk_reason(error: OSError) -> str | None:
    """Why the file system refused, and the way out, in words; None for other errors."""
    return _REASONS.get(error.errno or 0)


@contextlib.contextmanager
def disk_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an `OSError` of the file system into a `DataError` that names `path` and a way out."""
    try:
        yield
    except OSError as error:
        place = error.filename or path
        reason = disk_reason(error) or f"{error}. Check the disk"
        raise DataError(
            f"{place}: {doing} failed: {reason}, and run again; what is finished is kept."
        ) from error


def sha256_file(path: Path | str) -> str:
    """Hex sha256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_files(folder: Path, pattern: str) -> str:
    """One hex sha256 over the files of a folder that match, by their names and bytes."""
    return sha256_json({path.name: sha256_file(path) for path in sorted(folder.glob(pattern))})


def sha256_json(value: Any) -> str:
    """Hex sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success flush it to disk and rename it into place.

    On an exception the temporary file is removed and `path` is left as it was. The folder of
    `path` is made if it is missing. `OSError` (disk full, no permission) passes through.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def sole_writer(lock: Path | str) -> Iterator[None]:
    """Be the only process that holds `lock`, a hidden file beside what is being written.

    The system gives it up when the process ends, however it ends. The folder is made if missing,
    and the file goes at the end.

    Raises:
        GlimmerError: another process holds it; the message says which.
    """
    lock = Path(lock)
    with disk_errors(lock, "making the folder"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = _held(lock)
    try:
        handle.truncate()
        handle.write(f"process {os.getpid()} on {platform.node()}")
        handle.flush()
        yield
    finally:
        lock.unlink(missing_ok=True)
        handle.close()


def _held(lock: Path) -> IO[str]:
    while True:
        handle = open(lock, "a+", encoding="utf-8")
        handle.seek(0)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between the two calls.
            if lock.exists() and os.fstat(handle.fileno()).st_ino == lock.stat().st_ino:
                return handle
        except BlockingIOError as error:
            holder = handle.read() or "another process"
            handle.close()
            raise GlimmerError(
                f"{lock.parent}: {holder} is writing here already. Wait for it, or end it, and run "
                "again; what is finished is kept."
            ) from error
        handle.close()


def write_text(path: Path | str, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinities are refused (`ValueError`)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read a JSON file; `DataError` names the file and position of a fault."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: expected JSON, found {error}. Delete it and run again."
        ) from error


def write_jsonl(path: Path | str, rows: Iterable[Any]) -> None:
    """Write one JSON value a line, atomically."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: Path | str) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, value) for each non-empty line.

    Raises:
        DataError: a line is not JSON; the message names file, line number and the line's start.
    """
    with open(path, "rb") as handle:
        yield from _values(path, handle)


def whole_lines(path: Path | str) -> Iterator[Any]:
    """Yield the value of each line of a file that grows line by line; none if there is no file.

    A last line without its end was cut by a kill and is left out.

    Raises:
        DataError: a line before it is not JSON.
    """
    if not Path(path).exists():
        return
    with open(path, "rb") as handle:
        for _, value in _values(path, (line for line in handle if line.endswith(b"\n"))):
            yield value


def _values(path: Path | str, lines: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}, line {number}: expected one JSON value, found {line[:60]!r} "
                f"({error}). Correct or remove the line."
            ) from error
