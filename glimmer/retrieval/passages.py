r"""The corpus as numbered passages: one scan finds every line, later reads go straight to it.

A line is {"id": "0", "contents": "\"Title\"\nText ..."} (the layout of wiki-18); row i of vectors
and index is line i of the file. Memory does not grow with the corpus: the scan keeps 8 bytes a
passage, reads are mapped.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.assets.corpus import LAYOUT
from glimmer.assets.lines import text_field
from glimmer.errors import DataError


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
    offsets = [0]
    try:
        with open(path, "rb") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.strip():
                    raise DataError(
                        f"{path}, line {number}: found an empty line, expected a passage. "
                        f"Remove the line."
                    )
                digest.update(line)
                offsets.append(offsets[-1] + len(line))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such corpus file. Run the corpus rule first.") from error
    if len(offsets) == 1:
        raise DataError(f"{path}: the corpus is empty; expected one passage a line.")
    return CorpusScan(digest.hexdigest(), np.asarray(offsets, dtype=np.int64))


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

    def contents(self, start: int, stop: int) -> Iterator[str]:
        """`contents` of the rows start to stop - 1."""
        for row in range(start, stop):
            yield self[row]["contents"]

    def close(self) -> None:
        self._map.close()
