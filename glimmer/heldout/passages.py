"""Did the answer stand in a passage that was found? The retrieval ceiling and how much of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glimmer.heldout.groups import grouped
from glimmer.heldout.statistics import rate
from glimmer.search_r1.scoring import contains

_WHEN = {
    (True, True): "both",
    (True, False): "only_before",
    (False, True): "only_after",
    (False, False): "neither",
}


def answer_found(record: Mapping[str, Any]) -> bool:
    """Whether a golden answer stands, normalised and on word borders, in the title or text of a
    passage of any search of this record."""
    golden = record["golden_answers"]
    return any(
        contains(f"{passage.get('title') or ''} {passage.get('text') or ''}", golden)
        for turn in record["turns"]
        for result in turn.get("tool_results") or []
        for passage in result.get("passages") or []
    )


def retrieval(old: Mapping[str, Any], new: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Retrieval ceiling of both evaluations, and scores by where the answer was found.

    Returns:
        {"before", "after": {"answer_found": questions, "ceiling": share with its "ci95",
        "correct_found", "correct_not_found": questions, "accuracy_found", "accuracy_not_found":
        {"rate", "ci95"}}, "found_in": {"both", "only_before", "only_after", "neither", of those
        that occur: as `glimmer.heldout.groups.grouped`}}. `accuracy_found` is the share of the
        ceiling that was reached.
    """
    found = {
        name: {i: answer_found(rows[i]) for i in ids}
        for name, rows in (("before", old), ("after", new))
    }

    def when(i: str) -> str:
        return _WHEN[found["before"][i], found["after"][i]]

    return {
        "before": _side(old, found["before"]),
        "after": _side(new, found["after"]),
        "found_in": grouped(old, new, ids, when),
    }


def _side(rows: Mapping[str, Any], found: Mapping[str, bool]) -> dict[str, Any]:
    count = sum(found.values())
    with_it = sum(rows[i]["scores"]["exact_match"] for i, there in found.items() if there)
    without = sum(rows[i]["scores"]["exact_match"] for i, there in found.items() if not there)
    ceiling = rate(count, len(found))
    return {
        "answer_found": count,
        "ceiling": ceiling["rate"],
        "ci95": ceiling["ci95"],
        "correct_found": with_it,
        "correct_not_found": without,
        "accuracy_found": rate(with_it, count),
        "accuracy_not_found": rate(without, len(found) - count),
    }
