"""Values typed by a schema, and calls judged by the tools that are known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers.base import ToolCallParseStatus

from glimmer.renderer.typed import ParameterTypes, typed

from .helpers import MALFORMED, OK, TO_SEARCH, a_tool, block, calls_of, make_renderer, property_of

UNKNOWN = ToolCallParseStatus.UNKNOWN_TOOL
INVALID = ToolCallParseStatus.INVALID_JSON
DEFS = {
    "Mode": {"enum": ["fast", "slow"], "type": "string"},
    "Filter": {"type": "object", "properties": {"year": {"type": "integer"}}},
    "Self": {"$ref": "#/$defs/Self"},
    "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "integer"}]},
}


def read(schema, text):
    """(value, whether it is of the schema)."""
    arguments, good = typed(
        {"p": text}, ParameterTypes({"properties": {"p": schema}, "$defs": DEFS})
    )
    return arguments["p"], good


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"$ref": "#/$defs/Filter"}, '{"year": 1984}', {"year": 1984}),
        ({"anyOf": [{"$ref": "#/$defs/Filter"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"$ref": "#/$defs/Filter"}, {"type": "null"}]}, '{"a": [1]}', {"a": [1]}),
        ({"allOf": [{"$ref": "#/$defs/Filter"}], "description": "x"}, "{}", {}),
        ({"$ref": "#/$defs/Mode"}, "true", "true"),
        ({"$ref": "#/$defs/Self"}, "7", "7"),
        ({"$ref": "#/$defs/Tree"}, "7", "7"),
        ({"$ref": "#/$defs/None"}, "7", "7"),
        ({"$ref": "other.json#/$defs/Filter"}, "7", "7"),
        ({"enum": [1, 2, None]}, "2", 2),
        ({"enum": ["1", 2]}, "2", "2"),
        ({"enum": []}, "2", "2"),
        ({"type": "integer"}, "3.0", 3),
        ({"type": "integer"}, "-0", 0),
        ({"type": ["integer", "null"]}, "1e3", 1000),
        ({"type": "number"}, "3.0", 3.0),
        ({"type": "number"}, "3", 3),
        ({"type": "number"}, "123456789012345678901234567890", 123456789012345678901234567890),
        ({"type": "integer"}, " 7\n", 7),
        ({"type": "boolean"}, "false", False),
        ({"type": "array"}, '["\\u00e9", "\\ud83d\\ude42"]', ["é", "🙂"]),
    ],
)
def test_values_of_the_schemas_type(schema, text, value):
    found, good = read(schema, text)
    assert (found, good) == (value, True) and type(found) is type(value)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "3.5"),
        ({"type": "integer"}, "true"),
        ({"type": "integer"}, '"7"'),
        ({"type": "integer"}, ""),
        ({"type": "integer"}, "9" * 6000),
        ({"type": "number"}, "true"),
        ({"type": "number"}, "-Infinity"),
        ({"type": "boolean"}, "1"),
        ({"type": "boolean"}, "True"),
        ({"type": "array"}, '{"a": 1}'),
        ({"type": "array"}, "[1, NaN]"),
        ({"type": "array"}, "[1, 2"),
        ({"type": "array"}, "[" * 100_000),
        ({"type": "object"}, "[]"),
        ({"type": "object"}, '{"a": 1e999}'),
        ({"type": "null"}, "0"),
        ({"type": "array"}, '["\\ud800"]'),
        ({"type": "of the house"}, "7"),
    ],
)
def test_a_value_of_another_type_stays_text(schema, text):
    assert read(schema, text) == (text, False)


@pytest.mark.parametrize("schema", [None, {}, {"properties": None}, {"properties": []}, "x", []])
def test_a_schema_that_says_nothing(schema):
    assert typed({"p": "7"}, ParameterTypes(schema)) == ({"p": "7"}, True)


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["string", "x", "#/p"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "anyOf", "allOf", "enum", "$ref", "properties", "p"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@property_of(600)
@given(schema=anything, text=st.sampled_from(["7", "x", "null", "[1]", '{"a": NaN}']))
def test_any_schema_gives_values_that_can_be_written(schema, text):
    """Whatever a tool's author wrote there."""
    arguments, _ = typed({"p": text}, ParameterTypes({"properties": {"p": schema}, "p": schema}))
    json.dumps(arguments, allow_nan=False).encode()


