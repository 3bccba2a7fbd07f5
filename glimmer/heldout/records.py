"""One JSON line a held-out question, with its whole transcript. The format, and its reader.

    {"id", "question", "golden_answers": [str], "type": str or null,
     "dataset": str or null, "hops": int or null,
     "outcome": one of glimmer.search_r1.scoring.OUTCOMES,
     "prediction": str or null,
     "scores": {"exact_match": 0 or 1, "f1": 0..1, "contains": 0 or 1},
     "searches": int, "failed_searches": int, "status": TitanRL's rollout status,
     "turns": [{"prompt_ids": [int] (only those new since the turn before),
                "completion_ids": [int], "logprobs": [nats], "text": str (the completion, with
                special tokens), "reasoning": str or null, "content": str or null,
                "tool_calls": [{"name", "arguments", "status"}],
                "tool_results": [{"query", "passages": [{"id", "title", "text", "score"}],
                                  "error": str or null}]}],
     "hashes": {"question", "settings", "prompt"},
     "samples": with `evaluation.samples` above 1 the further rollouts of the question, each with
                the fields from "outcome" to "turns"}

`hashes.prompt` is null where no turn was made. `hashes.settings` covers what both evaluations of a
comparison must share: the sections evaluation, search and renderer, and the index.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glimmer.errors import DataError
from glimmer.files import read_jsonl
from glimmer.search_r1.scoring import OUTCOMES

_FIELDS = frozenset(
    "id question golden_answers type outcome prediction scores searches failed_searches status "
    "turns hashes".split()
)


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Records by question id, in the file's order.

    Raises:
        DataError: a line is not JSON or not a record, an id appears twice, or there is none.
    """
    records: dict[str, dict[str, Any]] = {}
    for number, row in read_jsonl(path):
        problem = _problem(row)
        if problem is None and row["id"] in records:
            problem = f"question {row['id']!r} for the second time"
        if problem is not None:
            raise DataError(
                f"{path}, line {number}: expected one record a question, found {problem}. "
                "Delete the file and run again: the evaluation is repeated."
            )
        records[row["id"]] = row
    if not records:
        raise DataError(f"{path}: no record. Delete the file and run again.")
    return records


def _problem(row: Any) -> str | None:
    """What is wrong with a record, or None."""
    if not isinstance(row, dict):
        return f"a {type(row).__name__}"
    if missing := sorted(_FIELDS - row.keys()):
        return f"a record without {', '.join(missing)}"
    samples = row.get("samples", [])
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        return f"samples {str(samples)[:60]}"
    return next(filter(None, map(_rollout_problem, [row, *samples])), None)


def _rollout_problem(row: dict[str, Any]) -> str | None:
    """What is wrong with one rollout's outcome or scores, or None."""
    if row.get("outcome") not in OUTCOMES:
        return f"outcome {row.get('outcome')!r}"
    if not isinstance(row.get("scores"), dict) or {"exact_match", "f1", "contains"} - set(
        row["scores"]
    ):
        return f"scores {row.get('scores')!r}"
    if row["scores"]["exact_match"] not in (0, 1) or not all(
        isinstance(value, int | float) and 0 <= value <= 1  # NaN is neither
        for value in row["scores"].values()
    ):
        return f"scores {row['scores']!r}, not all from 0 to 1"
    return None
