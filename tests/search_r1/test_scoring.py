"""Scores: SQuAD's own examples, and properties that hold for any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimmer.search_r1.scoring import contains, exact_match, f1, normalize_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Hague.", "hague"),
        ("a U.S. president", "us president"),
        ("Theatre", "theatre"),
        ("An apple, a day", "apple day"),
        ("“quoted”", "“quoted”"),
        ("", ""),
        ("the", ""),
    ],
)
def test_normalisation_is_squads(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golden", "right"),
    [
        ("the hague", ["The Hague"], True),
        ("Hague, The", ["The Hague"], True),
        ("In The Hague", ["The Hague"], False),
        ("", ["x"], False),
        ("", ["The"], False),
        ("The", ["The"], True),
        ("an", ["The"], False),
        ("x", [], False),
        ("b", ["a b", "c"], True),
    ],
)
def test_exact_match(prediction, golden, right):
    assert exact_match(prediction, golden) is right


def test_f1_by_hand():
    # 2 shared words of 3 said and 4 golden: 2 * 2 / 7.
    assert f1("red green blue", ["red green grey white"]) == pytest.approx(4 / 7)
    assert f1("x x", ["x"]) == pytest.approx(2 / 3)
    assert f1("x", ["y", "x"]) == 1.0
    assert f1("x", []) == 0.0


def test_contains_stops_at_word_borders():
    assert contains("It is The Hague, I think", ["Hague"])
    assert not contains("Hagues", ["Hague"])
    assert not contains("anything", ["the"])


@given(st.text(), st.text())
def test_scores_agree_with_each_other(prediction, answer):
    assert normalize_answer(normalize_answer(prediction)) == normalize_answer(prediction)
    assert 0.0 <= f1(prediction, [answer]) <= 1.0
    if exact_match(prediction, [answer]) and normalize_answer(answer):
        assert f1(prediction, [answer]) == 1.0
        assert contains(prediction, [answer])
    assert exact_match(answer, [answer])
