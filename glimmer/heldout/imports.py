"""Record files of any system, for `glimmer compare`.

The minimal schema, one JSON object a line:

    {"id": "q1", "exact_match": 1}

`id` is a text or an integer, once a file; `exact_match` 0, 1, true or false. Optional: `f1` and
`contains` (0..1), `type`, `dataset`, `hops`, `outcome`, `question`, `golden_answers`, `hashes`,
`samples` (further answers to the question, each with its score). Scores may stand in an object
`scores`, so that a run's own record files fit too. Other keys are passed over.

Sample logs of lm-evaluation-harness (`--log_samples`) are known by `doc_id` and `filtered_resps`;
those of its earlier versions name no filter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glimmer.errors import DataError
from glimmer.files import disk_errors, read_jsonl, sha256_json

_WAY_OUT = 'The least that a line needs is {"id": "q1", "exact_match": 1}.'
_OTHER_FORMATS = {
    b"\x1f\x8b": ("a gzip file", "gunzip -c FILE > FILE.jsonl"),
    b"\x28\xb5\x2f\xfd": ("a zstandard file", "zstd -dc FILE > FILE.jsonl"),
    b"\xff\xfe": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > FILE.jsonl"),
    b"\xfe\xff": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > FILE.jsonl"),
}
_KEPT = {
    "question": str,
    "golden_answers": list,
    "hashes": dict,
    "searches": int,
    "dataset": str,
    "hops": int,
}


def read_any(path: Path, *, metric: str | None = None, filter: str | None = None) -> dict[str, Any]:
    """Records by id, each with `scores.exact_match` as 0 or 1, in the file's order.

    Args:
        metric: the field that says right or wrong; `exact_match` if None.
        filter: of an lm-evaluation-harness log with several filters, the one that counts.

    Raises:
        DataError: naming file and line: not a record, an id twice, a score that is missing, no
            number, NaN or neither 0 nor 1, several filters and none chosen, or one chosen where
            there is none; or the file is empty.
    """
    metric = metric or "exact_match"
    records: dict[str, Any] = {}
    lines: dict[str, int] = {}
    filters: dict[str, None] = {}
    for number, row in _lines(path):
        where = f"{path}, line {number}"
        if not isinstance(row, dict):
            raise DataError(
                f"{where}: found a {type(row).__name__}, expected an object. {_WAY_OUT}"
            )
        if "doc_id" in row and ("filtered_resps" in row or "filter" in row):
            name = str(row.get("filter", "none"))
            filters[name] = None
            if filter is not None and name != filter:
                continue
            if len(filters) > 1 and filter is None:
                raise DataError(
                    f"{where}: found the filters {', '.join(filters)}, expected one. Choose with "
                    "--filter."
                )
            record = _harness(row, metric, where)
        else:
            record = _minimal(row, metric, where)
        name = record["id"]
        if name in records:
            raise DataError(
                f"{where}: found the id {name!r}, which line {lines[name]} has too; expected each "
                "id once. Remove one of the two lines."
            )
        records[name], lines[name] = record, number
    if filter is not None and not filters:
        raise DataError(
            f"{path}: found lines that name no filter, expected {filter!r} in a sample log of "
            "lm-evaluation-harness. Leave --filter out."
        )
    if not records:
        chosen = f" with filter {filter!r}; it has {', '.join(filters)}" if filters else ""
        raise DataError(f"{path}: found no record{chosen}. {_WAY_OUT}")
    return records


def check_file(path: Path) -> None:
    """Raises DataError where there is no regular file: it is read more than once."""
    if not path.exists():
        found = "no such file"
    elif path.is_dir():
        found = "a folder"
    elif not path.is_file():
        found = "a pipe or device"
    else:
        return
    raise DataError(f"{path}: found {found}, expected a file of JSONL. Correct the path.")


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    check_file(path)
    with disk_errors(path, "reading"):
        with open(path, "rb") as handle:
            start = handle.readline()
        for first, (what, convert) in _OTHER_FORMATS.items():
            if start.startswith(first):
                raise DataError(
                    f"{path}: found {what}, expected one JSON object a line. Convert it: {convert}."
                )
        if start.strip() == b"[":
            raise DataError(
                f"{path}: found a JSON array over several lines, which early versions of "
                "lm-evaluation-harness wrote, expected one object a line. Convert it: "
                "jq -c '.[]' FILE."
            )
        try:
            yield from read_jsonl(path)
        except (ValueError, RecursionError) as error:  # a number or a nesting too large for Python
            raise DataError(
                f"{path}: found a line that cannot be read ({error}). Correct or remove it."
            ) from error


def _minimal(row: dict[str, Any], metric: str, where: str) -> dict[str, Any]:
    name = row.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise DataError(f"{where}: found the id {name!r}, expected a text. {_WAY_OUT}")
    given = _given(row)
    scores: dict[str, Any] = {"exact_match": _right(given, metric, where)}
    for key in ("f1", "contains"):
        if given.get(key) is not None:
            scores[key] = _fraction(given[key], key, where)
    record = {"id": str(name), "scores": scores}
    for key in ("type", "outcome"):
        if key in row:
            if row[key] is not None and not isinstance(row[key], str):
                raise DataError(f"{where}: found {key!r}: {row[key]!r}, expected a text or null.")
            record[key] = row[key]
    if record.get("outcome") is None:
        record.pop("outcome", None)
    record |= {key: row[key] for key, kind in _KEPT.items() if isinstance(row.get(key), kind)}
    if (samples := row.get("samples")) is not None:
        if not isinstance(samples, list) or not all(isinstance(s, dict) for s in samples):
            raise DataError(
                f"{where}: found 'samples': {str(samples)[:60]}, expected a list of objects, each "
                f"with {metric!r}."
            )
        record["samples"] = [
            {"scores": {"exact_match": _right(_given(sample), metric, where)}} for sample in samples
        ]
    # A run's own records, whose passages are known.
    turns = row.get("turns")
    if isinstance(turns, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("completion_ids"), list) for turn in turns
    ):
        record["turns"] = turns
    return record


def _given(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line, those of its object `scores` among them."""
    nested = row.get("scores")
    return {**row, **nested} if isinstance(nested, dict) else row


