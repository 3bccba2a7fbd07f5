"""JSONL input read line by line, strictly: every line one JSON object, none of them empty."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glimmer.errors import DataError


def read_objects(path: Path, label: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for every line of a JSONL file.

    Args:
        path: the file to read.
        label: how messages name the file.

    Raises:
        DataError: the file is missing, unreadable or empty, or a line is empty, not UTF-8, not
            JSON or not an object.
    """
    number = 0
    try:
        with open(path, "rb") as handle:
            for number, line in enumerate(handle, start=1):
                yield number, _parse(line, f"{label}, line {number}")
    except FileNotFoundError as error:
        raise DataError(
            f"{label}: found no such file, expected JSONL. Correct the path or the file name."
        ) from error
    except (IsADirectoryError, PermissionError) as error:
        raise DataError(
            f"{label}: cannot be read ({error.strerror}); expected a readable JSONL file. "
            f"Correct the path or the file's permissions."
        ) from error
    if number == 0:
        raise DataError(
            f"{label}: the file is empty, expected one JSON object a line. "
            f"Name another file, or make this one again."
        )


def _parse(line: bytes, where: str) -> dict[str, Any]:
    if not line.strip():
        raise DataError(f"{where}: found an empty line, expected one JSON object. Remove the line.")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: found {line[:60]!r}, expected one JSON object ({error}). "
            f"Correct or remove the line."
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: found {line[:60]!r}, expected a JSON object {{...}}. "
            f"Correct or remove the line."
        )
    return value


def text_field(value: dict[str, Any], key: str, where: str, layout: str) -> str:
    """The non-blank text under `key`.

    Args:
        value: one line's object.
        key: the field that must be there.
        where: file and line, for the message.
        layout: an example of a whole line, for the message.

    Raises:
        DataError: the key is missing, or its value is not text, blank, or not valid Unicode.
    """
    if key not in value:
        raise DataError(
            f"{where}: found the keys {sorted(value)}, expected {key!r} among them. "
            f"The layout is {layout}"
        )
    text = value[key]
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{where}: found {key!r}: {shortened(text)}, expected a text that is not blank. "
            f"The layout is {layout}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: found half a surrogate pair in {key!r}, expected valid Unicode ({error}). "
            f"Correct or remove the line."
        ) from error
    return text


def shortened(value: Any, length: int = 60) -> str:
    """`repr(value)`, cut for a message."""
    text = repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
