r"""The corpus as numbered passages: one scan finds every line, later reads go straight to it.

A line is {"id": "0", "contents": "\"Title\"\nText ..."} (the layout of wiki-18); row i of vectors
and index is line i of the file. Of a corpus, memory holds 8 bytes a passage (168 MB for wiki-18's
21 million); the passages themselves are read where they are needed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from array import array
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from glimmer.assets.corpus import LAYOUT
from glimmer.assets.lines import text_field
from glimmer.errors import DataError

_SCAN_BYTES = 1 << 24
_SHORTEST = len('{"id":"0","contents":"a"}')


@dataclass(frozen=True, slots=True)
class CorpusScan:
    """sha256 of a corpus file and where its passages lie.

    Attributes:
        sha256: of the whole file.
        offsets: int64 [n + 1]; passage i is bytes offsets[i] to offsets[i + 1].
    """

    sha256: str
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1


def scan_corpus(path: Path) -> CorpusScan:
    """Read a corpus once: its hash and line offsets.

    Raises:
        DataError: the file is missing, compressed, empty or has an empty line.
    """
    path = Path(path)
    if path.suffix in {".gz", ".zst", ".bz2", ".xz"}:
        raise DataError(
            f"{path}: passages are read by their place in the file, which a compressed file does "
            f"not give. Unpack it to .jsonl."
        )
    digest = hashlib.sha256()
    ends = array("q", [0])
    size, last = 0, b"\n"
    try:
        with open(path, "rb", buffering=0) as handle:
            while block := handle.read(_SCAN_BYTES):
                digest.update(block)
                found = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                ends.frombytes((found + (size + 1)).astype(np.int64).tobytes())
                size, last = size + len(block), block[-1:]
            if last != b"\n":
                ends.append(size)
            offsets = np.frombuffer(ends, dtype=np.int64)
            for row in np.flatnonzero(np.diff(offsets) < _SHORTEST):
                if not os.pread(handle.fileno(), _SHORTEST, offsets[row])[
                    : offsets[row + 1] - offsets[row]
                ].strip():
                    raise DataError(
                        f"{path}, line {row + 1}: found an empty line, expected a passage. "
                        f"Remove the line."
                    )
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such corpus file. Run the corpus rule first.") from error
    if len(offsets) == 1:
        raise DataError(f"{path}: the corpus is empty; expected one passage a line.")
    return CorpusScan(digest.hexdigest(), offsets)


def read_contents(corpus: IO[bytes], offsets: np.ndarray, first: int) -> list[str]:
    """`contents` of consecutive passages, by one read.

    Args:
        corpus: the opened file.
        offsets: int64 [m + 1], where the passages lie.
        first: row of the first of them, for messages.

    Raises:
        DataError: as `parse_passage`.
    """
    start = int(offsets[0])
    data = os.pread(corpus.fileno(), int(offsets[-1]) - start, start)
    places = (offsets - start).tolist()
    return [
        parse_passage(data[a:b], path=Path(corpus.name), row=first + row)["contents"]
        for row, (a, b) in enumerate(pairwise(places))
    ]


def parse_passage(line: bytes, *, path: Path, row: int) -> dict[str, Any]:
    """One corpus line as a dict with at least str `id` and str `contents`.

    Raises:
        DataError: names file, line number, what was found and what was expected.
    """
    where = f"{path}, line {row + 1}"
    try:
        passage = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: found {line[:60]!r}, expected one JSON object ({error}). "
            f"Correct or remove the line."
        ) from error
    if not isinstance(passage, dict):
        raise DataError(
            f"{where}: found {line[:60]!r}, expected a JSON object. Correct or remove the line."
        )
    for key in ("id", "contents"):
        text_field(passage, key, where, LAYOUT)
    return passage


class PassageStore:
    """Random access to the passages of a corpus file by row.

    Args:
        path: the corpus.
        offsets: from `scan_corpus`, or the memory-mapped file that the index keeps.
    """

    def __init__(self, path: Path, offsets: np.ndarray) -> None:
        self.path, self._offsets = Path(path), offsets
        with open(path, "rb") as handle:
            self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Passage `row` (0-based) as a dict."""
        if not 0 <= row < len(self):
            raise IndexError(f"{self.path}: row {row} of {len(self)} passages")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        return parse_passage(self._map[start:end], path=self.path, row=row)

    def close(self) -> None:
        self._map.close()
