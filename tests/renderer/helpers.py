"""What the tests of the renderer share: settings, renderers by knob, ways to write ids."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, settings
from renderers.base import ToolCallParseStatus

from glimmer.renderer import MuseGlimmerRenderer, MuseGlimmerRendererConfig, golden
from glimmer.renderer.cases import Case
from glimmer.renderer.load import KNOBS as TEMPLATE_KNOBS

SETTINGS = {
    "implementation": "glimmer",
    "current_date": "2026-08-14",
    "knowledge_cutoff": "2026-01-04",
    "reasoning_strength": "high",
    "without_template": "fail",
}
KNOBS = {key: SETTINGS[key] for key in TEMPLATE_KNOBS}
GOLDEN = json.loads((Path(golden.__file__).parent / "golden.json").read_text("utf-8"))["cases"]


def property_of(examples: int) -> settings:
    """hypothesis' settings here: the same examples on every run, no time limit on each."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def make_renderer(tokenizer, tools=None, **knobs) -> MuseGlimmerRenderer:
    config = MuseGlimmerRendererConfig(**{**KNOBS, **knobs})
    return MuseGlimmerRenderer(tokenizer, config.with_tools(tools))


def template_text(tokenizer, messages, tools=None, generation=False, **knobs) -> str:
    """The chat template's rendering."""
    return tokenizer.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=generation,
        tokenize=False,
        **{**KNOBS, **knobs},
    )


def same(case: Case, tokenizer) -> None:
    """Text equals the template's, ids the tokenizer's of the whole text, masks fit the ids."""
    renderer = make_renderer(tokenizer, **case.knobs)
    expected = template_text(tokenizer, case.messages, case.tools, case.generation, **case.knobs)
    arguments = {"tools": case.tools, "add_generation_prompt": case.generation}
    assert renderer.render_text(case.messages, **arguments) == expected
    rendered = renderer.render(case.messages, **arguments)
    assert rendered.token_ids == tokenizer(expected, add_special_tokens=False)["input_ids"]
    assert rendered.token_ids == renderer.render_ids(case.messages, **arguments)
    size = len(rendered.token_ids)
    assert {
        len(rendered.message_indices),
        len(rendered.sampled_mask),
        len(rendered.is_content),
    } == {size}
    assert len(rendered.message_roles) == len(rendered.message_tool_names) == len(case.messages)


def spelled(tokenizer, text: str) -> list[int]:
    """Ids of a text in which special tokens are spelled out as ordinary text."""
    ids: list[int] = []
    for piece in text.replace("<|", "<\0|").split("\0"):
        ids += tokenizer.encode(piece, add_special_tokens=False)
    return ids


def call(name, arguments, call_id=None) -> dict:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if call_id is None else {"id": call_id, **made}


def user(content="Hi") -> dict:
    return {"role": "user", "content": content}


def said(content="Yes.", **more) -> dict:
    return {"role": "assistant", "content": content, **more}


def a_tool(name, **properties) -> dict:
    """A tool's schema."""
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


# ---- parsing ---------------------------------------------------------------------------------

OK = ToolCallParseStatus.OK
UNCLOSED = ToolCallParseStatus.UNCLOSED_BLOCK
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


def calls_of(parsed):
    return [(call.name, call.arguments, call.status) for call in parsed.tool_calls]


def one(**arguments):
    return [("search", arguments, OK)]
