"""Messages -> text and ids, against the chat template; and which ids the model sampled."""

from __future__ import annotations

import pytest
from renderers.base import ParsedToolCall, Renderer

from glimmer.renderer.cases import Case, builtin_cases, pipeline_cases, refused_cases
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import call, make_renderer, said, same, template_text, user

CASES = [*builtin_cases(), *pipeline_cases([SEARCH_TOOL])]
REFUSED = list(refused_cases())
CONVERSATION = [
    user("Who?"),
    {
        "role": "assistant",
        "reasoning_content": "I search.",
        "tool_calls": [call("search", {"query": "x y"})],
    },
    {"role": "tool", "name": "search", "content": "A text."},
    said("She.", reasoning_content="It says so."),
]
CALL_TEXT = (
    '<atem:function_calls>\n<atem:invoke name="search">\n'
    '<atem:parameter name="query">x y</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_native_is_the_template(case, tokenizer):
    same(case, tokenizer)


@pytest.mark.parametrize("case", REFUSED, ids=[case.name for case in REFUSED])
def test_what_the_template_refuses_is_refused(case, tokenizer):
    with pytest.raises(Exception):  # noqa: B017 - jinja's own, or transformers'
        template_text(tokenizer, case.messages)
    with pytest.raises(ValueError, match=r"messages\[\d\]"):
        make_renderer(tokenizer).render_ids(case.messages)


def test_cases_have_distinct_names():
    names = [case.name for case in [*CASES, *REFUSED]]
    assert sorted(names) == sorted(set(names))


# ---- attribution -----------------------------------------------------------------------------


def chosen(tokenizer, rendered, flags, message=None):
    """The text of the tokens with a flag, runs apart from each other joined by `|...|`."""
    runs, last = [], False
    for token, flag, index in zip(rendered.token_ids, flags, rendered.message_indices, strict=True):
        flag = flag and message in (None, index)
        if flag and not last:
            runs.append([])
        if flag:
            runs[-1].append(token)
        last = flag
    return [tokenizer.decode(run) for run in runs]


def test_sampled_is_exactly_what_the_model_emits(tokenizer):
    rendered = make_renderer(tokenizer, attribution="sampled").render(
        CONVERSATION, tools=[SEARCH_TOOL], add_generation_prompt=True
    )
    assert chosen(tokenizer, rendered, rendered.sampled_mask) == [
        " to=self<|message|>I search.<|eom|><|start|>assistant to=search<|message|>"
        + CALL_TEXT
        + "<|eot|>",
        " to=self<|message|>It says so.<|eom|><|start|>assistant to=user<|message|>She.<|eot|>",
    ]


def test_sampled_continues_each_prompt(tokenizer):
    """Prompt of a turn + its sampled ids = the render with that turn."""
    renderer = make_renderer(tokenizer, attribution="sampled")
    for turn in (1, 3):
        prompt = renderer.render_ids(
            CONVERSATION[:turn], tools=[SEARCH_TOOL], add_generation_prompt=True
        )
        rendered = renderer.render(CONVERSATION[: turn + 1], tools=[SEARCH_TOOL])
        sampled = [
            token
            for token, flag, index in zip(
                rendered.token_ids, rendered.sampled_mask, rendered.message_indices, strict=True
            )
            if flag and index == turn
        ]
        assert rendered.token_ids == prompt + sampled


def test_body_leaves_every_header_out(tokenizer):
    rendered = make_renderer(tokenizer, attribution="body").render(
        CONVERSATION, tools=[SEARCH_TOOL], add_generation_prompt=True
    )
    assert chosen(tokenizer, rendered, rendered.sampled_mask) == [
        "I search.<|eom|>",
        CALL_TEXT + "<|eot|>",
        "It says so.<|eom|>",
        "She.<|eot|>",
    ]


@pytest.mark.parametrize("attribution", ["body", "sampled"])
def test_content_of_each_message(attribution, tokenizer):
    rendered = make_renderer(tokenizer, attribution=attribution).render(
        [{"role": "system", "content": "Terse"}, *CONVERSATION], tools=[SEARCH_TOOL]
    )
    assert chosen(tokenizer, rendered, rendered.is_content, 0) == ["Terse"]
    assert chosen(tokenizer, rendered, rendered.is_content, 1) == ["Who?"]
    # `.` and the newline behind it are one token: it belongs to what its first character does.
    assert chosen(tokenizer, rendered, rendered.is_content, 3) in (["A text."], ["A text.\n"])
    for sampled, content, index in zip(
        rendered.sampled_mask, rendered.is_content, rendered.message_indices, strict=True
    ):
        assert sampled == content or index not in (2, 4)
        assert not sampled or index in (2, 4)
    assert rendered.message_roles == ["system", "user", "assistant", "tool", "assistant"]
    assert rendered.message_tool_names == [None, None, None, "search", None]


def test_opener_is_sampled_only_behind_an_open_turn(tokenizer):
    renderer = make_renderer(tokenizer, attribution="sampled")
    for end_turn, openers in ((False, True), (True, False)):
        messages = [user(), said("One.", end_turn=end_turn), said("Two.")]
        rendered = renderer.render(messages)
        second = [
            flag
            for flag, index in zip(rendered.sampled_mask, rendered.message_indices, strict=True)
            if index == 2
        ]
        assert second[:2] == [openers, openers] and all(second[2:])


# ---- what the template does, said out loud ---------------------------------------------------


def body(tokenizer, messages, **arguments):
    """The text behind the default system block."""
    text = make_renderer(tokenizer).render_text(messages, **arguments)
    return text.split("<|eot|>", 1)[1]


def test_generation_prompt_is_a_bare_opener(tokenizer):
    without = make_renderer(tokenizer).render_text([user()])
    assert (
        make_renderer(tokenizer).render_text([user()], add_generation_prompt=True)
        == without + "<|start|>assistant"
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        (["a", {"type": "text", "text": "b"}, {"type": "other"}], "ab"),
        (
            [{"type": "image"}, {"type": "image_url"}, {"type": "video"}],
            "<|patch|>" * 2 + "<|video|>",
        ),
    ],
)
def test_content_forms(content, text, tokenizer):
    assert body(tokenizer, [user(content)]) == f"<|start|>user<|message|>{text}<|eot|>"


