"""Known fault 9: rollouts wait on a slow search. From a turn, over HTTP, to the step's metrics."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.test_utils import TestServer
from renderers.base import ParsedToolCall

from glimmer.assets import Question
from glimmer.errors import GlimmerError
from glimmer.retrieval import SearchClient
from glimmer.search_r1.env import SearchEnv
from glimmer.search_r1.recipe import SearchAdvantage
from glimmer.training.metrics import check_step, rollout_metrics
from tests.slow_search import slow_service

from torchtitan.experiments.rl.rollout.types import (  # isort: skip  (importable after recipe)
    Rollout,
    RolloutGroup,
    RolloutStatus,
    RolloutTurn,
)
from torchtitan.experiments.rl.types import RolloutTurnID  # isort: skip

QUESTION = Question(id="q", question="Who?", golden_answers=["Her"], type=None)
PASSAGE = {"id": "5", "contents": '"Osvik"\nA river.'}
QUERIES = ["a", "slow", "b", "c"]


async def turns() -> list:
    """What the environment says to four rollouts that search at the same time."""
    async with (
        TestServer(slow_service(PASSAGE)) as server,
        SearchClient(str(server.make_url("/retrieve")), topk=1, timeout_s=0.5) as client,
    ):

        async def turn(query):
            call = ParsedToolCall(raw="", name="search", arguments={"query": query})
            message = {"role": "assistant", "content": "", "tool_calls": [call]}
            env = SearchEnv.Config().build(env_input=QUESTION, client=client)
            return message, await env.step(message)

        return await asyncio.gather(*map(turn, QUERIES))


def test_the_turn_times_out_as_such_and_the_step_goes_on():
    rollouts = []
    for place, (message, answered) in enumerate(asyncio.run(turns())):
        slow = QUERIES[place] == "slow"
        assert answered.done == slow
        said = answered.env_messages[0]["search"]["error"]
        assert said.startswith("SearchTimeout: ") and "'slow'" in said if slow else said is None
        rewards, messages = [answered.env_rewards], [message]
        if not slow:
            messages.append({"role": "assistant", "content": "Her" if place else "Him"})
            rewards.append({})
        rollouts.append(
            Rollout(
                group_id=0,
                rollout_id=place,
                status=RolloutStatus.COMPLETED,
                reward=0.0 if slow or not place else 1.0,
                turns=[
                    RolloutTurn(
                        rollout_id=RolloutTurnID(group_id=0, rollout_id=place, turn_id=i),
                        prompt_token_ids=[1],
                        completion_token_ids=[2],
                        completion_logprobs=[0.0],
                        completion_message=of,
                        env_rewards=reward,
                    )
                    for i, (of, reward) in enumerate(zip(messages, rewards, strict=True))
                ],
            )
        )
    group = RolloutGroup(group_id=0, rollouts=rollouts)
    row = rollout_metrics([group], [QUESTION]) | {"step": 7, "grad_norm": 1.0}
    assert (row["searches"], row["failed_searches"], row["crashed"]) == (1.0, 1.0, 0.0)
    assert row["exact_match"] == 0.5  # the slow one counts, as not answered
    check_step(row, rollouts=4, max_failed_fraction=0.25)
    with pytest.raises(GlimmerError, match="step 7: 1 of 4 searches failed"):
        check_step(row, rollouts=4, max_failed_fraction=0.2)
    advantages = SearchAdvantage.Config(should_std_normalize=False).build()(group)
    assert advantages == pytest.approx([-2 / 3, 0.0, 1 / 3, 1 / 3])  # nothing is learnt from it
