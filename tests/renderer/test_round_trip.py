"""Random conversations: render, cut at the generation prompt, parse; the message comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .helpers import OK, calls_of, make_renderer, property_of, said
from .test_parse_any import SCHEMA, book, no_specials, thoughts
from .test_render_any import messages_of, tools_of

EXAMPLES, MANY = 150, 20_000
histories = messages_of.filter(lambda messages: messages[-1]["role"] != "assistant")
replies = st.one_of(
    st.builds(lambda text, thought: said(text, reasoning_content=thought), no_specials, thoughts),
    st.builds(
        lambda calls, thought: said(None, reasoning_content=thought, tool_calls=calls),
        st.lists(book, min_size=1, max_size=3),
        thoughts,
    ),
)
conversations = given(history=histories, reply=replies, tools=tools_of)


@pytest.fixture(scope="module")
def typed(tokenizer):
    """A renderer that knows the schema of `book`; settings are those of the other tests."""
    return make_renderer(tokenizer, [SCHEMA])


def comes_back(typed, history, reply, tools):
    prompt = typed.render_ids(history, tools=tools, add_generation_prompt=True)
    whole = typed.render_ids([*history, reply], tools=tools)
    assert whole[: len(prompt)] == prompt
    parsed = typed.parse_response(whole[len(prompt) :])
    assert parsed.reasoning_content == reply["reasoning_content"]
    assert parsed.reasoning_complete
    assert parsed.content == (reply["content"] or "")
    made = [call["function"] for call in reply.get("tool_calls", [])]
    assert calls_of(parsed) == [(call["name"], call["arguments"], OK) for call in made]
    for found, call in zip(parsed.tool_calls, made, strict=True):
        for key, value in call["arguments"].items():
            assert type(found.arguments[key]) is type(value)


@property_of(EXAMPLES)
@conversations
def test_conversations_come_back(typed, history, reply, tools):
    comes_back(typed, history, reply, tools)


@pytest.mark.long
@pytest.mark.timeout(3000)
@property_of(MANY)
@conversations
def test_many_conversations_come_back(typed, history, reply, tools):
    """`pytest -m long tests/renderer/test_round_trip.py`; the same conversations every time."""
    comes_back(typed, history, reply, tools)
