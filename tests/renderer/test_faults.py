"""Faults 10 to 18 and 30 to 35 of those that people hit elsewhere: each is a test here."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from pydantic import ValidationError

from glimmer.config import load
from glimmer.renderer import MuseGlimmerRendererConfig, check_parity, load_renderer
from glimmer.search_r1.prompt import SEARCH_TOOL

from .completions import JSON_LIKE, WITH_TAGS
from .helpers import (
    CUT,
    OK,
    TO_SEARCH,
    UNCLOSED,
    block,
    calls_of,
    make_renderer,
    one,
    said,
    spelled,
    user,
)

CONFIGS = Path(__file__).resolve().parents[2] / "config"
SHIPPED = sorted(path.name for path in CONFIGS.glob("*.yaml") if "schema" not in path.name)
NUMBERS = {*range(10, 19), *range(30, 36)}


@pytest.mark.parametrize("query", JSON_LIKE)
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


@pytest.mark.parametrize("value", WITH_TAGS)
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


EFFORTS = ["Reasoning effort", "Reasoning Effort", "reasoning effort", "REASONING EFFORT"]


@pytest.mark.parametrize("effort", EFFORTS)
def test_a_system_message_with_an_effort_has_one_strength_line(effort, tokenizer):
    """Fault 15."""
    text = make_renderer(tokenizer).render_text(
        [{"role": "system", "content": f"{effort}: low"}, user()]
    )
    assert text.lower().count("reasoning strength") == 1
    assert "effort" not in text.lower() and "high" not in text


def test_the_date_is_required(tokenizer):
    """Fault 16: no default, so no prompt that changes at midnight."""
    with pytest.raises(ValidationError, match="current_date"):
        MuseGlimmerRendererConfig()


@pytest.mark.parametrize("name", SHIPPED)
def test_the_date_is_pinned_in_every_shipped_config(name, checkpoint):
    """Fault 16: and stands in the prompt and in the gate's verdict."""
    settings = load(CONFIGS / "config.yaml", CONFIGS / name)["renderer"]
    date = settings["current_date"]
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", date)
    text = load_renderer(checkpoint, settings).render_text([user()])
    assert f"\nCurrent date: {date}.\n" in text
    assert check_parity(checkpoint, settings)["measured_on"]["current_date"] == date


def test_every_field_of_the_config_is_classified():
    """Fault 17: `renderers` demands it of every config, at import."""
    config = MuseGlimmerRendererConfig
    assert config.template_field_names() == {
        "current_date",
        "knowledge_cutoff",
        "reasoning_strength",
    }
    assert hash(config(current_date="2026-08-14")) == hash(config(current_date="2026-08-14"))
    with pytest.raises(TypeError, match="classification"):
        type("Extended", (config,), {"__annotations__": {"more": str}, "more": "x"})


def test_the_release_of_renderers_is_pinned_and_the_one_installed():
    """Fault 17: another release may demand more of a config."""
    (locked,) = re.findall(
        r"^renderers==(\S+)$", (CONFIGS.parent / "envs" / "workflow.txt").read_text(), re.MULTILINE
    )
    assert metadata.version("renderers") == locked


def test_ids_that_reencode_differently(renderer, tokenizer):
    """Fault 18: parsing does not mind them; that they are carried is in test_bridge."""
    pieces = [" to=user<|message|>", "he", "l", "lo", "<|eot|>"]
    ids = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]
    ids[-2:-1] = tokenizer.encode("l") + tokenizer.encode("o")
    assert ids != tokenizer.encode("".join(pieces), add_special_tokens=False)
    assert renderer.parse_response(ids).content == "hello"


def test_ids_that_reencode_differently_are_carried(renderer, tokenizer):
    """Fault 18, the other side: the next prompt has what was sampled."""
    prompt = renderer.render_ids([user()], add_generation_prompt=True)
    word = [i for piece in ("he", "l", "l", "o") for i in tokenizer.encode(piece)]
    completion = [
        *tokenizer.encode(" to=user<|message|>"),
        *word,
        *tokenizer.encode("<|eot|>"),
    ]
    assert word != tokenizer.encode("hello")
    bridged = renderer.bridge_to_next_turn(prompt, completion, [user("And?")])
    assert bridged.token_ids[: len(prompt) + len(completion)] == prompt + completion
    full = renderer.render_ids([user(), said("hello"), user("And?")], add_generation_prompt=True)
    assert bridged.token_ids != full
    assert tokenizer.decode(bridged.token_ids) == tokenizer.decode(full)


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


def test_every_fault_has_a_test():
    """By the numbers in the docstrings of this file."""
    named = " ".join(t.__doc__ or "" for name, t in globals().items() if name.startswith("test_"))
    assert {int(number) for number in re.findall(r"Fault (\d+)", named)} == NUMBERS
