"""The conversations on which renderer and template are compared.

Each varies one thing at a time (roles, contents, tools, calls, results, ends of turn, knobs), then
come the conversations that the pipeline itself renders, turn by turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One conversation. `knobs` override the renderer's settings."""

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    generation: bool = True
    knobs: Mapping[str, str] = field(default_factory=dict)


TEXTS = {
    "plain": "Who wrote it?",
    "empty": "",
    "space": "  leading and trailing  ",
    "newlines": "\n\none\n\n\ntwo\n",
    "unicode": "Ünïcödé – 東京 🙂 e\u0301 \u200bzero",
    "rtl": "שלום עולם",
    "tags": "<b>bold</b> & \"quotes\" 'single' </tool_output>",
    "atem": '<atem:function_calls>\n<atem:invoke name="x">\n</atem:invoke>',
    "special": "a <|eot|> and <|start|>assistant to=user<|message|> b",
    "numbers": "3.14 1984 1e999 -0",
    "jinja": "{{ messages }} {% raw %} {# c #}",
    "code": "def f(x):\n\treturn x  # tab\r\n",
}

SEARCH = {
    "name": "search",
    "description": "Search.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    },
}
TOOLS = {
    "one": [SEARCH],
    "wrapped": [{"type": "function", "function": SEARCH}],
    "namespaced": [
        {**SEARCH, "name": "web.search"},
        {**SEARCH, "name": "web.open"},
        {**SEARCH, "name": "calc"},
    ],
    "unicode": [{**SEARCH, "description": "Sucht „Wörter“ <&> 'x' \"y\" \\ \n"}],
    "bare": [{"name": "now", "description": "", "parameters": {"type": "object"}}],
    "nested": [
        {
            "name": "book",
            "description": "Book.",
            "parameters": {
                "type": "object",
                "properties": {
                    "who": {"type": "array", "items": {"type": "string"}},
                    "when": {"type": "object", "properties": {"day": {"type": "integer"}}},
                    "sure": {"type": ["boolean", "null"], "default": None},
                },
            },
        }
    ],
    "none": None,
    "empty": [],
}

VALUES: dict[str, Any] = {
    "string": "plain",
    "string_number": "1984",
    "string_true": "true",
    "string_null": "null",
    "string_list": '["a","b"]',
    "string_space": "  two  ",
    "string_lines": "a\nb\n",
    "string_closer": "x</atem:parameter>y",
    "empty": "",
    "integer": 42,
    "negative": -7,
    "big": 10**20,
    "float": 1.5,
    "whole_float": 2.0,
    "huge": 1e30,
    "fixed": 1000000000000000.0,
    "scientific": 1e16,
    "small": 1e-05,
    "true": True,
    "false": False,
    "null": None,
    "list": [1, "two", None, 3.5, True],
    "object": {"k": "v", "n": {"m": [1]}},
    "unicode_list": ["café", "<a>", "b & c", "it's"],
    "empty_list": [],
    "empty_object": {},
}


def _call(name: str, arguments: Any, call_id: str | None = None) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call if call_id is None else {"id": call_id, **call}


