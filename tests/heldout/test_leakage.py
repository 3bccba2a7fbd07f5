"""Held-out questions that stand in training: each kind, counted once, with its best match."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimmer.assets import Question
from glimmer.heldout.leakage import _ngram_matches, _ngrams, find_leaks
from glimmer.heldout.paired import without_leaks
from tests.heldout.records import record


def question(i, text, answer="A"):
    return Question(i, text, [answer])


TRAIN = [
    question("t0", "Who directed The Long Night?", "Ada Lum"),
    question("t1", "Which river runs through the old town of Mokruth in the north?"),
    question("t2", "When was the bridge of Staidrus built?"),
]


def leaks(*heldout, **settings):
    return find_leaks(TRAIN, heldout, **({"ngram": 3, "min_overlap": 0.8} | settings))


def test_each_kind_is_found():
    found = leaks(
        question("h0", "Who directed The Long Night?", "ada lum"),
        question("h1", "who directed the LONG night"),
        question("h2", "Which river runs through the old town of Mokruth in the south?"),
        question("h3", "Who wrote The Short Day?"),
        question("h4", "???"),
    )
    assert found["counts"] == {"exact": 1, "normalised": 2, "ngram": 3, "any": 3}
    assert found["same_answer"]["exact"] == 1
    first = [leak for leak in found["found"] if leak["id"] == "h0"]
    assert {leak["kind"] for leak in first} == {"exact", "normalised", "ngram"}
    assert all(leak["train_id"] == "t0" and leak["same_answer"] for leak in first)
    (near,) = [leak for leak in found["found"] if leak["id"] == "h2"]
    # Articles aside: 10 words, 8 n-grams, of which 7 stand in t1.
    assert near["train_id"] == "t1" and near["score"] == pytest.approx(7 / 8)
    assert found["train"] == 3 and found["heldout"] == 5


def test_vectors_find_what_words_do_not():
    def vectors(texts):
        return np.array(
            [[1, 0] if "bridge" in t or "crossing" in t else [0, 1] for t in texts], "f4"
        )

    asked = question("h0", "In which year did they put up Staidrus' crossing?")
    assert leaks(asked)["counts"]["any"] == 0
    found = leaks(asked, min_similarity=0.95, vectors=vectors)
    assert found["counts"] == {"exact": 0, "normalised": 0, "ngram": 0, "embedding": 1, "any": 1}
    assert found["found"][0]["train_id"] == "t2"


WORDS = st.lists(st.sampled_from("a b c d e".split()), min_size=0, max_size=7).map(" ".join)


@given(st.lists(WORDS, min_size=1, max_size=6), st.lists(WORDS, min_size=1, max_size=6))
def test_ngram_matches_are_those_of_the_definition(train, heldout):
    found = {place: (match, score) for place, match, score in _ngram_matches(train, heldout, 2)}
    for place, text in enumerate(heldout):
        mine = _ngrams(text, 2)
        shares = [len(mine & _ngrams(other, 2)) / len(mine) if mine else 0.0 for other in train]
        if max(shares) == 0:
            assert place not in found
        else:
            assert found[place] == (shares.index(max(shares)), pytest.approx(max(shares)))


def test_the_result_without_them():
    old = {f"q{i}": record(f"q{i}", "correct" if i < 2 else "wrong") for i in range(6)}
    new = {f"q{i}": record(f"q{i}", "correct" if i < 5 else "wrong") for i in range(6)}
    found = {
        "train": 9,
        "settings": {},
        "counts": {"exact": 1, "ngram": 2, "embedding": 0, "any": 3},
        "same_answer": {},
        "found": [
            {"id": "q0", "kind": "exact"},
            {"id": "q3", "kind": "ngram"},
            {"id": "q4", "kind": "ngram"},
        ],
    }
    without = without_leaks(old, new, found, seed=0, resamples=100)["without"]
    assert sorted(without) == ["any", "exact", "ngram"]
    assert (without["exact"]["before"], without["exact"]["after"]) == (1, 4)
    assert without["any"]["questions"] == 3
    assert (without["any"]["gained"], without["any"]["lost"]) == (1, 0)
    found["found"] += [{"id": f"q{i}", "kind": "exact"} for i in range(6)]
    assert without_leaks(old, new, found, seed=0, resamples=9)["without"]["exact"] is None
