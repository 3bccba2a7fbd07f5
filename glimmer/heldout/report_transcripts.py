"""The transcripts that the report's viewer shows, as one JSON value.

With a way to turn token ids into text, a turn also carries its log-probabilities: `lp` is
[piece, centinats, piece, centinats, ...], `piece` a place in `pieces`; -105 stands for -1.05 nats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_OTHERS = 60  # questions neither gained nor lost, on a page that has no room for all
KINDS = ("gained", "lost", "both_right", "both_wrong")


Piece = Callable[[int], str]


def fitting(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    budget: int,
    piece: Piece | None = None,
    timings: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """`transcripts` with about as many questions as fit into `budget` bytes: all that were gained
    or lost before any other, then others, of which at least `MAX_OTHERS` before a changed one goes;
    then with the log-probabilities of all questions if these fit too, else of those that changed.
    """
    others, changed = max(len(before), MAX_OTHERS), len(before)
    while True:
        shown = transcripts(before, after, others=others, changed=changed, timings=timings)
        size = page_bytes(shown)
        if size <= budget or not (others or changed):
            break
        keep = min(0.8, max(0.3, 0.95 * budget / size))
        if others > MAX_OTHERS:
            others = max(MAX_OTHERS, int(others * keep))
        elif changed > MAX_OTHERS:
            changed = max(MAX_OTHERS, int(min(changed, len(before)) * keep))
        else:
            others, changed = int(others * keep), int(changed * keep)
    if piece is None:
        return shown
    for kinds in (KINDS, ("gained", "lost")):
        added = _with_logprobs(shown, before, after, piece, kinds)
        if page_bytes(added) <= budget:
            return added
    return shown


def token_pieces(checkpoint: Path) -> Piece:
    """Token id -> its text, by the tokenizer of a checkpoint. A token that is no whole character
    has the replacement character in its place."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return lambda token: tokenizer.decode([token], skip_special_tokens=False)


def page_bytes(value: Any) -> int:
    """Bytes of a JSON value on the page, which writes "<" in six."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "replace")) + 5 * text.count("<")


def _with_logprobs(
    shown: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    piece: Piece,
    kinds: Sequence[str],
) -> dict[str, Any]:
    """`shown` with the log-probabilities of the questions of some kinds."""
    places: dict[int, int] = {}
    questions = []
    for question in shown["questions"]:
        if question["kind"] in kinds:
            question = question | {
                name: question[name]
                | {
                    "turns": [
                        turn | _logprobs(row, places)
                        for turn, row in zip(
                            question[name]["turns"], rows[question["id"]]["turns"], strict=True
                        )
                    ]
                }
                for name, rows in (("before", before), ("after", after))
            }
        questions.append(question)
    return {**shown, "questions": questions, "pieces": [piece(token) for token in places]}


def _logprobs(turn: Mapping[str, Any], places: dict[int, int]) -> dict[str, Any]:
    tokens, values = turn.get("completion_ids") or [], turn.get("logprobs") or []
    if not tokens or len(tokens) != len(values):
        return {}
    pairs = zip(tokens, values, strict=True)
    return {
        "lp": [x for t, v in pairs for x in (places.setdefault(t, len(places)), round(100 * v))]
    }


def transcripts(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    others: int = MAX_OTHERS,
    changed: int | None = None,
    timings: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """At most `changed` questions gained and lost (None: all), and at most `others` others, evenly
    spread.

    Args:
        before, after: records by question id (see `glimmer.heldout.records`).
        timings: of both, by question id (see `glimmer.heldout.timings`).

    Returns:
        {"passages": [[id, title, text]], "questions": [...], "totals": {kind: questions},
        "shown": {kind: questions}}. A passage stands once; results name it by its place.
    """
    kinds = {i: _kind(before[i], after[i]) for i in before}
    members = {kind: [i for i in kinds if kinds[i] == kind] for kind in KINDS}
    room = {}
    for pair, most in ((("gained", "lost"), changed), (("both_right", "both_wrong"), others)):
        for kind, other in zip(pair, reversed(pair), strict=True):
            most = len(before) if most is None else most
            # Half of the room for either kind; what one leaves is the other's.
            room[kind] = max(most // 2, most - len(members[other]))
    chosen = {kind: _spread(ids, room[kind]) for kind, ids in members.items()}
    kept = {i for ids in chosen.values() for i in ids}
    places: dict[tuple[Any, ...], int] = {}
    timed = timings or ({}, {})
    questions = [
        {
            "id": i,
            "question": before[i]["question"],
            "golden": before[i]["golden_answers"],
            "type": before[i]["type"],
            "kind": kinds[i],
            "before": _side(before[i], places, timed[0].get(i)),
            "after": _side(after[i], places, timed[1].get(i)),
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


def _side(
    row: Mapping[str, Any], places: dict[tuple[Any, ...], int], timed: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "outcome": row["outcome"],
        "prediction": row["prediction"],
        "f1": row["scores"]["f1"],
        "searches": row["searches"],
        "status": row["status"],
        "turns": [_turn(turn, places) for turn in row["turns"]],
    } | ({"seconds": timed["seconds"]} if timed else {})


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
