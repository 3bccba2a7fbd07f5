"""Every way in which a rollout can end has one word."""

import pytest
from renderers.base import ParsedToolCall
from torchtitan.experiments.rl.rollout.types import Rollout, RolloutStatus, RolloutTurn
from torchtitan.experiments.rl.types import RolloutTurnID

from glimmer.search_r1.outcome import OUTCOMES, judge

CALL = ParsedToolCall(raw="", name="search", arguments={"query": "x"})


def rollout(status, *messages, rewards=({},)):
    turns = [
        RolloutTurn(
            rollout_id=RolloutTurnID(group_id=0, rollout_id=0, turn_id=i),
            prompt_token_ids=[1],
            completion_token_ids=[2],
            completion_logprobs=[0.0],
            completion_message=message,
            env_rewards=reward,
        )
        for i, (message, reward) in enumerate(
            zip(messages, [*rewards, *[{}] * len(messages)], strict=False)
        )
    ]
    return Rollout(group_id=0, rollout_id=0, status=status, turns=turns)


def said(content, *calls):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


@pytest.mark.parametrize(
    ("ended", "outcome", "prediction"),
    [
        (rollout(RolloutStatus.COMPLETED, said(" The Hague. ")), "correct", "The Hague."),
        (rollout(RolloutStatus.COMPLETED, said("Rome")), "wrong", "Rome"),
        (rollout(RolloutStatus.COMPLETED, said("   ")), "no_answer", None),
        (rollout(RolloutStatus.COMPLETED, said("hague", CALL)), "no_answer", None),
        (rollout(RolloutStatus.TRUNCATED_LENGTH, said("Hague")), "truncated", None),
        (rollout(RolloutStatus.TRUNCATED_PROMPT_TOO_LONG, said("", CALL)), "truncated", None),
        (rollout(RolloutStatus.TRUNCATED_MAX_TURNS, said("", CALL)), "turn_limit", None),
        (rollout(RolloutStatus.ERROR_TIMEOUT, said("", CALL)), "tool_error", None),
        (rollout(RolloutStatus.ERROR), "crashed", None),
        (rollout(RolloutStatus.ERROR_PARSE), "crashed", None),
        (
            rollout(
                RolloutStatus.COMPLETED,
                said("", CALL),
                rewards=[{"searches": 1.0, "failed_searches": 1.0}],
            ),
            "tool_error",
            None,
        ),
    ],
)
def test_outcome(ended, outcome, prediction):
    found = judge(ended, ["Hague"])
    assert (found.outcome, found.prediction) == (outcome, prediction)
    assert found.outcome in OUTCOMES
    assert found.exact_match == (1.0 if outcome == "correct" else 0.0)


def test_searches_and_calls_are_counted_over_turns():
    found = judge(
        rollout(
            RolloutStatus.COMPLETED,
            said("", CALL, CALL),
            said("Hague"),
            rewards=[{"searches": 1.0, "failed_searches": 0.0, "invalid_calls": 1.0}],
        ),
        ["Hague"],
    )
    assert (found.searches, found.failed_searches, found.calls_written) == (1, 0, 2)
    assert found.outcome == "correct"
