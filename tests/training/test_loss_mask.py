"""Faults 18, 19, 37 and 38: what of a rollout with searches is learned from."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from torchtitan.experiments.rl.components.batcher import BatchConfig, Batcher
from torchtitan.experiments.rl.components.training_sample_builder import TrainingSampleBuilder
from torchtitan.experiments.rl.rollout.types import (
    Rollout,
    RolloutGroup,
    RolloutStatus,
    RolloutTurn,
)
from torchtitan.experiments.rl.types import RolloutTurnID

from glimmer import config
from glimmer.search_r1.prompt import passages_to_text
from glimmer.training.local.engine import token_batch

PROMPT = [1, 2, 3, 4, 5]
CALL = [10, 11, 12]  # sampled in the first turn
PASSAGES = [20, 21, 22, 23, 24, 25]  # what the search answered
ANSWER = [30, 31]  # sampled in the second turn


def rollout(index: int, reward: float) -> Rollout:
    """A search and an answer; the answer's first id tells rollouts apart."""
    turns = [
        RolloutTurn(
            rollout_id=RolloutTurnID(group_id=0, rollout_id=index, turn_id=0),
            prompt_token_ids=PROMPT,
            completion_token_ids=CALL,
            completion_logprobs=[-0.1] * len(CALL),
            min_policy_version=0,
            max_policy_version=0,
        ),
        RolloutTurn(
            rollout_id=RolloutTurnID(group_id=0, rollout_id=index, turn_id=1),
            prompt_token_ids=[*PROMPT, *CALL, *PASSAGES],
            completion_token_ids=[ANSWER[0] + 2 * index, ANSWER[1]],
            completion_logprobs=[-0.2] * len(ANSWER),
            min_policy_version=0,
            max_policy_version=0,
        ),
    ]
    return Rollout(
        group_id=0,
        rollout_id=index,
        status=RolloutStatus.COMPLETED,
        turns=turns,
        reward=reward,
        advantage=reward - 0.5,
    )


def sample_group():
    group = RolloutGroup(group_id=0, rollouts=[rollout(0, 1.0), rollout(1, 0.0)])
    builder = TrainingSampleBuilder.Config(drop_zero_std_reward_groups=False).build()
    return builder.build_from_group(rollout_group=group)


def samples():
    return sample_group().training_samples


def test_only_what_was_sampled_is_in_the_loss():
    """Fault 19: the passages are read, not learned."""
    found = samples()
    assert len(found) == 2
    for index, sample in enumerate(found):
        assert sample.token_ids == [*PROMPT, *CALL, *PASSAGES, 30 + 2 * index, 31]
        learned = [t for t, m in zip(sample.token_ids, sample.loss_mask, strict=True) if m]
        assert learned == [*CALL, 30 + 2 * index, 31]
        for token, mask, advantage in zip(
            sample.token_ids, sample.loss_mask, sample.advantage, strict=True
        ):
            assert mask == (token not in (*PROMPT, *PASSAGES))
            assert (advantage != 0) == mask


def test_the_local_engines_batch_keeps_the_count():
    """Five sampled tokens a rollout, whatever prefix they share."""
    batch = token_batch(samples())
    assert int(batch.mask.sum()) == 2 * (len(CALL) + len(ANSWER))
    assert batch.prefix == PROMPT[: len(batch.prefix)]
    sampled = batch.tokens[batch.mask].tolist()
    assert not set(sampled) & {*PROMPT, *PASSAGES}


def test_the_gpu_engines_batch_keeps_the_count():
    """TitanRL's batcher packs both into one row and learns from the same ten tokens."""
    batcher = Batcher.Config(batch=BatchConfig(local_batch_size=1, seq_len=64)).build(
        num_prompts_per_train_step=1, dp_degree=1, pad_id=0
    )
    batch = batcher.add_training_samples(training_sample_group=sample_group())
    ((packed,),) = batch.microbatches
    assert packed.token_ids.shape == (1, 64)
    learned = packed.labels[packed.loss_mask.bool()].tolist()
    assert learned == [*CALL, 30, 31, *CALL, 32, 31]
    assert batch.num_global_valid_tokens == 2 * (len(CALL) + len(ANSWER))


def test_what_a_turn_is_stands_where_it_is_set():
    """Fault 37: "at most 2 turns" left room for one search only."""
    keys = config.schema()["properties"]["search"]["properties"]
    assert "the answer included" in keys["max_turns"]["description"]


def test_a_long_passage_reaches_the_model_whole():
    """Fault 38: no default limit cuts a tool's text in the middle of a passage."""
    text = "word " * 40_000 + "end"
    passage = SimpleNamespace(title="T", text=text, id="0", score=1.0, contents=f'"T"\n{text}')
    assert text in passages_to_text([passage])
    assert asyncio.run(_tool_text(passage)).endswith("end\n")


async def _tool_text(passage):
    from renderers.base import ParsedToolCall, ToolCallParseStatus

    from glimmer.assets import Question
    from glimmer.search_r1.env import SearchEnv

    class Client:
        async def search(self, query):
            return [passage]

    question = Question(id="q", question="Who?", golden_answers=["x"])
    env = SearchEnv.Config().build(env_input=question, client=Client())
    call = ParsedToolCall(
        raw="", name="search", arguments={"query": "x"}, status=ToolCallParseStatus.OK
    )
    found = await env.step({"role": "assistant", "content": "", "tool_calls": [call]})
    return found.env_messages[0]["content"]
