"""How much of the retrieval ceiling (`glimmer.heldout.ceiling`) was reached, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glimmer.heldout.statistics import rate


def reached(found: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict:
    """The ceiling as paired.json has it: without ids, with the share of it that was reached.

    Args:
        found: what `glimmer.heldout.ceiling.measure_ceiling` returned.
        old, new: records by id, before and after.

    Returns:
        `found` without `first`, and "reached": {"questions": those whose answer is in the first
        `topk` passages, "before", "after": {"correct", "rate", "ci95"} of exact match among them}.
    """
    heldout = found["sets"]["heldout"]
    within = [i for i, rank in heldout["first"].items() if rank and rank <= found["topk"]]
    within = [i for i in within if i in old]
    sides = {}
    for name, rows in (("before", old), ("after", new)):
        correct = int(sum(rows[i]["scores"]["exact_match"] for i in within))
        sides[name] = {"correct": correct, **rate(correct, len(within))}
    return {
        **{key: value for key, value in found.items() if key != "sets"},
        "sets": {
            name: {key: value for key, value in row.items() if key != "first"}
            for name, row in found["sets"].items()
        },
        "reached": {"questions": len(within), **sides},
    }
