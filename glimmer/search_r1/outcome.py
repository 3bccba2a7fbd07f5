"""How a rollout ended, in one word, and what it answered. Every rollout has exactly one outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glimmer.errors import GlimmerError
from glimmer.search_r1.scoring import OUTCOMES, contains, exact_match, f1
from glimmer.titanrl import ensure_importable

ensure_importable()

from torchtitan.experiments.rl.rollout.types import Rollout, RolloutStatus  # noqa: E402

__all__ = ["OUTCOMES", "Outcome", "check_failed_searches", "final_answer", "judge"]


@dataclass(frozen=True)
class Outcome:
    """The end of a rollout.

    Attributes:
        outcome: one of `OUTCOMES`.
        prediction: the answer's text, stripped; None without an answer.
        exact_match, f1, contains: scores of the prediction, 0 without one.
        searches: searches executed, failed ones included.
        failed_searches: searches that ended in an error.
        calls_written: tool calls that the model wrote, readable or not.
    """

    outcome: str
    prediction: str | None
    exact_match: float
    f1: float
    contains: float
    searches: int
    failed_searches: int
    calls_written: int


def final_answer(rollout: Rollout) -> str | None:
    """The last turn's visible text if the rollout completed without a further tool call."""
    if not rollout.turns or rollout.status is not RolloutStatus.COMPLETED:
        return None
    message: dict[str, Any] = rollout.turns[-1].completion_message or {}
    if message.get("tool_calls"):
        return None
    content = message.get("content")
    return content.strip() if isinstance(content, str) and content.strip() else None


def judge(rollout: Rollout, golden_answers: list[str]) -> Outcome:
    """Outcome and scores of a finished rollout against the golden answers."""
    prediction = final_answer(rollout)
    counts = {
        key: int(sum(turn.env_rewards.get(key, 0.0) for turn in rollout.turns))
        for key in ("searches", "failed_searches")
    }
    written = sum(
        len((turn.completion_message or {}).get("tool_calls") or []) for turn in rollout.turns
    )
    em = float(prediction is not None and exact_match(prediction, golden_answers))
    if counts["failed_searches"] or rollout.status is RolloutStatus.ERROR_TIMEOUT:
        outcome = "tool_error"
    elif rollout.status is RolloutStatus.TRUNCATED_MAX_TURNS:
        outcome = "turn_limit"
    elif rollout.status.is_truncated():
        outcome = "truncated"
    elif rollout.status.is_error():
        outcome = "crashed"
    elif prediction is None:
        outcome = "no_answer"
    else:
        outcome = "correct" if em else "wrong"
    return Outcome(
        outcome=outcome,
        prediction=prediction,
        exact_match=em if outcome == "correct" else 0.0,
        f1=float(f1(prediction, golden_answers)) if prediction is not None else 0.0,
        contains=float(contains(prediction, golden_answers)) if prediction is not None else 0.0,
        calls_written=written,
        **counts,
    )


def check_failed_searches(failed: float, searches: float, *, allowed: float, where: str) -> None:
    """Stop where so many searches fail that the result would speak of the service.

    Args:
        allowed: `search.max_failed_fraction`.
        where: the step or the questions, for the message.

    Raises:
        GlimmerError: more than the allowed fraction failed.
    """
    if failed > allowed * searches:
        raise GlimmerError(
            f"{where}: {failed:.0f} of {searches:.0f} searches failed ({failed / searches:.0%}), "
            f"search.max_failed_fraction allows {allowed:.0%}. The log above names each failure, "
            "the service has a log of its own beside it; run again to go on from what is finished."
        )
