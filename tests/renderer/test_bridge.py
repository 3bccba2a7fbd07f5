"""The next turn's prompt: what was sampled, untouched, and the new messages behind it."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers.base import RenderedTokens

from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import call, make_renderer, property_of, said, user
from .test_render_any import contents, ids, names, tools_of
from .test_round_trip import histories, replies

TOOLS = [SEARCH_TOOL]
CALLING = {
    "role": "assistant",
    "reasoning_content": "Hm.",
    "tool_calls": [call("search", {"query": "a b"}), call("open", {"n": 1})],
}


def tool(name=None, content="R", **more):
    return {"role": "tool", "content": content, **({"name": name} if name else {}), **more}


def sampled(renderer, messages, message, tools=None):
    """Prompt of a conversation, and the ids that the model samples if it says `message`."""
    prompt = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
    whole = renderer.render_ids([*messages, message], tools=tools)
    assert whole[: len(prompt)] == prompt
    return prompt, whole[len(prompt) :]


@pytest.mark.parametrize(
    ("message", "new"),
    [
        (CALLING, [tool("search"), tool("open", " é\n")]),
        (CALLING, [tool("search"), tool("open"), user("Go on.")]),
        (CALLING, [tool("other", None), tool("search", ["a", {"type": "text", "text": "b"}])]),
        (said("Yes."), [user("And?")]),
        (said("Yes.", reasoning_content="Hm."), [user(None), user(["x"])]),
        (said("<b> & 'x'\n\n"), [user("  ")]),
    ],
)
def test_a_canonical_turn_gives_the_full_render(message, new, renderer):
    prompt, completion = sampled(renderer, [user()], message, TOOLS)
    bridged = renderer.bridge_to_next_turn(prompt, completion, new, tools=TOOLS)
    assert bridged.token_ids == renderer.render_ids(
        [user(), message, *new], tools=TOOLS, add_generation_prompt=True
    )


added = st.lists(
    st.one_of(
        st.builds(user, contents),
        st.builds(tool, st.one_of(st.none(), names), contents),
        st.builds(lambda i, text: tool(None, text, tool_call_id=i), ids, contents),
    ),
    min_size=1,
    max_size=3,
)


@property_of(150)
@given(history=histories, reply=replies, new=added, tools=tools_of)
def test_a_random_turn_gives_the_full_render(renderer, history, reply, new, tools):
    """Or no bridge, if a result's name stands in the conversation."""
    prompt, completion = sampled(renderer, history, reply, tools)
    bridged = renderer.bridge_to_next_turn(prompt, completion, new, tools=tools)
    assert (bridged is None) is any("tool_call_id" in message for message in new)
    if bridged is not None:
        assert bridged.token_ids == renderer.render_ids(
            [*history, reply, *new], tools=tools, add_generation_prompt=True
        )


def test_masks_cover_the_new_messages_only(renderer, tokenizer):
    new = [tool("search", "A text"), user("Go on.")]
    prompt, completion = sampled(renderer, [user()], CALLING, TOOLS)
    bridged = renderer.bridge_to_next_turn(prompt, completion, new, tools=TOOLS)
    known, size = len(prompt) + len(completion), len(bridged.token_ids)
    assert bridged.sampled_mask == [False] * size
    assert bridged.message_indices[:known] == [-1] * known
    assert not any(bridged.is_content[:known])
    for index, text in enumerate(("A text", "Go on.")):
        tokens = [
            token
            for token, content, owner in zip(
                bridged.token_ids, bridged.is_content, bridged.message_indices, strict=True
            )
            if content and owner == index
        ]
        assert tokenizer.decode(tokens).rstrip("\n") == text
    assert bridged.message_indices[-2:] == [-1, -1]  # <|start|>assistant
    assert (bridged.message_roles, bridged.message_tool_names) == (
        ["tool", "user"],
        ["search", None],
    )


def test_masks_made_when_read_are_those_of_the_library(renderer):
    """Whoever reads, compares, copies, stores or sends the result meets `RenderedTokens`."""
    new = [tool("search", "A text"), user("Go on.")]
    prompt, completion = sampled(renderer, [user()], CALLING, TOOLS)

    def bridged():
        return renderer.bridge_to_next_turn(tuple(prompt), completion, new, tools=TOOLS)

    values = {f.name: getattr(bridged(), f.name) for f in dataclasses.fields(RenderedTokens)}
    plain = RenderedTokens(**values)
    assert all(type(mask) is list for mask in list(values.values())[:4])
    assert bridged() == plain and plain == bridged() and bridged() == bridged()
    assert bridged() != dataclasses.replace(plain, is_content=[]) and bridged() != "text"
    assert dataclasses.asdict(bridged()) == values and repr(plain).split("(")[1] in repr(bridged())
    assert dataclasses.replace(bridged(), token_ids=[1]).is_content == values["is_content"]
    for other in (pickle.loads(pickle.dumps(bridged())), copy.deepcopy(bridged())):
        assert type(other) is RenderedTokens and other == plain
    assert bridged().message_token_spans() == plain.message_token_spans()
    once = bridged()
    assert once.is_content is once.is_content
    assert not hasattr(once, "masks")