def test_odd_parts_are_dropped_as_the_template_drops_them(tokenizer):
    parts = [3, None, ["x"], {}, {"type": None}, {"type": "text"}, "kept"]
    same(Case("odd", [user(parts)]), tokenizer)
    assert body(tokenizer, [user(parts)]) == "<|start|>user<|message|>kept<|eot|>"


def test_recipients_line_names_each_namespace_once(tokenizer):
    tools = [{**SEARCH_TOOL, "name": name} for name in ("web.search", "web.open", "calc")]
    for asked, line in (
        (tools, '# Valid recipients: "self", "web.*", "calc.*", "user".<|eot|>'),
        ([], '# Valid recipients: "self", "user".<|eot|>'),
        (None, '# Valid recipients: "self", "user".<|eot|>'),
    ):
        assert line in make_renderer(tokenizer).render_text([user()], tools=asked)


@pytest.mark.parametrize(
    ("more", "header", "end"),
    [
        ({}, "user", "<|eot|>"),
        ({"end_turn": None}, "user", "<|eot|>"),
        ({"end_turn": True}, "user", "<|eot|>"),
        ({"end_turn": 1}, "user", "<|eot|>"),
        ({"end_turn": False}, "user", "<|eom|>"),
        ({"end_turn": 0}, "user", "<|eom|>"),
        ({"recipient": "self"}, "self", "<|eom|>"),
        ({"recipient": "self", "end_turn": True}, "self", "<|eot|>"),
        ({"recipient": "web.search"}, "web.search", "<|eom|>"),
    ],
)
def test_end_of_turn_and_recipient(more, header, end, tokenizer):
    text = body(tokenizer, [user(), said("x", **more)])
    assert text.endswith(f"<|start|>assistant to={header}<|message|>x{end}")


def test_calls_end_the_turn_unless_the_assistant_goes_on(tokenizer):
    calls = {"role": "assistant", "tool_calls": [call("a", {}), call("b", {})]}
    ends = ["<|eom|>", "<|eot|>"]
    alone = body(tokenizer, [user(), calls])
    assert [e for e in alone.split("</atem:function_calls>")[1:]][0].startswith(ends[0])
    assert alone.endswith("</atem:function_calls>" + ends[1])
    followed = body(tokenizer, [user(), calls, said("x")])
    assert followed.count("</atem:function_calls><|eom|>") == 2


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ({"name": "calc"}, "calc"),
        ({"name": "calc", "tool_call_id": "c1"}, "calc"),
        ({"tool_call_id": "c1"}, "last"),
        ({"tool_call_id": "zz"}, "zz"),
        ({"tool_call_id": None}, ""),
        ({}, ""),
    ],
)
def test_name_of_a_tool_result(message, name, tokenizer):
    """By name, by id (of several calls with one id the last), else the id itself."""
    calls = [call("first", {}, "c1"), call("last", {}, "c1")]
    messages = [
        user(),
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "R", **message},
    ]
    same(Case("name", messages), tokenizer)
    assert body(tokenizer, messages).endswith(
        f'<|start|>tool {name}<|message|><tool_output name="{name}">\nR\n</tool_output><|eot|>'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (2.0, "2.0"),
        (1e16, "1e+16"),
        (1e-05, "1e-05"),
        (float("nan"), "nan"),
        (10**20, "1" + "0" * 20),
        (True, "true"),
        (None, "null"),
        (["é", 1.0], '["é", 1.0]'),
        ({"a": "<b>"}, '{"a": "<b>"}'),
        (("a",), '["a"]'),
        ("1984", "1984"),
    ],
)
def test_values_of_arguments(value, text, tokenizer):
    messages = [user(), {"role": "assistant", "tool_calls": [call("f", {"x": value})]}]
    same(Case("value", messages), tokenizer)
    assert f'<atem:parameter name="x">{text}</atem:parameter>\n' in body(tokenizer, messages)


