"""Parsing is the inverse of rendering, and total: any ids, any cut."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers.base import ToolCallParseStatus

from glimmer.renderer.cases import VALUES
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import (
    CUT,
    OK,
    TO_SEARCH,
    block,
    call,
    calls_of,
    make_renderer,
    one,
    property_of,
    said,
    user,
)

SCHEMA = {
    "name": "book",
    "parameters": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "maybe": {"type": ["string", "null"]},
            "n": {"type": "integer"},
            "x": {"type": "number"},
            "yes": {"type": "boolean"},
            "list": {"type": "array"},
            "map": {"type": "object"},
        },
    },
}
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
TRICKY = [
    "1984", "true", "null", '["a"]', "\n", "  ", " x ", "</atem:parameter>", "</atem:invoke>",
    "</atem:function_calls>", "<atem:", "to=search", "assistant", '"', "\\", "é", "🙂",
]  # fmt: skip
strings = st.lists(st.one_of(plain, st.sampled_from(TRICKY)), max_size=4).map("".join)
no_specials = strings.filter(lambda text: "<|" not in text)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), finite, no_specials),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(no_specials, inner, max_size=2)
    ),
    max_leaves=4,
)
book = st.builds(
    lambda arguments: call("book", arguments),
    st.fixed_dictionaries(
        {},
        optional={
            "text": no_specials,
            "free": no_specials,
            "n": st.integers(),
            "x": finite,
            "yes": st.booleans(),
            "list": st.lists(json_values, max_size=3),
            "map": st.dictionaries(no_specials, json_values, max_size=2),
        },
    ),
)
thoughts = st.one_of(st.none(), no_specials.filter(bool))


def emitted(tokenizer, message):
    """The ids that the model would have sampled for a message."""
    rendered = make_renderer(tokenizer, attribution="sampled").render([user(), message])
    return [t for t, s in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if s]


@property_of(300)
@given(reasoning=thoughts, calls=st.lists(book, min_size=1, max_size=3))
def test_calls_come_back(tokenizer, reasoning, calls):
    ids = emitted(
        tokenizer, {"role": "assistant", "reasoning_content": reasoning, "tool_calls": calls}
    )
    parsed = make_renderer(tokenizer, [SCHEMA]).parse_response(ids)
    assert (parsed.reasoning_content, parsed.content) == (reasoning, "")
    assert calls_of(parsed) == [("book", made["function"]["arguments"], OK) for made in calls]
    for found in parsed.tool_calls:
        start, stop = found.token_span
        assert found.raw in tokenizer.decode(ids[start:stop])
        assert found.raw not in tokenizer.decode(ids[start + 1 : stop])
        assert found.raw not in tokenizer.decode(ids[start : stop - 1])


@property_of(150)
@given(reasoning=thoughts, content=no_specials)
def test_answers_come_back(tokenizer, reasoning, content):
    parsed = make_renderer(tokenizer).parse_response(
        emitted(tokenizer, said(content, reasoning_content=reasoning))
    )
    assert (parsed.reasoning_content, parsed.content, parsed.tool_calls) == (reasoning, content, [])


@pytest.mark.parametrize("name", [n for n, v in VALUES.items() if isinstance(v, str)])
def test_texts_of_the_parity_cases_come_back(name, tokenizer):
    made = call("search", {"query": VALUES[name]})
    ids = emitted(tokenizer, {"role": "assistant", "tool_calls": [made]})
    assert calls_of(make_renderer(tokenizer).parse_response(ids)) == one(query=VALUES[name])


# ---- totality --------------------------------------------------------------------------------

PIECES = [
    "<|start|>", "<|message|>", "<|eom|>", "<|eot|>", "<|end_of_text|>", "<|begin_of_text|>",
    "<|patch|>", "assistant", " to=self", " to=user", " to=search", " to=", "<atem:function_calls>",
    '<atem:invoke name="search">', '<atem:invoke name="a.b">', '<atem:parameter name="query">',
    "</atem:parameter>", "</atem:invoke>", "</atem:function_calls>", "\n", " ", "x", "1984",
    "<atem:invoke", ' name="', '">', "<", "é",
]  # fmt: skip


def check_form(parsed, size):
    assert isinstance(parsed.content, str)
    for found in parsed.tool_calls:
        start, stop = found.token_span
        assert 0 <= start <= stop <= size
        assert isinstance(found.status, ToolCallParseStatus)
        assert isinstance(found.arguments, dict) or found.status is not OK
        assert found.status is not OK or found.name


@property_of(300)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=25))
def test_any_sequence_of_markup_is_parsed(renderer, tokenizer, pieces):
    ids = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]
    parsed = renderer.parse_response(ids)
    check_form(parsed, len(ids))
    assert not any(f"<|{s}|>" in parsed.content for s in ("start", "message", "eom", "eot"))


@property_of(150)
@given(ids=st.lists(st.integers(0, 699), max_size=40))
def test_any_ids_are_parsed(renderer, ids):
    check_form(renderer.parse_response(ids), len(ids))


WHOLE = {
    "call": f" to=self<|message|>Hm.<|eom|><|start|>assistant{TO_SEARCH}{block('a b')}<|eot|>",
    "two_calls": f"{TO_SEARCH}{block('a')}<|eom|><|start|>assistant{TO_SEARCH}{block('b')}<|eot|>",
    "answer": " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>She.<|eot|>",
    "headless": f" I look. {block('a')}<|eot|>",
    "headless_two": f"{block('a')}\n{block('b')}<|eot|>",
    "swallowed": f" Look: {block('a', 'search.query', None)}".replace(
        "</atem:invoke>", "a</atem:parameter>\n</atem:invoke>"
    ),
    "stray": f" to=user<|message|>Look. to=search<|message|>{block('a')}<|eot|>",
}


def finely(tokenizer, text):
    """Ids of a text with each special token one id and all else character by character."""
    pieces = [
        p for part in re.split(r"(<\|\w+\|>)", text) for p in ([part] if part[:2] == "<|" else part)
    ]
    return [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]


@pytest.mark.parametrize("name", WHOLE)
def test_cut_anywhere_nothing_leaks(name, renderer, tokenizer):
    """Cut behind each character: no markup in the answer, no call that looks whole and is not."""
    ids = finely(tokenizer, WHOLE[name])
    whole = renderer.parse_response(ids)
    complete = [c.arguments for c in whole.tool_calls]
    for cut in range(len(ids)):
        parsed = renderer.parse_response(ids[:cut])
        text = tokenizer.decode(ids[:cut])
        check_form(parsed, cut)
        for leak in ("<a", "</", "<|", "assistant"):
            assert leak not in parsed.content, text
        # What is addressed to the user stands as it is, up to the special token that says more.
        visible = parsed.content.removesuffix("<").strip()
        if name != "stray":
            assert whole.content.startswith(visible), text
        assert "to=" not in visible or name == "stray"
        assert (whole.reasoning_content or "").startswith(parsed.reasoning_content or "")
        finished = [c.arguments for c in parsed.tool_calls if c.status is OK]
        assert finished == complete[: len(finished)], text
        assert len(parsed.tool_calls) <= len(complete), text


calm = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=8)


@property_of(100)
@given(queries=st.lists(calm, min_size=1, max_size=3), at=st.floats(0, 1))
def test_a_cut_call_never_looks_whole(renderer, tokenizer, queries, at):
    calls = [call("search", {"query": query, "k": query[::-1]}) for query in queries]
    ids = emitted(tokenizer, {"role": "assistant", "tool_calls": calls})
    parsed = renderer.parse_response(ids[: round(at * len(ids))])
    finished = [c.arguments for c in parsed.tool_calls if c.status is OK]
    assert finished == [made["function"]["arguments"] for made in calls[: len(finished)]]
    assert len(parsed.tool_calls) <= len(calls) and parsed.content == ""


BOOK = ' to=book<|message|><atem:function_calls><atem:invoke name="book">'
LIST = '<atem:parameter name="list">'


@pytest.mark.parametrize(
    "pieces",
    [
        ['<atem:invoke name="search">'] * 800,
        ["<atem:function_calls>"] * 800,
        [TO_SEARCH, CUT, *["</atem:parameter>"] * 900],
        [TO_SEARCH, CUT, *["</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"] * 300],
        [TO_SEARCH, *[CUT] * 200],
        [" to=user<|message|>", *[f"to=search {block()}"] * 100],
        [" to=self<|message|>", *[" to="] * 1000, "\n" * 2000, "<|message|>"],
        [BOOK, LIST, "[" * 3000, "</atem:parameter></atem:invoke>"],
        [BOOK, '<atem:parameter name="n">', "9" * 6000, "</atem:parameter></atem:invoke>"],
    ],
)
def test_endless_repetition_is_parsed_in_no_time(pieces, tokenizer):
    """What a model that has lost itself writes; 16 s went into one such completion."""
    ids = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]
    renderer = make_renderer(tokenizer, [SCHEMA, SEARCH_TOOL])
    start = time.process_time()
    check_form(renderer.parse_response(ids), len(ids))
    assert time.process_time() - start < 2


def test_cut_inside_reasoning_says_so(parse):
    parsed = parse(" to=self<|message|>Hm, let")
    assert (parsed.reasoning_content, parsed.reasoning_complete) == ("Hm, let", False)


def test_nothing_at_all(renderer):
    parsed = renderer.parse_response([])
    assert (parsed.content, parsed.reasoning_content, parsed.tool_calls) == ("", None, [])
