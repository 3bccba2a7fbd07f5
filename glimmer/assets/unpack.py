"""Packed files of a source: gzip of one file, or of a tar archive of one file; parts put together.

All of it is streamed. A member's name is never used as a path, so none can climb out of the folder.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from glimmer.errors import DataError, IntegrityError
from glimmer.files import atomic_path, disk_errors

_BLOCK = 1 << 20
_TAR_HEADER = 512  # bytes; of these, 257 to 262 are "ustar" in an archive of either format


def unpack(packed: Path, target: Path, label: str) -> None:
    """Write the one file in a .gz to `target`.

    Args:
        label: how messages name the packed file.

    Raises:
        IntegrityError: it is cut or damaged; it is deleted then, since no more of it can be used.
        DataError: it is an archive that does not hold exactly one file, or the disk is full.
    """
    with disk_errors(target, f"unpacking {label}"), atomic_path(target) as temporary:
        with open(temporary, "wb") as copy:
            _copy(packed, copy, label)


def join(parts: Sequence[Path], target: Path, label: str) -> None:
    """Write the lines of all parts, packed or not, to `target` in their order; as `unpack`.

    A part that does not end its last line has it ended.
    """
    with disk_errors(target, f"joining the parts of {label}"), atomic_path(target) as temporary:
        with open(temporary, "w+b") as copy:
            for part in parts:
                if part.suffix == ".gz":
                    _copy(part, copy, f"{label}/{part.name}")
                else:
                    with open(part, "rb") as source:
                        shutil.copyfileobj(source, copy, _BLOCK)
                if copy.tell():
                    copy.seek(-1, 2)
                    if copy.read(1) != b"\n":
                        copy.write(b"\n")


def _copy(packed: Path, copy: IO[bytes], label: str) -> None:
    try:
        with _content(packed, label) as source:
            shutil.copyfileobj(source, copy, _BLOCK)
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        packed.unlink()
        raise IntegrityError(
            f"{label}: found a cut or damaged gzip file ({error}), expected a whole one. "
            f"Fetch or pack it again."
        ) from error


@contextmanager
def _content(packed: Path, label: str) -> Iterator[IO[bytes]]:
    """The stream of the one file in `packed`; at its end, that it was the only one is checked."""
    with gzip.open(packed, "rb") as head:
        archive = head.read(_TAR_HEADER)[257:262] == b"ustar"
    with gzip.open(packed, "rb") as stream:
        if not archive:
            yield stream
            return
        found = 0
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                if member.isdir():
                    continue
                found += 1
                if found > 1 or not member.isfile():
                    raise DataError(
                        f"{label}: found an archive with {member.name[:80]!r} "
                        f"{'as its second file' if found > 1 else 'which is no plain file'}, "
                        f"expected one file in it. Unpack it, and name the folder as corpus.source."
                    )
                content = members.extractfile(member)
                assert content is not None
                yield content
        if not found:
            raise DataError(f"{label}: found an archive without a file, expected one in it.")
        # To the end, where gzip's checksum is.
        while stream.read(_BLOCK):
            pass