def test_parsed_calls_render_as_mappings_do(tokenizer):
    """TitanRL puts the parser's objects, not mappings, into the conversation."""
    renderer = make_renderer(tokenizer)
    as_object = ParsedToolCall(raw="", name="search", arguments={"query": "x y"})
    mixed = [dict(message) for message in CONVERSATION]
    mixed[1]["tool_calls"] = [as_object]
    assert renderer.render_ids(mixed) == renderer.render_ids(CONVERSATION)


def test_arguments_as_json_text_name_message_and_field(tokenizer):
    messages = [user(), {"role": "assistant", "tool_calls": [call("f", {}), call("f", "{}")]}]
    with pytest.raises(ValueError, match=r"messages\[1\]\.tool_calls\[1\]\.function\.arguments"):
        make_renderer(tokenizer).render_ids(messages)


def test_no_messages(tokenizer):
    with pytest.raises(ValueError, match="messages"):
        make_renderer(tokenizer).render([])


def test_it_is_a_renderer_of_the_library(renderer):
    assert isinstance(renderer, Renderer)


def test_a_tokenizer_without_the_special_tokens_is_refused():
    class Foreign:
        def convert_tokens_to_ids(self, token):
            return 0

        def convert_ids_to_tokens(self, found):
            return "<unk>"

    with pytest.raises(ValueError, match=r"<\|begin_of_text\|>"):
        make_renderer(Foreign())


def by_call(**function):
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("text", r"messages\[1\]: found str"),
        (said(reasoning_content=3), r"messages\[1\]\.reasoning_content: found int"),
        (said(reasoning_content=["a"]), r"messages\[1\]\.reasoning_content: found list"),
        (said(recipient=3), r"messages\[1\]\.recipient: found int"),
        (said(tool_calls="search"), r"messages\[1\]\.tool_calls: found str"),
        (said(tool_calls=[None]), r"messages\[1\]\.tool_calls\[0\]: found NoneType"),
        (said(tool_calls=[{"function": None}]), r"messages\[1\]\.tool_calls\[0\]: found NoneType"),
        (by_call(arguments={}), r"messages\[1\]\.tool_calls\[0\]\.function\.name: found NoneType"),
        (by_call(name=3, arguments={}), r"\[0\]\.function\.name: found int"),
        (by_call(name="f", arguments={3: "x"}), r"function\.arguments, key 3: found int"),
        ({"role": "tool", "content": "R", "name": 3}, r"messages\[1\]\.name: found int"),
        ({"role": "tool", "content": "R", "tool_call_id": 3}, r"messages\[1\]\.name: found int"),
    ],
)
def test_what_the_template_cannot_join_is_refused_by_field(message, field, tokenizer):
    messages = [user(), message]
    with pytest.raises(Exception):  # noqa: B017 - jinja's, Python's or transformers'
        template_text(tokenizer, messages)
    with pytest.raises(ValueError, match=field):
        make_renderer(tokenizer).render_ids(messages)


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([{"description": "x"}], r"tools\[0\]\.name: found NoneType"),
        ([{"name": "f"}, {"function": {"name": 3}}], r"tools\[1\]\.name: found int"),
        ([3], r"tools\[0\]: found int"),
        ("search", "tools: found str"),
    ],
)
def test_tools_that_are_none_are_refused_by_field(tools, field, tokenizer):
    with pytest.raises(Exception):  # noqa: B017 - jinja's, Python's or transformers'
        template_text(tokenizer, [user()], tools)
    with pytest.raises(ValueError, match=field):
        make_renderer(tokenizer).render_ids([user()], tools=tools)


def test_what_is_no_json_is_refused_by_field(tokenizer):
    """The template writes Python's own spelling of it."""
    renderer = make_renderer(tokenizer)
    with pytest.raises(ValueError, match=r"\[0\]\.function\.arguments\['x'\]: no JSON"):
        renderer.render_ids([user(), by_call(name="f", arguments={"x": [b""]})])
    with pytest.raises(ValueError, match=r"tools\[0\]: no JSON"):
        renderer.render_ids([user()], tools=[{"name": "f", "parameters": {"x": b""}}])


def test_a_part_without_text_is_refused(tokenizer):
    """The template would write "None" into the prompt."""
    parts = ["a", {"type": "text", "text": None}]
    with pytest.raises(ValueError, match=r"messages\[0\]\.content\[1\]\.text: found NoneType"):
        make_renderer(tokenizer).render_ids([user(parts)])


@pytest.mark.parametrize("render", ["render", "render_ids"])
def test_half_a_character_is_refused_by_message(render, tokenizer):
    """From a tool's JSON, say; the tokenizer itself names neither message nor character."""
    renderer = make_renderer(tokenizer)
    messages = [user("é"), said(reasoning_content="ab\ud83d")]
    with pytest.raises(ValueError, match=r"messages\[1\]: found '\\ud83d' at character 2"):
        getattr(renderer, render)(messages)
    with pytest.raises(ValueError, match=r"messages\[0\]: found '\\udc00' at character 0"):
        renderer.bridge_to_next_turn([1], [2], [user("\udc00")])
