"""The retrieval ceiling against a search by numpy, and what of it was reached."""

from __future__ import annotations

import numpy as np
import pytest

from glimmer.assets import Question
from glimmer.errors import ConfigError, IntegrityError
from glimmer.files import write_json
from glimmer.heldout.ceiling import measure_ceiling
from glimmer.heldout.reached import reached
from glimmer.heldout.report_ceiling import ceiling, ceiling_sentence
from glimmer.retrieval import build_index, embed_shard
from tests.retrieval.conftest import FakeEncoder, make_rows, write_corpus


@pytest.fixture
def world(tmp_path):
    rows = make_rows(120, seed=0)
    corpus = write_corpus(tmp_path / "corpus.jsonl", rows)
    vectors = tmp_path / "v.npy"
    embed_shard(corpus, vectors, shard=0, num_shards=1, model="fake", encoder=FakeEncoder())
    build_index([vectors], corpus, tmp_path / "index", M=8, ef_construction=60, ef_search=60)
    return tmp_path, corpus, rows, np.load(vectors)


def asked(rows, start, count):
    """Questions whose answer is the title of a passage, if the ranks are kind to them."""
    return [
        Question(f"q{i}", f"Question {i}?", [rows[i % len(rows)]["contents"].split('"')[1]])
        for i in range(start, start + count)
    ]


def measured(world, **changes):
    base, corpus, rows, _ = world
    settings = {
        "train": asked(rows, 0, 200), "heldout": asked(rows, 500, 90), "questions": 50, "k": 20,
        "topk": 3, "encoder": FakeEncoder(),
    } | changes  # fmt: skip
    return measure_ceiling(base / "index", corpus, **settings)


def test_ranks_are_those_of_exact_search(world):
    _, _, rows, vectors = world
    found = measured(world)
    heldout = asked(rows, 500, 90)
    queries = FakeEncoder().queries([q.question for q in heldout])
    order = np.argsort(-(queries @ vectors.T), axis=1)[:, :20]
    for question, near in zip(heldout, order, strict=True):
        answer = question.golden_answers[0].lower()
        places = [r for r, row in enumerate(near, 1) if answer in rows[row]["contents"].lower()]
        assert found["sets"]["heldout"]["first"][question.id] == (places[0] if places else None)
    ranks = list(found["sets"]["heldout"]["first"].values())
    counts = [sum(r is not None and r <= k for r in ranks) for k in range(1, 21)]
    assert found["sets"]["heldout"]["found"] == counts and counts[-1] > 3
    assert found["sets"]["heldout"]["ceiling"] == [c / 90 for c in counts]
    assert found["sets"]["train"]["questions"] == 50 and "first" not in found["sets"]["train"]
    assert measured(world) == found


def test_k_is_bounded_by_the_corpus_alone(world):
    found = measured(world, k=500)
    assert (found["k"], found["ef_search"]) == (120, 120)
    assert found["sets"]["heldout"]["found"][-1] == 90  # every passage is found
    found = measured(world, ef_search=12)
    assert (found["k"], found["ef_search"]) == (20, 20)


def test_the_gates_choice_is_searched_with(world):
    base = world[0]
    found = measured(world)
    chosen = {"ef_search": 24, "index_sha256": found["index_sha256"]}
    write_json(base / "search.json", chosen)
    assert (found["ef_search"], measured(world)["ef_search"]) == (60, 24)
    write_json(base / "search.json", chosen | {"index_sha256": "0" * 64})
    with pytest.raises(IntegrityError, match="Run the recall gate again"):
        measured(world)


def test_nothing_to_ask(world):
    with pytest.raises(ConfigError, match="no question to ask"):
        measured(world, heldout=[])


FOUND = {
    "k": 3,
    "topk": 2,
    "sets": {
        "train": {"questions": 4, "found": [1, 1, 2], "ceiling": [0.25, 0.25, 0.5]},
        "heldout": {
            "questions": 4,
            "found": [1, 3, 3],
            "ceiling": [0.25, 0.75, 0.75],
            "first": {"a": 1, "b": 2, "c": None, "d": 2},
        },
    },
}


def records(**right):
    return {name: {"scores": {"exact_match": value}} for name, value in right.items()}


def test_what_was_reached():
    old, new = records(a=0, b=1, c=1, d=0), records(a=1, b=1, c=1, d=0)
    found = reached(FOUND, old, new)
    assert found["reached"]["questions"] == 3  # c is not within two passages
    assert (found["reached"]["before"]["correct"], found["reached"]["after"]["correct"]) == (1, 2)
    assert found["reached"]["after"]["rate"] == pytest.approx(2 / 3)
    assert "first" not in found["sets"]["heldout"] and found["sets"]["train"]["found"] == [1, 1, 2]
    text = ceiling(found).replace("\xa0", " ")
    assert 'id="ceiling"' in text and "75.0 %" in text and "2 (66.7 %) after" in text
    assert "2 (66.7\xa0%) after training" in ceiling_sentence(found)
    nothing = {
        **FOUND,
        "sets": {**FOUND["sets"], "heldout": FOUND["sets"]["heldout"] | {"first": {}}},
    }
    assert "No question" in ceiling(reached(nothing, old, new))
    assert ceiling(None) == ""
