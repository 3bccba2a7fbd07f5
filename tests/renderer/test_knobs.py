"""Settings beyond the template's three, and what is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from .helpers import call, make_renderer, said, template_text, user

TOOLS = [
    {"name": name, "description": "D", "parameters": {"type": "object"}}
    for name in ("web.search", "web.open", "calc")
]
DESCRIPTIONS = {"web": 'The „Web“, <all> of "it"', "other": "unused"}
HISTORY = [
    user("One?"),
    said("One.", reasoning_content="First thought."),
    user("Two?"),
    {
        "role": "assistant",
        "reasoning_content": "Second thought.",
        "tool_calls": [call("calc", {"x": 1})],
    },
    {"role": "tool", "name": "calc", "content": "R"},
]


def test_descriptions_of_namespaces_are_the_templates(tokenizer):
    renderer = make_renderer(tokenizer, tool_namespace_descriptions=DESCRIPTIONS)
    expected = template_text(
        tokenizer, [user()], TOOLS, True, tool_namespace_descriptions=DESCRIPTIONS
    )
    arguments = {"tools": TOOLS, "add_generation_prompt": True}
    assert renderer.render_text([user()], **arguments) == expected
    assert renderer.render_ids([user()], **arguments) == tokenizer.encode(
        expected, add_special_tokens=False
    )
    assert '{"name": "web", "description": "The „Web“, <all> of \\"it\\""}\n' in expected
    assert '{"name": "calc", "description": ""}\n' in expected
    assert hash(renderer.config) == hash(renderer.config.model_copy())


@pytest.mark.parametrize("bad", [["web"], {"web": 3}, "web"])
def test_descriptions_must_be_a_mapping_to_texts(bad, tokenizer):
    with pytest.raises(ValidationError, match="tool_namespace_descriptions"):
        make_renderer(tokenizer, tool_namespace_descriptions=bad)


def test_descriptions_given_twice(tokenizer):
    with pytest.raises(ValidationError, match="twice"):
        make_renderer(
            tokenizer,
            tool_namespace_descriptions=DESCRIPTIONS,
            tool_namespace_descriptions_json='{"a": "b"}',
        )


def test_reasoning_before_the_last_user_message_can_be_left_out(tokenizer):
    kept = make_renderer(tokenizer).render_text(HISTORY)
    assert "First thought." in kept and "Second thought." in kept
    left = make_renderer(tokenizer, retain_reasoning_in_history=False).render_text(HISTORY)
    first = "<|start|>assistant to=self<|message|>First thought.<|eom|>"
    assert left == kept.replace(first, "")


def test_without_history_no_bridge_leads_over_a_user_message(tokenizer):
    renderer = make_renderer(tokenizer, retain_reasoning_in_history=False)
    prompt = renderer.render_ids(HISTORY[:1], add_generation_prompt=True)
    completion = renderer.render_ids(HISTORY[:2])[len(prompt) :]
    assert renderer.bridge_to_next_turn(prompt, completion, HISTORY[2:3]) is None
    result = {"role": "tool", "name": "calc", "content": "R"}
    assert renderer.bridge_to_next_turn(prompt, completion, [result]) is not None


def test_two_retentions_that_contradict_each_other(tokenizer):
    with pytest.raises(ValidationError, match="thinking_retention"):
        make_renderer(tokenizer, retain_reasoning_in_history=False, thinking_retention="all")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (" to=self<|message|>It is 4.<|eot|>", "It is 4."),
        (" to=self<|message|>It is", ""),
        (" to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>4<|eot|>", "4"),
        (" to=self<|message|>Hm.<|eom|><|start|>assistant to=f<|message|>x<|eot|>", ""),
        ("<|eot|>", ""),
    ],
)
def test_reasoning_stands_in_for_an_answer_only_if_asked(text, content, tokenizer):
    ids = tokenizer.encode(text, add_special_tokens=False)
    plain = make_renderer(tokenizer).parse_response(ids)
    assert plain.content == ("" if content.startswith("It") else content)
    asked = make_renderer(tokenizer, answer_from_reasoning_fallback=True).parse_response(ids)
    assert asked.content == content
    assert asked.reasoning_content == plain.reasoning_content


@pytest.mark.parametrize("kind", ["image", "image_url", "video", "video_url"])
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_media_are_refused_by_name(kind, role, tokenizer):
    renderer = make_renderer(tokenizer, media="refused")
    content = [{"type": "text", "text": "see"}, {"type": kind}]
    messages = [user(), {"role": role, "name": "f", "content": content}]
    with pytest.raises(ValueError, match=rf"messages\[1\]\.content\[1\].*'{kind}'"):
        renderer.render_ids(messages)
    assert renderer.render_ids([user([{"type": "text", "text": "see"}])])


def test_media_are_refused_in_a_bridge(tokenizer):
    renderer = make_renderer(tokenizer, media="refused")
    with pytest.raises(ValueError, match=r"messages\[0\]\.content\[0\].*'image'"):
        renderer.bridge_to_next_turn([1], [2], [user([{"type": "image"}])])