@property_of(150)
@given(ids=st.lists(st.integers(0, 699), max_size=30), stopped=st.booleans())
def test_any_sampled_ids_are_carried(renderer, tokenizer, ids, stopped):
    stops = renderer.get_stop_token_ids()
    ids = [token for token in ids if token not in stops] + stops[:1] * stopped
    prompt = renderer.render_ids([user()], add_generation_prompt=True)
    bridged = renderer.bridge_to_next_turn(prompt, ids, [tool("search")])
    assert bridged.token_ids[: len(prompt) + len(ids)] == prompt + ids
    added = tokenizer.decode(bridged.token_ids[len(prompt) + len(ids) :])
    assert added == ("" if stopped else "<|eot|>") + (
        '<|start|>tool search<|message|><tool_output name="search">\nR\n</tool_output><|eot|>'
        "<|start|>assistant"
    )


def test_a_cut_completion_is_closed(renderer, tokenizer):
    """The library asks this of renderers that know their format's close."""
    prompt, completion = sampled(renderer, [user()], said("Yes."))
    bridged = renderer.bridge_to_next_turn(prompt, completion[:-1], [user("And?")])
    assert bridged.token_ids[len(prompt) + len(completion) - 1] == completion[-1]
    assert (
        bridged.token_ids
        == renderer.bridge_to_next_turn(prompt, completion, [user("And?")]).token_ids
    )


def test_the_end_of_text_closes_too(renderer, tokenizer):
    prompt, completion = sampled(renderer, [user()], said("Yes."))
    completion[-1] = tokenizer.convert_tokens_to_ids("<|end_of_text|>")
    bridged = renderer.bridge_to_next_turn(prompt, completion, [user("And?")])
    assert bridged.token_ids[: len(prompt) + len(completion)] == prompt + completion
    start = tokenizer.convert_tokens_to_ids("<|start|>")
    assert bridged.token_ids[len(prompt) + len(completion)] == start


def test_the_end_of_a_channel_does_not_close(renderer):
    eot, end_of_text = renderer.get_stop_token_ids()
    eom = renderer.tokenizer.convert_tokens_to_ids("<|eom|>")
    assert eom not in (eot, end_of_text)
    bridged = renderer.bridge_to_next_turn([1], [9, eom], [user()])
    assert bridged.token_ids[:4] == [1, 9, eom, eot]


# ---- names of tool results -------------------------------------------------------------------


@pytest.mark.parametrize("message", [CALLING, said("Yes.")])
def test_nameless_results_are_the_templates(message, renderer):
    """As TitanRL's own example environment answers: neither name nor id. More than calls, too."""
    new = [tool(), tool("open"), tool(), tool(tool_call_id=None)]
    prompt, completion = sampled(renderer, [user()], message, TOOLS)
    bridged = renderer.bridge_to_next_turn(prompt, completion, new, tools=TOOLS)
    assert bridged.token_ids == renderer.render_ids(
        [user(), message, *new], tools=TOOLS, add_generation_prompt=True
    )


def test_a_result_by_id_needs_a_full_render(renderer):
    """Its call stands in a message that the bridge is not given."""
    prompt, completion = sampled(renderer, [user()], CALLING, TOOLS)
    assert renderer.bridge_to_next_turn(prompt, completion, [tool(tool_call_id="c1")]) is None
    assert renderer.bridge_to_next_turn(prompt, completion, [tool("x", tool_call_id="c1")])


# ---- where only a full render is right -------------------------------------------------------


@pytest.mark.parametrize(
    "new",
    [
        [],
        [said("x")],
        [tool("search"), said("x")],
        [{"role": "system", "content": "x"}],
        [user(), {"role": "system", "content": "x"}],
        [{"role": "developer", "content": "x"}],
    ],
)
def test_no_bridge_over(new, renderer):
    prompt, completion = sampled(renderer, [user()], CALLING, TOOLS)
    assert renderer.bridge_to_next_turn(prompt, completion, new, tools=TOOLS) is None


def test_no_bridge_without_a_prompt(renderer):
    assert renderer.bridge_to_next_turn([], [9], [user()]) is None


@pytest.mark.parametrize(
    ("retention", "over_user"), [(None, True), ("all", True), ("tool_cycle", False)]
)
def test_retention_decides_over_a_user_message(retention, over_user, tokenizer):
    renderer = make_renderer(tokenizer, thinking_retention=retention)
    prompt, completion = sampled(renderer, [user()], CALLING, TOOLS)
    assert renderer.bridge_to_next_turn(prompt, completion, [tool("search")]) is not None
    found = renderer.bridge_to_next_turn(prompt, completion, [tool("search"), user()])
    assert (found is not None) is over_user