# ---- names -----------------------------------------------------------------------------------


@pytest.fixture
def parsed(tokenizer):
    """Calls of a text by a renderer that knows these tools."""

    def of(text, *names):
        renderer = make_renderer(tokenizer, [a_tool(n, query={"type": "string"}) for n in names])
        return renderer.parse_response(tokenizer.encode(text, add_special_tokens=False))

    return of


@pytest.mark.parametrize("to", ["search", "search.search", "search.*"])
@pytest.mark.parametrize("name", ["search", "search.search"])
def test_a_doubled_name_is_the_tools(to, name, parsed):
    """The prompt lists `search` as the recipient "search.*", so models say `search.search`."""
    found = parsed(f" to={to}<|message|>{block(name=name)}<|eot|>", "search")
    assert calls_of(found) == [("search", {"query": "q"}, OK)]


def test_a_doubled_name_that_is_a_tools_own_stays(parsed):
    text = f" to=search.search<|message|>{block(name='search.search')}<|eot|>"
    for known in (("search", "search.search"), ("search.search",), ()):
        assert calls_of(parsed(text, *known)) == [("search.search", {"query": "q"}, OK)]


@pytest.mark.parametrize("name", ["browse", "news.search", "search.open", "Search"])
def test_a_tool_that_is_not_known(name, parsed):
    text = f" to={name}<|message|>{block(name=name)}<|eot|>"
    assert calls_of(parsed(text, "search")) == [(name, {"query": "q"}, UNKNOWN)]
    assert calls_of(parsed(text)) == [(name, {"query": "q"}, OK)]


@pytest.mark.parametrize("to", ["open", "web.find", "news", "search.*"])
def test_a_call_in_the_channel_of_another_tool(to, parsed):
    found = parsed(
        f" to={to}<|message|>{block(name='web.open')}<|eot|>", "web.open", "web.find", "search"
    )
    assert calls_of(found) == [("web.open", {"query": "q"}, MALFORMED)]


@pytest.mark.parametrize("to", ["web.open", "web", "web.*"])
def test_a_call_in_the_channel_of_its_namespace(to, parsed):
    found = parsed(f" to={to}<|message|>{block(name='web.open')}<|eot|>", "web.open")
    assert calls_of(found) == [("web.open", {"query": "q"}, OK)]


def test_a_known_name_with_a_dot_swallowed_nothing(parsed):
    """`web.open` is a tool: no call of `web` with a parameter `open` can be meant."""
    text = ' to=web.open<|message|><atem:invoke name="web.open">X</atem:parameter></atem:invoke>'
    assert calls_of(parsed(f"{text}<|eot|>", "web.open")) == [("web.open", {}, MALFORMED)]


def test_a_swallowed_tag_behind_a_doubled_name(parsed):
    text = '<atem:invoke name="search.search.query">X</atem:parameter></atem:invoke>'
    found = parsed(f" to=search.search<|message|>{text}<|eot|>", "search")
    assert calls_of(found) == [("search", {"query": "X"}, OK)]


@pytest.mark.parametrize("second", ["a", "b"])
def test_a_parameter_that_is_there_twice(second, parsed):
    """No mapping renders to it; the first value is kept, and the call is not run."""
    twice = block("a").replace(
        "</atem:invoke>", f'<atem:parameter name="query">{second}</atem:parameter>\n</atem:invoke>'
    )
    found = parsed(f"{TO_SEARCH}{twice}<|eot|>", "search")
    assert calls_of(found) == [("search", {"query": "a"}, MALFORMED)]
