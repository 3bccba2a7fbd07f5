"""What a clock said of an evaluation: one JSON line a question, beside its record.

    {"id", "seconds": from the start of its batch until its last rollout ended, "search_seconds": of
     its searches, one after the other, over all samples, "tokens": sampled, over all samples}

Records are the same whenever the same is evaluated again; times are not, so they stand in a file of
their own, `<when>.timings.jsonl`. Questions of a batch are answered at the same time: their seconds
do not add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.errors import DataError
from glimmer.files import read_jsonl

_FIELDS = ("seconds", "search_seconds", "tokens")


def read_timings(path: Path) -> dict[str, dict[str, float]]:
    """Lines by question id.

    Raises:
        DataError: a line is not JSON or not one of these.
    """
    found = {}
    for number, row in read_jsonl(path):
        if not isinstance(row, dict) or not isinstance(row.get("id"), str) or any(
            isinstance(row.get(key), bool) or not isinstance(row.get(key), int | float)
            for key in _FIELDS
        ):  # fmt: skip
            raise DataError(
                f"{path}, line {number}: expected a question's id, {', '.join(_FIELDS)}, found "
                f"{str(row)[:60]!r}. Delete the file and run again: the evaluation is repeated."
            )
        found[row["id"]] = row
    return found


def table(summaries: Mapping[str, Mapping[str, Any]]) -> list[list[Any]]:
    """Rows of both evaluations side by side, for a page."""
    rows = [
        ["seconds until a question was answered, median", lambda one: one["seconds"]["median"]],
        ["90 % within", lambda one: one["seconds"]["p90"]],
        ["the longest", lambda one: one["seconds"]["largest"]],
        ["seconds of searching, mean", lambda one: one["search_seconds"]],
        ["sampled tokens, mean", lambda one: one["tokens"]],
    ]
    return [[name, *(get(summaries[when]) for when in ("before", "after"))] for name, get in rows]


def summary(found: dict[str, dict[str, float]]) -> dict[str, Any]:
    """{"questions", "seconds": {"median", "p90", "largest"} a question, "search_seconds": mean a
    question, "tokens": mean a question}; the figures are None without a question."""
    columns = {key: [row[key] for row in found.values()] for key in _FIELDS}
    seconds = columns["seconds"]
    return {
        "questions": len(found),
        "seconds": {
            "median": float(np.median(seconds)) if seconds else None,
            "p90": float(np.quantile(seconds, 0.9)) if seconds else None,
            "largest": max(seconds, default=None),
        },
        "search_seconds": float(np.mean(columns["search_seconds"])) if found else None,
        "tokens": float(np.mean(columns["tokens"])) if found else None,
    }
