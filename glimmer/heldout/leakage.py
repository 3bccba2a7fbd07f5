"""Do held-out questions stand in the training set? Exactly, normalised, or nearly.

In: both question files. Out: `leakage.json`,

    {"train", "heldout": questions, "settings", "counts": {kind: held-out questions, "any"},
     "same_answer": {kind: of these, those that share a golden answer with their match, "any"},
     "found": [{"id", "kind", "score", "same_answer", "train_id", "question", "train_question"}]}

Kinds, each with the training question that fits best: `exact`; `normalised` (case, punctuation,
articles and Unicode forms aside); `ngram`, the share of the held-out question's word n-grams that
stand in one training question; `embedding`, the cosine of both questions' vectors by the run's own
embedding model. A near duplicate need not be a leak (the same form of question about another
thing); one with the same answer most likely is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.assets import Question, read_questions
from glimmer.assets.questions import normalize_question
from glimmer.logs import get_logger
from glimmer.search_r1.scoring import normalize_answer

logger = get_logger(__name__)

KINDS = ("exact", "normalised", "ngram", "embedding")
_BLOCK = 256  # held-out questions compared at once

Vectors = Callable[[list[str]], np.ndarray]


def check_leakage(
    train: Path, heldout: Path, *, settings: Mapping[str, Any], embedding: Mapping[str, Any]
) -> dict[str, Any]:
    """`leakage.json` of two question files.

    Args:
        settings: config section `leakage`.
        embedding: config section `embedding`; its model makes the vectors.
    """
    vectors: Vectors | None = None
    if settings["min_similarity"] is not None:
        from glimmer.retrieval.encoder import Encoder

        model, revision = embedding["model"], embedding.get("revision")
        encoder = Encoder(
            f"{model}@{revision}" if revision else model,
            device=embedding["device"],
            dtype=embedding["dtype"],
            threads=embedding["threads"],
            max_length=embedding["max_length"] or None,
        )

        def vectors(texts: list[str]) -> np.ndarray:
            return encoder.queries(texts, batch_size=embedding["batch_size"])

    found = find_leaks(
        read_questions(train),
        read_questions(heldout),
        ngram=settings["ngram"],
        min_overlap=settings["min_overlap"],
        min_similarity=settings["min_similarity"],
        vectors=vectors,
    )
    logger.info("held-out questions found in training: %s", found["counts"])
    return found


def find_leaks(
    train: Sequence[Question],
    heldout: Sequence[Question],
    *,
    ngram: int,
    min_overlap: float,
    min_similarity: float | None = None,
    vectors: Vectors | None = None,
) -> dict[str, Any]:
    """Held-out questions that stand in training, see the module.

    Args:
        ngram: words of an n-gram; a question with fewer words is one n-gram.
        min_overlap: share of n-grams from which a question counts.
        min_similarity: cosine from which it counts; None leaves vectors out.
        vectors: texts -> float32 [len(texts), d], rows of length 1.
    """
    found: list[dict[str, Any]] = []

    def note(kind: str, place: int, match: int, score: float) -> None:
        mine, theirs = heldout[place], train[match]
        found.append(
            {
                "id": mine.id,
                "kind": kind,
                "score": round(float(score), 6),
                "same_answer": _same_answer(mine, theirs),
                "train_id": theirs.id,
                "question": mine.question,
                "train_question": theirs.question,
            }
        )

    words = [normalize_question(q.question) for q in train]
    asked = [normalize_question(q.question) for q in heldout]
    by_text = _first_places(q.question for q in train)
    by_words = _first_places(words)
    for place, question in enumerate(heldout):
        if question.question in by_text:
            note("exact", place, by_text[question.question], 1.0)
        # A question of symbols alone has no words to compare.
        if asked[place] and asked[place] in by_words:
            note("normalised", place, by_words[asked[place]], 1.0)
    for place, match, score in _ngram_matches(words, asked, ngram):
        if score >= min_overlap:
            note("ngram", place, match, score)
    if min_similarity is not None and vectors is not None and train and heldout:
        for place, match, score in _nearest(
            vectors([q.question for q in train]), vectors([q.question for q in heldout])
        ):
            if score >= min_similarity:
                note("embedding", place, match, score)
    kinds = KINDS if min_similarity is not None else KINDS[:-1]
    return {
        "train": len(train),
        "heldout": len(heldout),
        "settings": {"ngram": ngram, "min_overlap": min_overlap, "min_similarity": min_similarity},
        "counts": _counts(found, kinds),
        "same_answer": _counts([leak for leak in found if leak["same_answer"]], kinds),
        "found": found,
    }


def _counts(found: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> dict[str, int]:
    counts = {kind: len({leak["id"] for leak in found if leak["kind"] == kind}) for kind in kinds}
    return counts | {"any": len({leak["id"] for leak in found})}


def _same_answer(one: Question, other: Question) -> bool:
    answers = [{normalize_answer(a) for a in q.golden_answers} - {""} for q in (one, other)]
    return bool(answers[0] & answers[1])


def _first_places(texts: Iterator[str] | Sequence[str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, text in enumerate(texts):
        places.setdefault(text, place)
    return places


def _ngrams(text: str, size: int) -> set[tuple[str, ...]]:
    words = text.split()
    if len(words) <= size:
        return {tuple(words)} if words else set()
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def _ngram_matches(
    train: Sequence[str], heldout: Sequence[str], size: int
) -> Iterator[tuple[int, int, float]]:
    """(held-out place, training place, share of the held-out question's n-grams in it), of the
    training question that holds most of them."""
    from scipy.sparse import csr_matrix

    asked = [_ngrams(text, size) for text in heldout]
    columns: dict[tuple[str, ...], int] = {}
    for grams in asked:
        for gram in sorted(grams):
            columns.setdefault(gram, len(columns))
    if not columns or not train:
        return

    def matrix(rows: Sequence[set[tuple[str, ...]]]) -> csr_matrix:
        ends, places = [0], []
        for grams in rows:
            places += sorted(columns[gram] for gram in grams if gram in columns)
            ends.append(len(places))
        ones = np.ones(len(places), dtype=np.float32)
        return csr_matrix((ones, places, ends), shape=(len(rows), len(columns)))

    known = matrix([_ngrams(text, size) for text in train]).T.tocsc()
    for start in range(0, len(asked), _BLOCK):
        block = asked[start : start + _BLOCK]
        shared = (matrix(block) @ known).tocsr()
        for k, grams in enumerate(block):
            row = shared[k]
            if grams and row.nnz:
                # The first of equals, whatever order the product has its columns in.
                best = min(zip(-row.data, row.indices, strict=True))
                yield start + k, int(best[1]), float(-best[0]) / len(grams)


def _nearest(train: np.ndarray, heldout: np.ndarray) -> Iterator[tuple[int, int, float]]:
    """(held-out place, place of the nearest training vector, cosine)."""
    for start in range(0, len(heldout), _BLOCK):
        products = heldout[start : start + _BLOCK] @ train.T
        best = products.argmax(axis=1)
        for k, match in enumerate(best):
            yield start + k, int(match), float(products[k, match])
