"""The prompts that the parity gates run on: real questions, with and without passages read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimmer.assets import read_corpus, read_questions
from glimmer.search_r1.prompt import SEARCH_TOOL, opening_messages, passages_to_text


def gate_prompts(renderer: Any, questions: Path, corpus: Path, *, count: int) -> list[list[int]]:
    """`count` prompts from the first training questions, as token ids up to the generation prompt.

    Every second one is a second turn: a search has been made and three passages of the corpus
    stand in the tool's answer.
    """
    chosen = read_questions(questions)[:count]
    passages = list(itertools.islice(read_corpus(corpus), 3 * count))
    prompts = []
    for i, question in enumerate(chosen):
        messages: list[Mapping[str, Any]] = opening_messages(question.question)
        if i % 2:
            call = {
                "id": "1",
                "type": "function",
                "function": {"name": "search", "arguments": {"query": question.question}},
            }
            found = passages[3 * i : 3 * i + 3] or passages[:3]
            messages = [
                *messages,
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "name": "search", "content": passages_to_text(found)},
            ]
        prompts.append(
            renderer.render_ids(messages, tools=[SEARCH_TOOL], add_generation_prompt=True)
        )
    return prompts
