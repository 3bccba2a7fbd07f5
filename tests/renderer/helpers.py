"""What the tests of the renderer share: settings, renderers by knob, ways to write ids."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, settings

from glimmer.renderer import MuseGlimmerRenderer, MuseGlimmerRendererConfig

SETTINGS = {
    "implementation": "glimmer",
    "current_date": "2026-08-14",
    "knowledge_cutoff": "2026-01-04",
    "reasoning_strength": "high",
}
KNOBS = {key: value for key, value in SETTINGS.items() if key != "implementation"}
GOLDEN = json.loads((Path(__file__).parent / "golden_cases.json").read_text("utf-8"))["cases"]


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
