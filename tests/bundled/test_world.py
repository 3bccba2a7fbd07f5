"""The toy world is a task: enough of it, disjoint, answerable from its passages alone."""

import json
import re
from pathlib import Path

import pytest

from glimmer.bundled.world import make_world, write_world
from glimmer.files import sha256_file

SHIPPED = Path(__file__).parents[2] / "resources" / "toy_world"


@pytest.fixture(scope="module")
def world():
    return make_world(0)


def read(name):
    return [json.loads(line) for line in (SHIPPED / name).read_text().splitlines()]


def test_what_ships_is_what_the_rule_makes(tmp_path):
    write_world(tmp_path, seed=0, train=2400, heldout=600)
    for name in ("corpus.jsonl", "train.jsonl", "heldout.jsonl", "manifest.json"):
        assert sha256_file(tmp_path / name) == sha256_file(SHIPPED / name), name


def test_sizes():
    assert len(read("corpus.jsonl")) >= 3000
    assert len(read("train.jsonl")) >= 1500
    assert len(read("heldout.jsonl")) >= 400


def test_the_corpus_has_wiki_18s_layout():
    for row in read("corpus.jsonl"):
        assert set(row) == {"id", "contents"}
        assert re.fullmatch(r'"[^"\n]+"\n.+', row["contents"], re.S)


def test_no_entity_has_training_and_heldout_questions(world):
    train, heldout = world.split()
    assert not {q.entity for q in train} & {q.entity for q in heldout}
    shipped = {
        name: {r["question"] for r in read(f"{name}.jsonl")} for name in ("train", "heldout")
    }
    assert not shipped["train"] & shipped["heldout"]


def test_each_answer_stands_in_its_entitys_passage_and_not_in_the_question(world):
    for question in world.questions:
        entity = world.entities[question.entity]
        assert question.answer in entity.contents
        assert question.answer not in question.text


def test_titles_are_unique_and_answers_cannot_be_guessed(world):
    titles = [entity.title for entity in world.entities]
    assert len(set(titles)) == len(titles)
    by_kind = {}
    for row in read("heldout.jsonl"):
        by_kind.setdefault(row["type"], []).append(row["golden_answers"][0])
    # Always giving the most frequent answer of its kind is right for few questions.
    guessed = sum(max(map(answers.count, set(answers))) for answers in by_kind.values())
    assert guessed / 600 < 0.15


def test_seeds_differ_and_repeat(tmp_path):
    assert make_world(5) == make_world(5)
    assert make_world(5) != make_world(6)


def test_too_many_questions_are_refused(tmp_path):
    with pytest.raises(ValueError, match="heldout: 999999 questions asked for"):
        write_world(tmp_path, seed=0, train=10, heldout=999_999)
