"""Every well-formed completion of the suite: what a model writes that keeps to the format.

They come from the renderer (each assistant turn of each case of the gate and of the released
renderings) and, for what no message renders to, from texts in the parser's own tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from glimmer.renderer.cases import TEXTS, builtin_cases, pipeline_cases
from glimmer.renderer.golden import golden_cases
from glimmer.search_r1.prompt import SEARCH_TOOL

from .helpers import TO_SEARCH, block, make_renderer

# Texts that look like JSON.
JSON_LIKE = ["1984", "true", "null", '["a","b"]', "3.14", '{"a": 1}', '"q"', "NaN", "1e999"]
# Values with tags of the format in them: the grammar allows one reading only.
WITH_TAGS = [
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
]
THOUGHT, THEN = " to=self<|message|>", "<|eom|><|start|>assistant"
ANSWER = " to=user<|message|>"
WRITTEN = {
    **{f"query {query}": f"{TO_SEARCH}{block(query)}<|eot|>" for query in JSON_LIKE},
    **{
        f"tags {number}": f"{TO_SEARCH}{block(value)}<|eot|>"
        for number, value in enumerate(WITH_TAGS)
    },
    "answer": f"{ANSWER}Yes.<|eot|>",
    "answer with space": f"{ANSWER}  Yes.\n<|eot|>",
    "answer ends the text": f"{ANSWER}Yes.<|end_of_text|>",
    "answer without its end": f"{ANSWER}Yes.",
    "answer quotes a call": f"{ANSWER}Write {block()} like this.<|eot|>",
    "answer names a recipient": f"{ANSWER}Send it to=someone.<|eot|>",
    "empty answer": f"{ANSWER}<|eot|>",
    "two answers": f"{ANSWER}One.{THEN}{ANSWER}Two.<|eot|>",
    "thought and answer": f"{THOUGHT}Hm.{THEN}{ANSWER}Yes.<|eot|>",
    "two thoughts and answer": f"{THOUGHT}One.{THEN}{THOUGHT}Two.{THEN}{ANSWER}Yes.<|eot|>",
    "thought quotes a call": f"{THOUGHT}Say {block()}.{THEN}{ANSWER}No.<|eot|>",
    "thought alone": f"{THOUGHT}Hm.<|eot|>",
    "thought and call": f"{THOUGHT}Hm.{THEN}{TO_SEARCH}{block()}<|eot|>",
    "answer and call": f"{ANSWER}I look.{THEN}{TO_SEARCH}{block()}<|eot|>",
    "call and thought and call": (
        f"{TO_SEARCH}{block('a')}{THEN}{THOUGHT}Hm.{THEN}{TO_SEARCH}{block('b')}<|eot|>"
    ),
    "two calls": f"{TO_SEARCH}{block('a')}{THEN}{TO_SEARCH}{block('b')}<|eot|>",
    "two calls in a block": TO_SEARCH
    + block("a").replace("</atem:function_calls>", "")
    + block("b").split(">\n", 1)[1]
    + "<|eot|>",
    "no arguments": f" to=now<|message|>{block(name='now', key=None)}<|eot|>",
    "a namespace": f" to=web.open<|message|>{block('X', 'web.open')}<|eot|>",
    "a value of lines": TO_SEARCH + block("  a\n\nb ") + "<|eot|>",
}


def rendered(tokenizer) -> Iterator[tuple[str, str, list[dict]]]:
    """(name, text, tools) of each assistant turn of the cases; a turn is a run of messages."""
    golden = [each.case for each in golden_cases().cases]
    for case in chain(builtin_cases(), pipeline_cases([SEARCH_TOOL]), golden):
        renderer = make_renderer(tokenizer, **case.knobs)
        roles = [message.get("role") for message in case.messages] + [None]
        for start in range(1, len(case.messages)):
            if roles[start] != "assistant" or roles[start - 1] == "assistant":
                continue
            stop = next(i for i in range(start, len(roles)) if roles[i] != "assistant")
            prompt = renderer.render_text(
                case.messages[:start], tools=case.tools, add_generation_prompt=True
            )
            whole = renderer.render_text(case.messages[:stop], tools=case.tools)
            text = whole[len(prompt) :]
            # Special tokens spelled out in a message become ids: then it is no such turn.
            if whole.startswith(prompt) and TEXTS["special"] not in text:
                yield f"{case.name}[{start}]", text, case.tools or [SEARCH_TOOL]


def well_formed(tokenizer) -> dict[str, tuple[str, list[dict]]]:
    """Name -> (text, tools), each text once."""
    found = {name: (text, tools) for name, text, tools in rendered(tokenizer)}
    found |= {name: (text, [SEARCH_TOOL]) for name, text in WRITTEN.items()}
    seen: dict[tuple[str, str], str] = {}
    for name, (text, tools) in found.items():
        seen.setdefault((text, str(tools)), name)
    return {name: found[name] for name in seen.values()}