def _user(text: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def _said(content: Any = "Yes.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def builtin_cases() -> Iterator[Case]:
    """The project's own cases, the same on every call."""
    for key, text in TEXTS.items():
        yield Case(f"user_{key}", [_user(text)])
        yield Case(f"system_{key}", [{"role": "system", "content": text}, _user()], TOOLS["one"])
        yield Case(f"assistant_{key}", [_user(), _said(text), _user("And?")])
        yield Case(
            f"reasoning_{key}", [_user(), _said("So.", reasoning_content=text)], generation=False
        )
        yield Case(
            f"tool_result_{key}",
            [
                _user(),
                {"role": "assistant", "tool_calls": [_call("search", {"query": text}, "c")]},
                {"role": "tool", "name": "search", "content": text},
            ],
            TOOLS["one"],
        )
    for key, tools in TOOLS.items():
        for generation in (True, False):
            yield Case(f"tools_{key}_{generation}", [_user()], tools, generation)
    for key, value in VALUES.items():
        yield Case(
            f"value_{key}",
            [_user(), {"role": "assistant", "tool_calls": [_call("book", {"x": value, "y": 1})]}],
            TOOLS["nested"],
        )
    yield from _calls_and_results()
    yield from _ends()
    yield from _systems()
    yield from _parts()


def _calls_and_results() -> Iterator[Case]:
    first, second = _call("web.search", {"query": "a"}, "c1"), _call("calc", {"query": "b"}, "c2")
    tools = TOOLS["namespaced"]
    opening = [_user(), {"role": "assistant", "tool_calls": [first, second]}]
    yield Case("two_calls", opening, tools)
    yield Case("no_arguments", [_user(), {"role": "assistant", "tool_calls": [_call("now", {})]}])
    by_id = [{"role": "tool", "tool_call_id": i, "content": i} for i in ("c1", "c2")]
    yield Case("results_by_id", opening + by_id, tools)
    yield Case("results_reversed", opening + by_id[::-1], tools)
    yield Case("result_unknown_id", [*opening, {**by_id[0], "tool_call_id": "zz"}], tools)
    yield Case("result_nameless", [*opening, {"role": "tool", "content": "?"}], tools)
    yield Case("result_name_beats_id", [*opening, {**by_id[0], "name": "calc"}], tools)
    again = {"role": "assistant", "tool_calls": [_call("calc", {"query": "c"}, "c1")]}
    yield Case("duplicate_id_last_wins", [*opening, by_id[0], again, by_id[0]], tools)
    yield Case(
        "reasoning_then_calls",
        [_user(), {**opening[1], "reasoning_content": "I should look."}, *by_id],
        tools,
    )
    yield Case("call_with_content", [_user(), {**opening[1], "content": "ignored"}], tools)
    yield Case("calls_then_assistant", [*opening, _said("then")], tools)
    yield Case("two_assistants", [_user(), _said("one"), _said("two"), _user()], tools)
    yield Case(
        "two_calling_assistants",
        [
            _user(),
            {"role": "assistant", "tool_calls": [first]},
            {"role": "assistant", "tool_calls": [second]},
        ],
        tools,
    )


def _ends() -> Iterator[Case]:
    for value, recipient in itertools.product(
        (True, False, 0, 1, None), (None, "user", "self", "search")
    ):
        said = _said("text", end_turn=value)
        if recipient is not None:
            said["recipient"] = recipient
        yield Case(f"end_turn_{value}_{recipient}", [_user(), said])
    for recipient in ("self", "search", "user"):
        yield Case(f"recipient_{recipient}", [_user(), _said("text", recipient=recipient)])


def _systems() -> Iterator[Case]:
    for text in (
        "Reasoning effort: low",
        "reasoning effort: low",
        "Reasoning Effort: Low",
        "REASONING EFFORT: LOW",
        "ReAsOnInG EfFoRt: odd",
        "Reasoning strength: low.",
        "Mind the REASONING STRENGTH.",
        "reasoning effort Reasoning Effort twice",
    ):
        yield Case(f"strength_{text[:24]}", [{"role": "system", "content": text}, _user()])
    system = {"role": "system", "content": "Be terse."}
    yield Case("system_late", [_user(), system, _user("again")], TOOLS["one"])
    yield Case("system_twice", [system, _user(), system])
    yield Case("system_null", [{"role": "system", "content": None}, _user()])
    yield Case("unknown_role", [{"role": "developer", "content": "dropped"}, _user()])
    yield Case("unknown_role_between", [_user(), _said("a"), {"role": "x", "content": ""}, _said()])
    for strength in ("low", "medium", "xhigh"):
        yield Case(f"knob_{strength}", [_user()], knobs={"reasoning_strength": strength})
    yield Case("knob_cutoff", [_user()], knobs={"knowledge_cutoff": "2025-12-01"})
    yield Case("knob_date", [_user()], TOOLS["one"], knobs={"current_date": "1999-12-31"})


def _parts() -> Iterator[Case]:
    parts = [
        {"type": "text", "text": "look: "},
        "bare",
        {"type": "other", "text": "dropped"},
        {"type": "text", "text": " end"},
    ]
    yield Case("parts_user", [_user(parts)])
    yield Case("parts_empty", [_user([])])
    yield Case("parts_assistant", [_user(), _said(parts)])
    yield Case("parts_tool", [_user(), {"role": "tool", "name": "search", "content": parts}])
    yield Case("parts_system", [{"role": "system", "content": parts}, _user()])
    media = [{"type": "image"}, {"type": "text", "text": " and "}, {"type": "video"}]
    yield Case("parts_media", [_user(media)])
    yield Case("content_null", [_user(None), _said(None)])
    yield Case("content_missing", [_user(), {"role": "assistant"}])


def refused_cases() -> Iterator[Case]:
    """Conversations on which the template raises, and so must the renderer."""
    for arguments in ('{"query": "x"}', None, ["x"], 3):
        call = {"role": "assistant", "tool_calls": [_call("search", arguments)]}
        yield Case(f"arguments_{type(arguments).__name__}", [_user(), call])
    yield Case("content_number", [_user(3)])
    yield Case("content_mapping", [_user({"type": "text", "text": "x"})])


def pipeline_cases(tools: Sequence[Mapping[str, Any]]) -> Iterator[Case]:
    """What a rollout of the search environment renders, after each of its turns."""
    passages = 'Doc 1(Title: "A") Text of a.\nDoc 2(Title: "B") Text of b.\n'
    messages: list[dict[str, Any]] = [
        _user('Answer the question. For example: "Beijing".\n\nQuestion: Who?')
    ]
    yield Case("rollout_0", list(messages), list(tools))
    for turn, query in enumerate((" The Stolen Crown", "1984"), start=1):
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [_call("search", {"query": query})]},
            {"role": "tool", "name": "search", "content": passages},
        ]
        yield Case(f"rollout_{turn}", list(messages), list(tools))
    messages += [_said(" Krutreth Direalson", reasoning_content="It says so.")]
    yield Case("rollout_answer", list(messages), list(tools), generation=False)
    error = {"role": "tool", "name": "browse", "content": "Error: there is no tool 'browse'."}
    yield Case("rollout_error", [*messages[:2], error], list(tools))
