"""A completion's ids -> reasoning, answer and calls."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers.base import ToolCallParseStatus

from glimmer.renderer.parse import _by_characters

from .helpers import (
    CUT,
    MALFORMED,
    OK,
    TO_SEARCH,
    UNCLOSED,
    block,
    calls_of,
    make_renderer,
    one,
    property_of,
    user,
)


def test_an_answer(parse):
    parsed = parse(" to=user<|message|>  Yes.\n<|eot|>")
    assert (parsed.content, parsed.reasoning_content, parsed.tool_calls) == ("  Yes.\n", None, [])
    assert parsed.reasoning_complete


def test_reasoning_then_answer(parse):
    parsed = parse(" to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>")
    assert (parsed.content, parsed.reasoning_content) == ("Yes.", "Hm.")


def test_a_call_says_where_it_stands(renderer, tokenizer):
    text = TO_SEARCH + block("é 東京")
    ids = tokenizer.encode(text + "<|eot|>", add_special_tokens=False)
    (found,) = renderer.parse_response(ids).tool_calls
    assert found.raw == block("é 東京")
    assert tokenizer.decode(ids[slice(*found.token_span)]) == block("é 東京")


def test_several_calls_in_one_block(parse):
    inside = block("a").replace("</atem:function_calls>", "") + block("b").split(">\n", 1)[1]
    assert calls_of(parse(f"{TO_SEARCH}{inside}<|eot|>")) == one(query="a") + one(query="b")


def test_calls_in_several_channels(parse):
    text = f"{TO_SEARCH}{block('a')}<|eom|><|start|>assistant{TO_SEARCH}{block('b')}<|eot|>"
    assert calls_of(parse(text)) == one(query="a") + one(query="b")


def test_a_call_without_arguments(parse):
    parsed = parse(f" to=now<|message|>{block(name='now', key=None)}<|eot|>")
    assert calls_of(parsed) == [("now", {}, OK)]


def test_nothing_is_read_behind_the_end_of_the_turn(parse):
    parsed = parse(" to=user<|message|>Yes.<|eot|><|start|>user<|message|>No.<|eot|>")
    assert parsed.content == "Yes."


def test_text_in_a_tools_channel_is_a_malformed_attempt(parse):
    assert calls_of(parse(f"{TO_SEARCH}malformed body<|eot|>")) == [("search", {}, MALFORMED)]


def test_an_unclosed_parameter_in_a_closed_call(parse):
    text = block("x", key="k").replace(
        "</atem:invoke>", '<atem:parameter name="query">c\n</atem:invoke>'
    )
    assert calls_of(parse(f"{TO_SEARCH}{text}<|eot|>")) == [("search", {"k": "x"}, UNCLOSED)]


def test_a_call_without_name(parse):
    (found,) = parse(f"{TO_SEARCH}{block(name='')}<|eot|>").tool_calls
    assert found.status is ToolCallParseStatus.MISSING_NAME


def test_unread_values_keep_their_text(tokenizer):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    renderer = make_renderer(tokenizer, [{"name": "f", "parameters": schema}])
    for value in ("seven", "NaN", "1e999", "Infinity"):
        ids = tokenizer.encode(f" to=f<|message|>{block(value, 'f', 'n')}<|eot|>")
        (found,) = renderer.parse_response(ids).tool_calls
        assert (found.arguments, found.status) == ({"n": value}, ToolCallParseStatus.INVALID_JSON)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 7),
        ({"type": ["integer", "null"]}, 7),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 7),
        ({"oneOf": [{"type": "number"}]}, 7),
        ({"type": "string"}, "7"),
        ({"type": ["string", "integer"]}, "7"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7"),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/x"}]}, "7"),
        ({}, "7"),
        (True, "7"),
        (None, "7"),
    ],
)
def test_the_schema_decides_what_is_text(schema, value, renderer, tokenizer):
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"n": schema}}}]
    ids = tokenizer.encode(f" to=f<|message|>{block('7', 'f', 'n')}<|eot|>")
    (found,) = renderer.parse_response(ids, tools=tools).tool_calls
    assert (found.arguments, found.status) == ({"n": value}, OK)
    assert type(found.arguments["n"]) is type(value)


@pytest.mark.parametrize("role", ["user", "system", "tool search", " user"])
@pytest.mark.parametrize(
    "end", ["<|eot|>", "<|eom|><|start|>assistant to=user<|message|>No.<|eot|>"]
)
def test_a_block_in_another_roles_name_is_not_the_answer(role, end, parse):
    parsed = parse(f" to=self<|message|>Hm.<|eom|><|start|>{role}<|message|>Do {block()}{end}")
    assert (parsed.reasoning_content, parsed.tool_calls) == ("Hm.", [])
    assert parsed.content == ("No." if "No." in end else "")


@pytest.mark.parametrize(
    "cut", ["u", "user", "tool sea", "sys", "assist", "assistant", "assistant t"]
)
def test_a_cut_header_is_not_the_answer(cut, parse):
    parsed = parse(f" to=user<|message|>Yes.<|eom|><|start|>{cut}")
    assert (parsed.content, parsed.tool_calls) == ("Yes.", [])


def test_a_role_that_starts_an_answer_without_header_is_text(parse):
    assert parse("user guide<|eot|>").content == "user guide"


def test_the_tools_of_the_call_beat_those_of_the_config(renderer, tokenizer):
    schema = {"type": "object", "properties": {"query": {"type": "integer"}}}
    ids = tokenizer.encode(f"{TO_SEARCH}{block('7')}<|eot|>")
    tools = [{"type": "function", "function": {"name": "search", "parameters": schema}}]
    assert renderer.parse_response(ids, tools=tools).tool_calls[0].arguments == {"query": 7}
    assert renderer.parse_response(ids).tool_calls[0].arguments == {"query": "7"}
    assert renderer.parse_response(ids, tools=[]).tool_calls[0].arguments == {"query": "7"}


def test_text_is_not_tidied(tokenizer):
    """A tokenizer that is set to clean up spaces when it decodes must not change what was said."""
    tidy = copy.deepcopy(tokenizer)
    tidy.clean_up_tokenization_spaces = True
    tidy.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    assert tidy.decode(tidy.encode("a .")) == "a."
    ids = tokenizer.encode(" to=user<|message|>a . b , c do n't<|eot|>")
    assert make_renderer(tidy).parse_response(ids).content == "a . b , c do n't"


def test_the_librarys_keyword_prompt_ids_is_taken(renderer, tokenizer):
    prompt = renderer.render_ids([user()], add_generation_prompt=True)
    ids = tokenizer.encode(" to=user<|message|>Yes.<|eot|>")
    assert renderer.parse_response(ids, prompt_ids=prompt).content == "Yes."


def test_nothing_counts_behind_the_end_of_text(parse):
    parsed = parse(f" to=user<|message|>Yes.<|end_of_text|><|start|>assistant{TO_SEARCH}{block()}")
    assert (parsed.content, parsed.tool_calls) == ("Yes.", [])


def test_two_answers_stand_on_lines_of_their_own(parse):
    parsed = parse(
        " to=user<|message|>One.<|eom|><|start|>assistant to=user<|message|><|eom|>"
        "<|start|>assistant to=user<|message|>Two.<|eot|>"
    )
    assert parsed.content == "One.\nTwo."


def test_spans_of_calls_behind_prose_and_behind_each_other(renderer, tokenizer):
    pieces = ["I will look for assistants. ", block("hello world"), " and ", block("world")]
    encoded = [tokenizer.encode(piece, add_special_tokens=False) for piece in pieces]
    ends = [sum(map(len, encoded[: n + 1])) for n in range(4)]
    assert max(map(len, encoded)) < len(block())  # tokens of several characters
    parsed = renderer.parse_response([i for ids in encoded for i in ids])
    assert [c.token_span for c in parsed.tool_calls] == [(ends[0], ends[1]), (ends[2], ends[3])]


@pytest.mark.parametrize("before", [" to=search ", " assistant to=search\n\n", "  ", " See é: "])
@pytest.mark.parametrize("value", ["hello", "é 東京"])
def test_spans_behind_a_header_without_its_special_token(before, value, renderer, tokenizer):
    pieces = [tokenizer.encode(p, add_special_tokens=False) for p in (before, block(value))]
    (found,) = renderer.parse_response([i for ids in pieces for i in ids]).tool_calls
    assert found.token_span == (len(pieces[0]), len(pieces[0]) + len(pieces[1]))
    assert calls_of(renderer.parse_response(pieces[0] + pieces[1])) == one(query=value)


def test_spans_where_bytes_are_no_text(renderer, tokenizer):
    """Halves of characters right in front of a call, in a cut one, and right behind."""
    half = tokenizer.encode("東", add_special_tokens=False)[:2]
    assert tokenizer.decode(half) == "\ufffd"
    cut, call = (tokenizer.encode(text, add_special_tokens=False) for text in (CUT, block("é")))
    for size in (1, 2):
        piece = half[:size]
        found = renderer.parse_response(piece + cut + piece + call + piece).tool_calls
        assert [c.raw for c in found] == [CUT + "\ufffd", block("é")]
        between = 2 * size + len(cut)
        assert [c.token_span for c in found] == [(size, between), (between, between + len(call))]


said_bytes = st.sampled_from([*"é東🙂\ufffda<".encode(), 0x80, 0xC0, 0xE0, 0xF0, 0xFF])


@property_of(600)
@given(tokens=st.lists(st.lists(said_bytes, max_size=5).map(bytes), max_size=8))
def test_places_of_tokens_in_characters(tokens):
    """A token begins in the last character of all bytes up to its first, and ends behind that of
    all up to its last."""
    starts, ends = _by_characters(tokens)
    for index, token in enumerate(tokens):
        before = b"".join(tokens[:index])
        if token:
            assert starts[index] == len((before + token[:1]).decode("utf-8", "replace")) - 1
        assert ends[index] == len((before + token).decode("utf-8", "replace"))


@pytest.mark.parametrize("before", ["\ufffd", "\ufffd 東京 ", "é\ufffd"])
def test_spans_where_characters_are_cut_into_tokens(before, renderer, tokenizer):
    """U+FFFD said by the model: bytes cannot be counted, and several tokens share a character."""
    pieces = [
        tokenizer.encode(p, add_special_tokens=False) for p in (before, block("é 東京"), "東")
    ]
    assert len(pieces[0]) > len(before) and len(pieces[2]) == 3
    (found,) = renderer.parse_response([i for ids in pieces for i in ids]).tool_calls
    assert found.token_span == (len(pieces[0]), len(pieces[0]) + len(pieces[1]))
    assert found.raw == block("é 東京")
