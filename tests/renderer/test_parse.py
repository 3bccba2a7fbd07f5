"""A completion's ids -> reasoning, answer and calls. Faults are numbered as in the docstrings."""

from __future__ import annotations

import copy
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers.base import ToolCallParseStatus

from glimmer.renderer.cases import VALUES
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import call, make_renderer, property_of, said, spelled, user

OK, UNCLOSED = ToolCallParseStatus.OK, ToolCallParseStatus.UNCLOSED_BLOCK
MALFORMED = ToolCallParseStatus.MALFORMED_STRUCTURE
TO_SEARCH = " to=search<|message|>"


def block(value="q", name="search", key="query"):
    """One call, as the renderer writes it."""
    parameter = f'<atem:parameter name="{key}">{value}</atem:parameter>\n' if key else ""
    return (
        f'<atem:function_calls>\n<atem:invoke name="{name}">\n{parameter}'
        "</atem:invoke>\n</atem:function_calls>"
    )


CUT = block("one").split("</atem:parameter>")[0]


@pytest.fixture(scope="session")
def parse(renderer, tokenizer):
    def of(text):
        return renderer.parse_response(tokenizer.encode(text, add_special_tokens=False))

    return of


def calls_of(parsed):
    return [(call.name, call.arguments, call.status) for call in parsed.tool_calls]


def one(**arguments):
    return [("search", arguments, OK)]


# ---- whole completions -----------------------------------------------------------------------


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


# ---- the known faults ------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["1984", "true", "null", '["a","b"]', "3.14", '{"a": 1}', '"q"'])
@pytest.mark.parametrize("typed", [True, False])
def test_a_query_that_looks_like_json_stays_text(query, typed, tokenizer):
    """Fault 10: with the tool's schema, and with none."""
    renderer = make_renderer(tokenizer, [SEARCH_TOOL] if typed else None)
    ids = tokenizer.encode(f"{TO_SEARCH}{block(query)}<|eot|>")
    assert calls_of(renderer.parse_response(ids)) == one(query=query)


@pytest.mark.parametrize(
    "text",
    [
        '<atem:invoke name="search.query">X</atem:parameter></atem:invoke>',
        '<atem:function_calls>\n<atem:invoke name="search.query">X</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>",
    ],
)
def test_a_swallowed_opening_tag(text, parse):
    """Fault 11."""
    assert calls_of(parse(f"{TO_SEARCH}{text}<|eot|>")) == one(query="X")


def test_a_namespaced_call_is_not_taken_for_a_swallowed_one(parse):
    """Fault 11, the other side."""
    for key in ("query", None):
        (found,) = parse(f" to=web.open<|message|>{block('X', 'web.open', key)}<|eot|>").tool_calls
        assert (found.name, found.status) == ("web.open", OK)


def test_a_quoted_block_in_reasoning_is_reasoning(parse):
    """Fault 12."""
    thought = f"I could write {block()} now. to=search\n{block()}"
    parsed = parse(
        f" to=self<|message|>{thought}<|eom|><|start|>assistant to=user<|message|>No.<|eot|>"
    )
    assert (parsed.reasoning_content, parsed.content, parsed.tool_calls) == (thought, "No.", [])


@pytest.mark.parametrize(
    "value",
    [
        "x</atem:parameter>y",
        "x</atem:invoke>y",
        "</atem:parameter>",
        "</atem:parameter></atem:parameter>",
        "x</atem:parameter>\n</atem:invoke>",
        "x</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        "x</atem:parameter>\n</atem:invoke>\n</atem:function_calls> and on",
        "x</atem:function_calls>",
        "<atem:function_calls>",
        '<atem:invoke name="search">',
        '<atem:parameter name="query">',
        f"say {block('inner')} twice",
        block("inner"),
    ],
)
def test_a_value_with_closers_is_kept_whole(value, parse):
    """Fault 13."""
    assert calls_of(parse(f"{TO_SEARCH}{block(value)}<|eot|>")) == one(query=value)


def test_a_call_without_a_channel_header(parse):
    """Fault 14, first part."""
    parsed = parse(f"{block()}<|eot|>")
    assert (calls_of(parsed), parsed.content) == (one(query="q"), "")


def test_a_channel_without_its_end(parse):
    """Fault 14, second part: `<|eom|>` missing between two channels."""
    parsed = parse(
        " to=self<|message|>Hm.<|start|>assistant to=user<|message|>Yes."
        f"<|start|>assistant{TO_SEARCH}{block()}<|eot|>"
    )
    assert (parsed.reasoning_content, parsed.content) == ("Hm.", "Yes.")
    assert calls_of(parsed) == one(query="q")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f" to=user<|message|>Let me see. to=search<|message|>{block()}", "Let me see."),
        (f" to=user<|message|>Let me see.\n\nto=search\n\n{block()}", "Let me see."),
        (f" to=user<|message|>to=search\n{block()}\n", ""),
        (f" Let me see. to=search\n{block()}", "Let me see."),
        (f" to=search {block()}", ""),
        (f" to=search\n\n{block()}", ""),
    ],
)
def test_a_stray_recipient_in_visible_text(text, content, parse):
    """Fault 14, third part."""
    parsed = parse(f"{text}<|eot|>")
    assert (parsed.content, calls_of(parsed)) == (content, one(query="q"))


