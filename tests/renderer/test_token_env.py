"""Through TitanRL's own TokenEnv: prompts, completions and the next prompts of a rollout."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from glimmer.search_r1.prompt import SEARCH_TOOL
from glimmer.titanrl import ensure_importable

from .helpers import make_renderer, user

ensure_importable()

from torchtitan.experiments.rl.environment import (  # noqa: E402
    MessageEnv,
    MessageEnvInitOutput,
    MessageEnvStepOutput,
    TokenEnv,
)
from torchtitan.experiments.rl.rollout.types import RolloutStatus  # noqa: E402
from torchtitan.experiments.rl.types import Completion  # noqa: E402

TOOLS = [SEARCH_TOOL]


def searching(query):
    return (
        ' to=search<|message|><atem:function_calls>\n<atem:invoke name="search">\n'
        f'<atem:parameter name="query">{query}</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eot|>"
    )


ANSWER = " to=self<|message|>It says so.<|eom|><|start|>assistant to=user<|message|>She.<|eot|>"


class Scripted(MessageEnv):
    """Answers each turn with the next of its replies; done when a turn has no call."""

    @dataclass(kw_only=True, slots=True)
    class Config(MessageEnv.Config):
        pass

    def __init__(self, config, *, replies):
        self.replies, self.seen = list(replies), []

    async def init(self):
        return MessageEnvInitOutput(init_prompt_messages=[user("Who?")], tools=TOOLS)

    async def step(self, completion_message):
        self.seen.append(completion_message)
        if not completion_message.get("tool_calls"):
            return MessageEnvStepOutput(done=True)
        return MessageEnvStepOutput(env_messages=self.replies.pop(0))


def completion(ids, finish_reason="stop"):
    return Completion(
        min_policy_version=0,
        max_policy_version=0,
        request_id="r",
        token_ids=ids,
        token_logprobs=[0.0] * len(ids),
        finish_reason=finish_reason,
    )


def rollout(renderer, turns, replies, **config):
    """(prompts, outputs, message env): turns are ids, or texts, or (ids, finish reason)."""

    async def run():
        messages = Scripted.Config().build(replies=replies)
        env = TokenEnv.Config(**config).build(message_env=messages, renderer=renderer)
        outputs = [await env.init()]
        prompts = [outputs[0].next_prompt_token_ids]
        for turn in turns:
            ids, reason = turn if isinstance(turn, tuple) else (turn, "stop")
            outputs.append(await env.step(completion(ids, reason)))
            prompts.append(outputs[-1].next_prompt_token_ids)
        await env.close()
        return prompts, outputs, messages

    return asyncio.run(run())


@pytest.fixture
def encode(tokenizer):
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def result(text="A text.", name="search"):
    return {"role": "tool", "content": text, **({"name": name} if name else {})}


def test_two_searches_and_an_answer(renderer, encode):
    turns = [encode(searching("1984")), encode(searching(" x\n")), encode(ANSWER)]
    prompts, outputs, env = rollout(renderer, turns, [[result()], [result("Other.")]])
    assert [o.status for o in outputs] == [RolloutStatus.ONGOING] * 3 + [RolloutStatus.COMPLETED]
    queries = [m["tool_calls"][0].arguments["query"] for m in env.seen[:2]]
    assert queries == ["1984", " x\n"]
    assert (env.seen[2]["content"], env.seen[2]["reasoning_content"]) == ("She.", "It says so.")
    for before, turn, after in zip(prompts, turns, prompts[1:3], strict=False):
        assert after[: len(before) + len(turn)] == before + turn
    # The conversation that the env kept, ParsedToolCall objects and all, renders the same.
    assert prompts[2] == renderer.render_ids(
        outputs[2].next_prompt_messages, tools=TOOLS, add_generation_prompt=True
    )


def test_sampled_ids_that_reencode_differently_are_carried(renderer, encode):
    """Fault 18."""
    text = searching("hello")
    before, after = text.split("hello")
    turn = [*encode(before), *(i for c in "hello" for i in encode(c)), *encode(after)]
    assert turn != encode(text)
    prompts, _, env = rollout(renderer, [turn], [[result()]])
    assert prompts[1][: len(prompts[0]) + len(turn)] == prompts[0] + turn
    assert env.seen[0]["tool_calls"][0].arguments == {"query": "hello"}


def test_results_with_neither_name_nor_id(renderer, encode):
    """As TitanRL's own example environment gives them: bridged, to what a full render gives."""
    turn = encode(searching("q"))
    prompts, outputs, _ = rollout(renderer, [turn], [[result(name=None)]])
    assert prompts[1][: len(prompts[0]) + len(turn)] == prompts[0] + turn
    assert prompts[1] == renderer.render_ids(
        outputs[1].next_prompt_messages, tools=TOOLS, add_generation_prompt=True
    )


def test_where_no_bridge_can_be_the_conversation_is_rendered_anew(tokenizer, encode):
    """The objects that the parser made stand in the messages of that render."""
    renderer = make_renderer(tokenizer, TOOLS, thinking_retention="tool_cycle")
    turn = encode(searching("q"))
    prompts, outputs, _ = rollout(renderer, [turn], [[result(), user("Go on.")]])
    assert prompts[1] == renderer.render_ids(
        outputs[1].next_prompt_messages, tools=TOOLS, add_generation_prompt=True
    )
    assert prompts[1][: len(prompts[0]) + len(turn)] == prompts[0] + turn


def test_a_broken_call_renders_anew_too(tokenizer, encode):
    renderer = make_renderer(tokenizer, TOOLS, thinking_retention="tool_cycle")
    for text in (
        " to=search<|message|>what?<|eot|>",
        " to=search<|message|><atem:function_calls><|eot|>",
        " Look <atem:function_calls>\n<atem:inv<|eot|>",
        searching("q").replace("</atem:parameter>", ""),
        searching("q").replace('name="search"', 'name=""'),
    ):
        _, outputs, env = rollout(renderer, [encode(text)], [[result(), user()]])
        assert outputs[1].status is RolloutStatus.ONGOING, text
        assert len(env.seen[0]["tool_calls"]) == 1


def test_a_cut_completion_keeps_its_message(renderer, encode):
    cut = encode(searching("a long query").split(" query")[0])
    _, outputs, env = rollout(renderer, [(cut, "length")], [])
    assert outputs[1].status is RolloutStatus.TRUNCATED_LENGTH and env.seen == []
    (call,) = outputs[1].completion_message["tool_calls"]
    assert (call.status, outputs[1].completion_message["content"]) == ("unclosed_block", "")


def test_a_limit_of_turns(renderer, encode):
    _, outputs, _ = rollout(renderer, [encode(searching("q"))], [[result()]], max_num_turns=1)
    assert outputs[1].status is RolloutStatus.TRUNCATED_MAX_TURNS


def test_a_limit_of_tokens(renderer, encode):
    turn = encode(searching("q"))
    prompts, _, _ = rollout(renderer, [turn], [[result()]])
    limit = len(prompts[1])
    _, outputs, _ = rollout(renderer, [turn], [[result()]], max_rollout_tokens=limit)
    assert outputs[1].status is RolloutStatus.TRUNCATED_PROMPT_TOO_LONG
    _, outputs, _ = rollout(renderer, [turn], [[result()]], max_rollout_tokens=limit + 1)
    assert outputs[1].status is RolloutStatus.ONGOING
