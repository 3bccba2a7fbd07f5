"""Question files of other projects, rewritten in the layout of `glimmer.assets.questions`.

Known are the Parquet files of Search-R1 and the JSONL files of FlashRAG's data sets. A row has

    id, question, golden_answers: [str] (or reward_model.ground_truth.target), data_source: the set
    metadata: {type, supporting_facts: {title: [str]}, question_decomposition: [...], id}

of which a file may have more or less. `dataset` is `data_source`, which also heads the id, since
each set counts its questions from 0; `type` is the row's own or that of `metadata`; `hops` is the
row's own, or what the id says (`2hop__…`, MuSiQue), or the parts of its decomposition, or the
number of different titles among its supporting facts (HotpotQA, 2WikiMultihopQA).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glimmer.assets.lines import read_objects
from glimmer.errors import DataError
from glimmer.files import write_jsonl
from glimmer.logs import get_logger

logger = get_logger(__name__)

_MAGIC = b"PAR1"
_FOREIGN = ("data_source", "metadata", "reward_model")
# Of a Parquet file only these are read: HotpotQA's contexts are most of its bytes.
_COLUMNS = (
    "id",
    "question",
    "golden_answers",
    "reward_model.ground_truth",
    "data_source",
    "dataset",
    "type",
    "hops",
    "metadata.id",
    "metadata.type",
    "metadata.supporting_facts",
    "metadata.question_decomposition",
)
_ROWS = 2000


def to_own_layout(path: Path, label: str) -> None:
    """Rewrite a question file in place if it is Parquet or has another project's fields.

    Args:
        path: the file, whatever its name ends in.
        label: how messages name it.

    Raises:
        DataError: it is Parquet and cannot be read, or has no column `question`.
    """
    with open(path, "rb") as handle:
        packed = handle.read(len(_MAGIC)) == _MAGIC
    if packed:
        rows: Iterable[Mapping[str, Any]] = _parquet_rows(path, label)
    else:
        first = next(read_objects(path, label))[1]
        if not any(key in first for key in _FOREIGN):
            return
        rows = (row for _, row in read_objects(path, label))
    count = 0

    def own() -> Iterator[dict[str, Any]]:
        nonlocal count
        for row in rows:
            count += 1
            yield own_row(row)

    write_jsonl(path, own())
    logger.info("%s: %d questions rewritten in the project's layout", label, count)


def own_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One question in the layout of `glimmer.assets.questions`; what is wrong with it stays wrong,
    so that its reader names it."""
    metadata = _mapping(row.get("metadata"))
    dataset = row.get("dataset") or row.get("data_source")
    answers = row.get("golden_answers")
    if answers is None:
        truth = _mapping(_mapping(row.get("reward_model")).get("ground_truth"))
        answers = truth.get("target")
    if isinstance(answers, str):
        answers = [answers]
    own: dict[str, Any] = {}
    if row.get("id") is not None:
        own["id"] = f"{dataset}/{row['id']}" if dataset else str(row["id"])
    if "question" in row:
        own["question"] = row["question"]
    if answers is not None:
        # Beside others a blank one can match no prediction; alone it is refused by the reader.
        filled = [a for a in answers if not isinstance(a, str) or a.strip()]
        own["golden_answers"] = filled or list(answers)
    kind = row.get("type") or metadata.get("type")
    hops = _hops(row, metadata)
    named = {"type": kind, "dataset": dataset, "hops": hops}
    return own | {key: value for key, value in named.items() if value is not None}


def _hops(row: Mapping[str, Any], metadata: Mapping[str, Any]) -> Any:
    if row.get("hops") is not None:
        return row["hops"]
    for name in (row.get("id"), metadata.get("id")):
        if isinstance(name, str) and (found := re.search(r"(?:^|/)(\d)hop", name)):
            return int(found[1])
    if parts := metadata.get("question_decomposition"):
        return len(parts)
    facts = metadata.get("supporting_facts")
    if isinstance(facts, Mapping):
        titles = facts.get("title") or []
    else:
        # A list of {"title", ...}, or of [title, sentence].
        titles = [f.get("title") if isinstance(f, Mapping) else f[0] for f in facts or [] if f]
    return len(set(titles)) or None


def _parquet_rows(path: Path, label: str) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        leaves = [file.schema.column(i).path for i in range(len(file.schema))]
        if not any(leaf.split(".")[0] == "question" for leaf in leaves):
            names = sorted({leaf.split(".")[0] for leaf in leaves})
            raise DataError(
                f"{label}: found the columns {', '.join(names)}, expected 'question' among them. "
                "Name another file."
            )
        wanted = [leaf for leaf in leaves if any(f"{leaf}.".startswith(f"{c}.") for c in _COLUMNS)]
        for batch in file.iter_batches(batch_size=_ROWS, columns=wanted):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{label}: found Parquet that cannot be read ({error}), expected a whole file. Fetch "
            "it again."
        ) from error


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