@pytest.mark.parametrize(
    "text",
    [
        f"Write {block()} like this.",
        f"Write to=search {block()} like this.",
        f"Write to=other\n{block()}",
        "Send it to=someone.",
    ],
)
def test_a_quoted_recipient_in_an_answer_is_the_answer(text, parse):
    """Fault 14, the other side."""
    parsed = parse(f" to=user<|message|>{text}<|eot|>")
    assert (parsed.content, parsed.tool_calls) == (text, [])


def test_ids_that_reencode_differently(renderer, tokenizer):
    """Fault 18: parsing does not mind them; that they are carried is in test_bridge."""
    pieces = [" to=user<|message|>", "he", "l", "lo", "<|eot|>"]
    ids = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]
    ids[-2:-1] = tokenizer.encode("l") + tokenizer.encode("o")
    assert ids != tokenizer.encode("".join(pieces), add_special_tokens=False)
    assert renderer.parse_response(ids).content == "hello"


@pytest.mark.parametrize("thought", ["think", "think.", "a > b, `to=x`", "(think)"])
@pytest.mark.parametrize("behind", [" to=", "\n\nto=", " assistant to="])
@pytest.mark.parametrize("key", ["query", None])
def test_reasoning_with_the_calls_header_right_behind_it(thought, behind, key, parse):
    """Fault 30."""
    name = "search" if key else "now"
    parsed = parse(
        f" to=self<|message|>{thought}{behind}{name}<|message|>{block('q', name, key)}<|eot|>"
    )
    assert (parsed.reasoning_content, parsed.content) == (thought, "")
    assert calls_of(parsed) == [(name, {"query": "q"} if key else {}, OK)]


def test_a_tool_channel_without_terminator_then_an_answer(parse):
    """Fault 31."""
    parsed = parse(f"{TO_SEARCH}{block()}<|start|>assistant to=user<|message|>visible<|eot|>")
    assert (parsed.content, calls_of(parsed)) == ("visible", one(query="q"))


@pytest.mark.parametrize(
    "between",
    [
        "",
        "\n",
        "<|eom|><|start|>assistant to=search<|message|>",
        "<|start|>assistant to=search<|message|>",
        " to=search<|message|>",
    ],
)
@pytest.mark.parametrize(
    ("first", "kept"),
    [
        (CUT, {}),
        (CUT + "</atem:parameter>\n", {"query": "one"}),
        (CUT + '</atem:parameter>\n<atem:parameter name="k">tw', {"query": "one"}),
        (CUT + '</atem:parameter>\n<atem:parameter name="k', {"query": "one"}),
        (CUT + "</atem:parameter>\n</atem:inv", {"query": "one"}),
        ('<atem:function_calls>\n<atem:invoke name="search">\n', {}),
    ],
)
def test_a_cut_call_then_another(first, kept, between, parse):
    """Fault 32: never merged, and the cut one keeps its complete arguments."""
    parsed = parse(f"{TO_SEARCH}{first}{between}{block('two')}<|eot|>")
    cut, whole = parsed.tool_calls
    assert (cut.name, cut.arguments, cut.status) == ("search", kept, UNCLOSED)
    assert (whole.name, whole.arguments, whole.status) == ("search", {"query": "two"}, OK)
    assert parsed.content == ""


@pytest.mark.parametrize(
    "value", ["a <|eot|> b", "<|start|>assistant to=user<|message|>x", "<|eom|>"]
)
def test_spelled_special_tokens_are_text(value, renderer, tokenizer):
    """Fault 33."""
    ids = tokenizer.encode(TO_SEARCH) + spelled(tokenizer, block(value))
    parsed = renderer.parse_response([*ids, *tokenizer.encode("<|eot|>")])
    assert calls_of(parsed) == one(query=value) and parsed.content == ""


def test_prose_then_a_call_without_any_header(parse):
    """Fault 34, first part."""
    parsed = parse(f" I will look. {block()}<|eot|>")
    assert (parsed.content, calls_of(parsed)) == ("I will look.", one(query="q"))


def test_prose_then_a_call_addressed_to_the_user(parse):
    """Fault 34, second part."""
    text = f" Write {block()}"
    parsed = parse(f" to=user<|message|>{text}<|eot|>")
    assert (parsed.content, parsed.tool_calls) == (text, [])


def test_ids_of_calls_are_unique_in_a_conversation(parse):
    """Fault 35: the format carries no ids and the parser makes none up, so none can collide."""
    text = f"{TO_SEARCH}{block('a')}<|eom|><|start|>assistant{TO_SEARCH}{block('b')}<|eot|>"
    given = [c.id for turn in (text, text) for c in parse(turn).tool_calls if c.id is not None]
    assert len(given) == len(set(given))


def test_results_of_two_turns_are_named_after_their_own_calls(renderer, tokenizer):
    """Fault 35: what a clash of ids would do, a result under another turn's name."""
    messages = [user()]
    for name in ("search", "open"):
        ids = tokenizer.encode(f" to={name}<|message|>{block('q', name)}<|eot|>")
        parsed = renderer.parse_response(ids)
        reply = {"role": "tool", "content": "R", "name": parsed.tool_calls[0].name}
        messages += [{"role": "assistant", "content": "", "tool_calls": parsed.tool_calls}, reply]
    text = renderer.render_text(messages)
    assert text.index('<tool_output name="search">') < text.index('<tool_output name="open">')


# ---- round trip ------------------------------------------------------------------------------

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
