"""The noise floor: how much two evaluations of the same weights differ.

In: records of the first pass and lines of further passes over the same questions
(`<when>.repeats.jsonl`, written by `glimmer.heldout.evaluation`):

    {"id", "pass": 1.., "outcome", "prediction", "scores": {...}, "same_tokens": bool}

Two passes of the same weights differ in a share d of the questions (right in one, wrong in the
other; the mean over all pairs of passes). With either direction as likely, the difference of right
answers between two passes over N questions has variance N d. An after − before difference has one
pass on either side, so its variance from repetition alone is N (d_before + d_after) / 2, and 95 %
of such differences lie within 1.96 times its root: the floor. It says nothing about which questions
were drawn; that is the interval's part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.errors import DataError, IntegrityError
from glimmer.files import read_jsonl
from glimmer.heldout.statistics import Z, rate

MEANS = ("f1", "contains")  # scores that are compared as means
_FIELDS = ("id", "pass", "outcome", "scores", "same_tokens")


def read_repeats(path: Path) -> dict[int, dict[str, dict[str, Any]]]:
    """Lines by pass and question id; a file without lines is one of an evaluation without repeats.

    Raises:
        DataError: a line is not JSON or not of a repeated pass, or a question stands twice in a
            pass.
    """
    passes: dict[int, dict[str, dict[str, Any]]] = {}
    for number, row in read_jsonl(path):
        problem = None
        if not isinstance(row, dict) or any(key not in row for key in _FIELDS):
            problem = f"{str(row)[:60]!r}"
        elif row["scores"].get("exact_match") not in (0, 1):
            problem = f"scores {row['scores']!r}"
        elif row["id"] in passes.get(row["pass"], {}):
            problem = f"question {row['id']!r} for the second time in pass {row['pass']}"
        if problem is not None:
            raise DataError(
                f"{path}, line {number}: expected a question of a repeated pass, found {problem}. "
                "Correct the line, or delete the file: the evaluation makes it again."
            )
        passes.setdefault(row["pass"], {})[row["id"]] = row
    return passes


def pass_noise(
    first: Mapping[str, Any], passes: Mapping[int, Mapping[str, Any]], *, where: str
) -> dict[str, Any]:
    """How one checkpoint's passes differ.

    Args:
        first: records of the first pass by id.
        passes: of `read_repeats`, at least one.
        where: the file, for the message.

    Returns:
        {"passes", "questions": asked in every pass, "correct": right answers of each pass,
        "changed": questions right in one pass and wrong in another, "changed_rate" with its "ci95"
        (Wilson), "pair_rate": share of questions that differ between two passes, mean over the
        pairs, "f1_pair_square" and "contains_pair_square": mean squared difference of that score
        likewise, None where a line is without it, "pair_rate_at_most": the
        interval's upper end with each such question as often different as it can be,
        "other_tokens": questions of which some pass sampled other tokens}.

    Raises:
        IntegrityError: the passes hold other questions.
    """
    ids = sorted(next(iter(passes.values())))
    for number, rows in passes.items():
        if sorted(rows) != ids or any(i not in first for i in ids):
            raise IntegrityError(
                f"{where}: pass {number} holds other questions than the passes before it. Delete "
                "the file and run again."
            )
    every = [[first[i]["scores"]["exact_match"] for i in ids]] + [
        [passes[number][i]["scores"]["exact_match"] for i in ids] for number in sorted(passes)
    ]
    ordered = [first, *(passes[number] for number in sorted(passes))]
    squares = {f"{name}_pair_square": _pair_square(ordered, ids, name) for name in MEANS}
    pairs = list(itertools.combinations(every, 2))
    differing = [sum(a != b for a, b in zip(*pair, strict=True)) for pair in pairs]
    changed = sum(len(set(answers)) > 1 for answers in zip(*every, strict=True))
    found = rate(changed, len(ids))
    return {
        "passes": len(every),
        "questions": len(ids),
        "correct": [sum(answers) for answers in every],
        "changed": changed,
        "changed_rate": found["rate"],
        "ci95": found["ci95"],
        "pair_rate": sum(differing) / len(pairs) / len(ids),
        **squares,
        # Right in half of the passes: the most pairs that one question can set apart.
        "pair_rate_at_most": found["ci95"][1]
        * (len(every) // 2 * -(-len(every) // 2))
        / len(pairs),
        "other_tokens": sum(
            any(not rows[i]["same_tokens"] for rows in passes.values()) for i in ids
        ),
    }


def _pair_square(
    passes: Sequence[Mapping[str, Any]], ids: Sequence[str], name: str
) -> float | None:
    scores = [[rows[i]["scores"].get(name) for i in ids] for rows in passes]
    if any(score is None for row in scores for score in row):
        return None
    pairs = list(itertools.combinations(scores, 2))
    squares = ((a - b) ** 2 for pair in pairs for a, b in zip(*pair, strict=True))
    return sum(squares) / len(pairs) / len(ids)


def noise_floor(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, *, questions: int,
    difference: float,
) -> dict[str, Any] | None:  # fmt: skip
    """The floor of an after − before difference of `questions` questions; None without repeats.

    Args:
        before, after: of `pass_noise`.
        questions: compared.
        difference: measured, as a fraction.

    Returns:
        {"before", "after", "questions": the floor in right answers, "difference": the same as a
        fraction, "f1_difference" and "contains_difference": those of these means or None,
        "at_most": a fraction, from `pair_rate_at_most` in place of what was found, "ratio":
        |difference| / floor (None if the floor is 0), "above": the difference exceeds the floor}.
    """
    if before is None or after is None:
        return None
    half, most = ((before[key] + after[key]) / 2 for key in ("pair_rate", "pair_rate_at_most"))
    floor = Z * math.sqrt(questions * half)
    return {
        "before": dict(before),
        "after": dict(after),
        "questions": floor,
        "difference": floor / questions,
        **{
            f"{name}_difference": None
            if None in (squares := [side[f"{name}_pair_square"] for side in (before, after)])
            else Z * math.sqrt(sum(squares) / 2 / questions)
            for name in MEANS
        },
        "at_most": Z * math.sqrt(questions * most) / questions,
        "ratio": abs(difference) * questions / floor if floor else None,
        "above": abs(difference) * questions > floor,
    }
