"""The transcripts that the report's viewer shows, as one JSON value without token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MAX_OTHERS = 60  # questions neither gained nor lost, on a page that has no room for all
BUDGET = 9_600_000  # bytes of transcripts on the page
KINDS = ("gained", "lost", "both_right", "both_wrong")


def fitting(
    before: Mapping[str, Any], after: Mapping[str, Any], *, budget: int = BUDGET
) -> dict[str, Any]:
    """`transcripts` with about as many others, at least `MAX_OTHERS`, as fit into `budget`."""
    others = max(len(before), MAX_OTHERS)
    while True:
        shown = transcripts(before, after, others=others)
        size = len(json.dumps(shown, ensure_ascii=False).encode("utf-8", "replace"))
        if size <= budget or others == MAX_OTHERS:
            return shown
        others = max(MAX_OTHERS, others * 4 // 5)


def transcripts(
    before: Mapping[str, Any], after: Mapping[str, Any], *, others: int = MAX_OTHERS
) -> dict[str, Any]:
    """All questions gained and lost, and at most `others` others, evenly spread.

    Args:
        before, after: records by question id (see `glimmer.heldout.records`).

    Returns:
        {"passages": [[id, title, text]], "questions": [...], "totals": {kind: questions},
        "shown": {kind: questions}}. A passage stands once; results name it by its place.
    """
    kinds = {i: _kind(before[i], after[i]) for i in before}
    members = {kind: [i for i in kinds if kinds[i] == kind] for kind in KINDS}
    unchanged = ("both_right", "both_wrong")
    # Half of the room for either kind; what one leaves is the other's.
    room = {
        kind: max(others // 2, others - len(members[other]))
        for kind, other in zip(unchanged, reversed(unchanged), strict=True)
    }
    chosen = {
        kind: _spread(ids, room[kind]) if kind in room else ids for kind, ids in members.items()
    }
    kept = {i for ids in chosen.values() for i in ids}
    places: dict[tuple[Any, ...], int] = {}
    questions = [
        {
            "id": i,
            "question": before[i]["question"],
            "golden": before[i]["golden_answers"],
            "type": before[i]["type"],
            "kind": kinds[i],
            "before": _side(before[i], places),
            "after": _side(after[i], places),
        }
        for i in kinds
        if i in kept
    ]
    return {
        "passages": [list(passage) for passage in places],
        "questions": questions,
        "totals": {kind: len(ids) for kind, ids in members.items()},
        "shown": {kind: len(ids) for kind, ids in chosen.items()},
    }


def _kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    was, became = (bool(row["scores"]["exact_match"]) for row in (old, new))
    if was:
        return "both_right" if became else "lost"
    return "gained" if became else "both_wrong"


def _spread(ids: Sequence[str], count: int) -> list[str]:
    """At most `count` of `ids`, evenly spaced, in their order."""
    if len(ids) <= count:
        return list(ids)
    return [ids[k * len(ids) // count] for k in range(count)]


def _side(row: Mapping[str, Any], places: dict[tuple[Any, ...], int]) -> dict[str, Any]:
    return {
        "outcome": row["outcome"],
        "prediction": row["prediction"],
        "f1": row["scores"]["f1"],
        "searches": row["searches"],
        "status": row["status"],
        "turns": [_turn(turn, places) for turn in row["turns"]],
    }


def _turn(turn: Mapping[str, Any], places: dict[tuple[Any, ...], int]) -> dict[str, Any]:
    calls = turn.get("tool_calls") or []
    shown: dict[str, Any] = {
        "tokens": len(turn.get("completion_ids") or []),
        "reasoning": turn.get("reasoning"),
        "content": turn.get("content"),
        "calls": [[call["name"], call["arguments"], call["status"]] for call in calls],
        "results": [
            {
                "query": result.get("query"),
                "error": result.get("error"),
                "passages": [
                    [
                        places.setdefault(
                            (passage.get("id"), passage.get("title"), passage.get("text")),
                            len(places),
                        ),
                        passage.get("score"),
                    ]
                    for passage in result.get("passages") or []
                ],
            }
            for result in turn.get("tool_results") or []
        ],
    }
    parsed = shown["reasoning"] or shown["content"] or calls
    # The raw completion matters only where the parsed one does not tell all.
    if not parsed or any(call["status"] != "ok" for call in calls):
        shown["raw"] = turn.get("text")
    return {key: value for key, value in shown.items() if value not in (None, [], "")}
