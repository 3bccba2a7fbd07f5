"""Demonstrations of the task for the tiny checkpoint's warm start, as token rows with a mask.

A demonstration asks a question of a world, searches by the entity's title, reads what a TF-IDF
search of that world returns, and answers. A spoilt one answers with the fact that stands first,
skips the search, or cuts the query: mistakes that reinforcement learning can undo.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from glimmer.bundled.world import Entity, Question, World
from glimmer.search_r1.prompt import SEARCH_TOOL, opening_messages, passages_to_text

Messages = list[dict]
SHORT_SYSTEM = "Use search, then answer."


@dataclass(frozen=True)
class Spoiling:
    """How often a demonstration goes wrong, each in [0, 1]."""

    first_stated: float = 0.0  # answers with the fact that stands first in the passage
    skip_search: float = 0.0  # answers at once with some fact of the entity
    cut_query: float = 0.0  # searches by the first two words of the title


class WorldSearch:
    """TF-IDF search over a world's passages; stands in for dense retrieval in the warm start."""

    def __init__(self, world: World) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._entities = world.entities
        self._vectorizer = TfidfVectorizer(
            token_pattern=r"\w+",  # noqa: S106 - a regular expression
            dtype=np.float32,
        )
        self._matrix = self._vectorizer.fit_transform(e.contents for e in world.entities)

    def __call__(self, query: str, topk: int) -> list[Entity]:
        """The `topk` best passages, best first; ties by position in the corpus."""
        scores = (self._matrix @ self._vectorizer.transform([query]).T).toarray()[:, 0]
        return [self._entities[i] for i in np.argsort(-scores, kind="stable")[:topk]]


def demonstrate(
    world: World,
    search: Callable[[str, int], list[Entity]],
    question: Question,
    draw: random.Random,
    *,
    topk: int,
    spoiling: Spoiling,
    short: bool,
) -> tuple[Messages, list | None]:
    """One conversation and its tool schemas.

    Args:
        short: a bare system line instead of the tool schemas, a quarter of the tokens; the first
            stage of the warm start uses it.
    """
    entity = world.entities[question.entity]
    answer, query = question.answer, entity.title
    if draw.random() < spoiling.first_stated:
        answer = entity.first_stated()
    if short:
        opening = [
            {"role": "system", "content": SHORT_SYSTEM},
            {"role": "user", "content": f"Question: {question.text}"},
        ]
    else:
        opening = opening_messages(question.text)
    tools = None if short else [SEARCH_TOOL]
    if draw.random() < spoiling.skip_search:
        guess = draw.choice(list(entity.facts.values()))
        return [*opening, {"role": "assistant", "content": f" {guess}"}], tools
    if draw.random() < spoiling.cut_query:
        query = " ".join(query.split()[:2])
    # A leading space gives a copied name the same tokens here as in the middle of a sentence.
    call = {"function": {"name": "search", "arguments": {"query": f" {query}"}}}
    return [
        *opening,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "name": "search", "content": passages_to_text(search(query, topk))},
        {"role": "assistant", "content": f" {answer}"},
    ], tools
