"""The retrieval ceiling: for how many questions does the answer stand in the first k passages?

Asked with the question itself, by the run's own index and embedding model: no model's searches are
in it. A model may do better, by searching twice or with other words, or worse.

    {"k": 20, "topk": 3, "index_sha256": …, "ef_search": 128, "model": …,
     "sets": {"train": {"questions": 1000, "found": [of the first 1, …, k], "ceiling": [shares]},
              "heldout": {…, "first": {id: rank from 1, or null}}}}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glimmer.assets import Question
from glimmer.assets.corpus import split_contents
from glimmer.errors import ConfigError
from glimmer.logs import get_logger
from glimmer.retrieval.encoder import Encoder
from glimmer.retrieval.index import PassageIndex, check_model, open_index, served_ef_search
from glimmer.search_r1.scoring import contains

logger = get_logger(__name__)


def measure_ceiling(
    index: Path,
    corpus: Path,
    *,
    train: Sequence[Question],
    heldout: Sequence[Question],
    questions: int,
    k: int,
    topk: int,
    seed: int = 0,
    ef_search: int | None = None,
    threads: int = 1,
    encoder: Encoder | None = None,
) -> dict[str, Any]:
    """What the module's first lines show.

    Args:
        index: folder written by `glimmer.retrieval.build.build_index`.
        corpus: its corpus.
        train: training questions; of more than `questions`, a seeded draw is asked.
        heldout: held-out questions; all are asked.
        questions: see `train`.
        k: passages looked at, fewer where the corpus has fewer.
        topk: passages that a search of the run returns; recorded.
        seed: of the draw.
        ef_search: section `retrieval`'s; None takes what the recall gate chose. At least k.
        threads: torch and faiss threads.
        encoder: a loaded model to use instead of the index's.

    Raises:
        ConfigError: no question.
        IntegrityError: index, corpus and model do not belong together.
    """
    import faiss

    if not train or not heldout:
        raise ConfigError("ceiling: no question to ask; expected some to train on and held out.")
    opened = open_index(index, corpus, ef_search=served_ef_search(index, ef_search))
    record, k = opened.record, min(k, len(opened))
    # A search finds no more than efSearch passages, and the service may have been given fewer.
    opened.ef_search = max(opened.ef_search, k)
    encoder = encoder or Encoder(
        record["model"]["name"], max_length=record["model"]["max_length"], threads=threads
    )
    check_model(encoder.identity, record, index)
    faiss.omp_set_num_threads(threads)
    places = np.random.default_rng(seed).permutation(len(train))[:questions]
    sets: dict[str, Any] = {}
    for name, asked in (("train", [train[i] for i in np.sort(places)]), ("heldout", heldout)):
        ranks = first_ranks(opened, encoder, asked, k)
        found = [sum(rank is not None and rank <= j for rank in ranks) for j in range(1, k + 1)]
        sets[name] = {
            "questions": len(asked),
            "found": found,
            "ceiling": [count / len(asked) for count in found],
        }
        if name == "heldout":
            sets[name]["first"] = {q.id: rank for q, rank in zip(asked, ranks, strict=True)}
        logger.info("%s: the answer is in the first %d passages for %s of %d", name, k, found[-1],
                    len(asked))  # fmt: skip
    opened.close()
    return {
        "k": k,
        "topk": min(topk, k),
        "index_sha256": record["index"]["sha256"],
        "ef_search": opened.ef_search,
        "model": encoder.identity.name,
        "sets": sets,
    }


def first_ranks(
    index: PassageIndex, encoder: Encoder, questions: Sequence[Question], k: int
) -> list[int | None]:
    """Rank, from 1, of the first of a question's k nearest passages that holds a golden answer, by
    the rule of `glimmer.heldout.passages.answer_found`; None where none does."""
    rows = index.candidates(encoder.queries([question.question for question in questions]))[0]
    ranks: list[int | None] = []
    for question, found in zip(questions, rows[:, :k].tolist(), strict=True):
        ranks.append(None)
        for rank, row in enumerate(found, start=1):
            if row >= 0 and _holds(index.passages[row]["contents"], question.golden_answers):
                ranks[-1] = rank
                break
    return ranks


def _holds(contents: str, golden: Sequence[str]) -> bool:
    return contains(" ".join(split_contents(contents)), golden)
