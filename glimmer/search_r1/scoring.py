"""Scores of a short answer against golden answers: SQuAD's normalisation, exact match and F1.

Source: the official evaluation script of SQuAD v1.1 (Rajpurkar et al. 2016), which HotpotQA and
Search-R1 share: lower case, no punctuation, no articles, single spaces.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

# How a rollout can end; every rollout has exactly one of these (`glimmer.search_r1.outcome`).
OUTCOMES = (
    "correct",
    "wrong",
    "no_answer",
    "truncated",
    "turn_limit",
    "tool_error",
    "crashed",
)

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and the articles a, an, the; single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golden_answers: Sequence[str]) -> bool:
    """Whether the normalised prediction equals a normalised golden answer.

    A golden answer that normalises to nothing (such as "The") matches no prediction but one that
    is equal apart from case and outer spaces.
    """
    said = normalize_answer(prediction)
    plain = prediction.strip().lower()
    return any(
        said == gold if (gold := normalize_answer(answer)) else plain == answer.strip().lower()
        for answer in golden_answers
    )


def f1(prediction: str, golden_answers: Sequence[str]) -> float:
    """Largest token F1 over the golden answers: 2PR / (P + R) on bags of normalised words."""
    return max((_token_f1(prediction, answer) for answer in golden_answers), default=0.0)


def _token_f1(prediction: str, answer: str) -> float:
    said, gold = normalize_answer(prediction).split(), normalize_answer(answer).split()
    shared = sum((Counter(said) & Counter(gold)).values())
    if shared == 0:
        return 0.0
    return 2 * shared / (len(said) + len(gold))


def contains(prediction: str, golden_answers: Sequence[str]) -> bool:
    """Whether a normalised golden answer stands in the normalised prediction, on word borders."""
    said = f" {normalize_answer(prediction)} "
    return any(
        bool(gold := normalize_answer(answer)) and f" {gold} " in said for answer in golden_answers
    )
