"""The renderer, measured: against the chat template, its parser, its bridge, random completions.

    python benchmarks/renderer.py speed [--checkpoint FOLDER]
    python benchmarks/renderer.py fuzz  [--checkpoint FOLDER] [--completions N] [--cut N] [--seed S]

`speed`: ratios within one process, best of several rounds. The renderer remembers texts and, as the
tokenizer itself does, words; a row says which memory was emptied before each round. `fuzz`: random
and mutated completions are parsed, `cut` of them at every position; an exception, markup in the
answer of a whole completion, a call without a status or a span outside the completion ends the run.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from renderers.base import ToolCallParseStatus

from glimmer.renderer.load import KNOBS as TEMPLATE_KNOBS
from glimmer.renderer.load import load_renderer
from glimmer.search_r1.prompt import SEARCH_TOOL

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {
    "implementation": "glimmer",
    "current_date": "2026-08-14",
    "knowledge_cutoff": "2026-01-04",
    "reasoning_strength": "high",
}
KNOBS = {key: SETTINGS[key] for key in TEMPLATE_KNOBS}
TOOLS = [SEARCH_TOOL]
PASSAGES = "\n".join(
    f'Doc {i}(Title: "A title") The quick brown fox number {i} jumps over {i * 7} lazy dogs.'
    for i in range(1, 4)
)
PIECES = [
    "<|start|>", "<|message|>", "<|eom|>", "<|eot|>", "<|begin_of_text|>", "assistant", " to=self",
    " to=user", " to=search", " to=", "<atem:function_calls>", '<atem:invoke name="search">',
    '<atem:invoke name="a.b">', '<atem:parameter name="query">', '<atem:parameter name="n">',
    "</atem:parameter>", "</atem:invoke>", "</atem:function_calls>", "\n", " ", "x", "1984", "NaN",
    "<atem:invoke", ' name="', '">', "<", "é", "user", "tool",
]  # fmt: skip


def turn(number: int) -> list[dict[str, Any]]:
    """One searching turn and its result."""
    call = {"name": "search", "arguments": {"query": f"who wrote number {number}"}}
    return [
        {
            "role": "assistant",
            "reasoning_content": f"I need to look up number {number} before I answer.",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "name": "search", "content": f"{number}: {PASSAGES}"},
    ]


def conversation(turns: int) -> list[dict[str, Any]]:
    opening = [{"role": "user", "content": "Answer the question. Question: who wrote it?"}]
    return [*opening, *(message for number in range(turns) for message in turn(number))]


def best(action: Callable[[], Any], rounds: int, before: Callable[[], Any] = lambda: None) -> float:
    """Least seconds of one call."""
    found = []
    for _ in range(rounds):
        before()
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return min(found)


def speed(checkpoint: Path) -> int:
    renderer = load_renderer(checkpoint, SETTINGS, tools=TOOLS)
    tokenizer, messages = renderer.tokenizer, conversation(10)
    forget = renderer._encoded.clear
    gc.disable()

    def template(tokenize: bool) -> Any:
        return tokenizer.apply_chat_template(
            messages, tools=TOOLS, add_generation_prompt=True, tokenize=tokenize, **KNOBS
        )

    arguments = {"tools": TOOLS, "add_generation_prompt": True}
    text = best(lambda: renderer.render_text(messages, **arguments), 50)
    ids = best(lambda: renderer.render_ids(messages, **arguments), 50, forget)

    def forget_words() -> None:
        forget()
        renderer._encode_anew.forget()

    cold = best(lambda: renderer.render_ids(messages, **arguments), 50, forget_words)
    ids = min(ids, best(lambda: renderer.render_ids(messages, **arguments), 50, forget))
    system = next(text for text in renderer._encoded if "# Valid recipients" in text)
    known = {system: renderer._encoded[system]}

    def keep_system() -> None:
        renderer._encoded.clear()
        renderer._encoded.update(known)

    usual = best(lambda: renderer.render_ids(messages, **arguments), 50, keep_system)
    kept = best(lambda: renderer.render_ids(messages, **arguments), 50)
    by_template = best(lambda: template(False), 50), best(lambda: template(True), 50)
    text = min(text, best(lambda: renderer.render_text(messages, **arguments), 50))

    prompt = renderer.render_ids(messages[:1], **arguments)
    completion = renderer.render_ids(messages[:2], tools=TOOLS)[len(prompt) :]
    thought = " ".join(f"Step {n}: document {n * 3} says so, <b>not</b> that." for n in range(60))
    at_length = renderer.render_ids(
        [messages[0], {**messages[1], "reasoning_content": thought}], tools=TOOLS
    )[len(prompt) :]
    parsed = []
    for ids_of in (completion, at_length):
        size = len(tokenizer.decode(ids_of).encode())
        seconds = best(lambda found=ids_of: renderer.parse_response(found), 200)
        parsed.append((f"parse, MB/s (a call, {size} bytes)", size / seconds / 1e6, ">= 5"))

    bridge, with_masks, reply = {}, {}, conversation(50)[-1:]
    for turns in (2, 50):
        before = renderer.render_ids(conversation(turns - 1), **arguments)
        sampled = renderer.render_ids(conversation(turns)[:-1], tools=TOOLS)[len(before) :]

        def ids_alone(before: list[int] = before, sampled: list[int] = sampled) -> Any:
            return renderer.bridge_to_next_turn(before, sampled, reply, tools=TOOLS)

        def everything(make: Callable[[], Any] = ids_alone) -> Any:
            made = make()
            return made, made.message_indices, made.sampled_mask, made.is_content

        bridge[turns] = best(ids_alone, 200, forget)
        with_masks[turns] = best(everything, 200, forget)
    rows = [
        ("text, times the template's speed", by_template[0] / text, ">= 5"),
        ("ids, the same: no text and no word seen before", by_template[1] / cold, ""),
        ("ids, the same: no text seen before", by_template[1] / ids, ">= 2"),
        ("ids, the same: system block seen before", by_template[1] / usual, ">= 2"),
        ("ids, the same: all texts seen before", by_template[1] / kept, ""),
        *parsed,
        ("bridge at turn 2, microseconds", bridge[2] * 1e6, ""),
        ("bridge at turn 50 over turn 2", bridge[50] / bridge[2], "<= 1.5"),
        ("the same, all masks read", with_masks[50] / with_masks[2], ""),
    ]
    for name, value, target in rows:
        print(f"{name:<50} {value:8.2f}  {target}")
    return 0


def mutated(ids: list[int], size: int, draw: random.Random) -> list[int]:
    """A completion with one to four tokens dropped, doubled, exchanged or put in."""
    ids = list(ids)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(ids) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            del ids[at : at + 1]
        elif kind == 1:
            ids[at:at] = ids[at : at + draw.randint(1, 5)]
        elif kind == 2:
            ids[at : at + 1] = [draw.randrange(size)]
        else:
            ids.insert(at, draw.randrange(size))
    return ids


def check(renderer: Any, ids: list[int], specials: tuple[str, ...]) -> None:
    parsed = renderer.parse_response(ids)
    if any(special in parsed.content for special in specials):
        # The spelling may have been sampled as ordinary text; then it is text.
        known = {renderer._specials[special[2:-2]] for special in specials}
        plain = renderer.tokenizer.decode([token for token in ids if token not in known])
        assert any(special in plain for special in specials), ids
    for call in parsed.tool_calls:
        start, stop = call.token_span
        assert 0 <= start <= stop <= len(ids), ids
        assert isinstance(call.status, ToolCallParseStatus), ids
        assert call.status is not ToolCallParseStatus.OK or (
            call.name and call.arguments is not None
        )


def fuzz(checkpoint: Path, completions: int, cut: int, seed: int) -> int:
    renderer = load_renderer(checkpoint, SETTINGS, tools=TOOLS)
    tokenizer, draw = renderer.tokenizer, random.Random(seed)
    size, specials = len(tokenizer), ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
    pieces = [tokenizer.encode(piece, add_special_tokens=False) for piece in PIECES]
    prompt = renderer.render_ids(conversation(0), tools=TOOLS, add_generation_prompt=True)
    good = [
        renderer.render_ids([*conversation(0), message], tools=TOOLS)[len(prompt) :]
        for message in (
            turn(1)[0],
            {"role": "assistant", "content": "She.", "reasoning_content": "So."},
            {**turn(1)[0], "tool_calls": turn(1)[0]["tool_calls"] * 2},
        )
    ]
    start, parses = time.perf_counter(), 0
    for number in range(completions):
        kind = number % 3
        if kind == 0:
            ids = [draw.randrange(size) for _ in range(draw.randrange(40))]
        elif kind == 1:
            ids = [i for p in draw.choices(pieces, k=draw.randrange(16)) for i in p]
        else:
            ids = mutated(draw.choice(good), size, draw)
        stops = range(len(ids) + 1) if number < cut else (len(ids),)
        for stop in stops:
            check(renderer, ids[:stop], specials)
            parses += 1
    seconds = time.perf_counter() - start
    print(f"{completions} completions, {cut} of them cut at every position: {parses} parses, "
          f"no exception, {seconds:.0f} s")  # fmt: skip
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "fuzz"])
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "resources" / "tiny_glimmer")
    parser.add_argument("--completions", type=int, default=200_000)
    parser.add_argument("--cut", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "speed":
        return speed(given.checkpoint)
    return fuzz(given.checkpoint, given.completions, min(given.cut, given.completions), given.seed)


if __name__ == "__main__":
    sys.exit(main())