def _harness(row: dict[str, Any], metric: str, where: str) -> dict[str, Any]:
    """A line of a sample log of lm-evaluation-harness."""
    if metric not in row:
        raise DataError(
            f"{where}: found the metrics {row.get('metrics')}, expected {metric!r} among them. "
            "Choose with --metric."
        )
    record = {"id": str(row["doc_id"]), "scores": {"exact_match": _right(row, metric, where)}}
    if "doc_hash" in row:
        record["question"] = row["doc_hash"]
    if "prompt_hash" in row:
        record["hashes"] = {"prompt": row["prompt_hash"]}
    return record


def _right(row: dict[str, Any], metric: str, where: str) -> int:
    if row.get(metric) is None:
        numbers = [key for key, value in row.items() if isinstance(value, int | float)]
        names = ", ".join(key for key in numbers if key not in ("id", "doc_id"))
        way_out = f"It has {names}: choose with --metric." if names else _WAY_OUT
        raise DataError(f"{where}: found no {metric!r}. {way_out}")
    value = _fraction(row[metric], metric, where)
    if value not in (0, 1):
        raise DataError(
            f"{where}: found {metric} {value!r}, expected 0 or 1: the exact test needs answers "
            "that are right or wrong. Choose such a field with --metric."
        )
    return int(value)


def _fraction(value: Any, name: str, where: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise DataError(f"{where}: found {name} {value!r}, expected a number from 0 to 1.")
    return float(value)


def check_questions(old: dict[str, Any], new: dict[str, Any], before: Path, after: Path) -> None:
    """The same ids and, where both files tell, the same questions.

    Raises:
        DataError: naming the first difference.
    """
    for mine, theirs, missing in ((old, new, after), (new, old, before)):
        if absent := [i for i in mine if i not in theirs]:
            raise DataError(
                f"{missing}: {len(absent)} of {len(mine)} questions missing, the first "
                f"{absent[0]!r}; expected the same ids in both files. Evaluate the same questions."
            )
    for i, row in old.items():
        for key in ("question", "golden_answers"):
            if key in row and key in new[i] and row[key] != new[i][key]:
                raise DataError(
                    f"{before} and {after}: found another {key!r} under the id {i!r}; expected "
                    "the same questions. Correct the ids."
                )


def check_samples(old: dict[str, Any], new: dict[str, Any], before: Path, after: Path) -> None:
    """As many answers to each question in both files.

    Raises:
        DataError: naming the numbers found.
    """
    found = {
        path: sorted({1 + len(row.get("samples", ())) for row in rows.values()})
        for path, rows in ((before, old), (after, new))
    }
    if len({count for counts in found.values() for count in counts}) > 1:
        numbers = " and ".join(
            f"{' or '.join(map(str, counts))} a question in {path}"
            for path, counts in found.items()
        )
        raise DataError(
            f"{before} and {after}: found answers, {numbers}; expected one number for all. "
            "Evaluate with as many samples, or remove 'samples' from the lines."
        )


def differing_hashes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, int]:
    """Questions whose records say that settings or prompt differ, for each that does."""
    counts: dict[str, int] = {}
    for i, row in old.items():
        mine, theirs = row.get("hashes"), new[i].get("hashes")
        if isinstance(mine, dict) and isinstance(theirs, dict):
            for key in sorted({"settings", "prompt"} & mine.keys() & theirs.keys()):
                if sha256_json(mine[key]) != sha256_json(theirs[key]):
                    counts[key] = counts.get(key, 0) + 1
    return counts
