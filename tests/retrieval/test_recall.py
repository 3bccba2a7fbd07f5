"""The recall gate against numpy brute force."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from glimmer.errors import ConfigError, IntegrityError
from glimmer.files import read_json, write_json
from glimmer.retrieval import build_index, embed_shard, measure_recall
from glimmer.retrieval.index import open_index

from .test_index import brute_force


def test_recall_of_a_good_index(world, encoder):
    queries = [f"Who is the director of {title}?" for title in world.titles[:100]]
    verdict = measure_recall(
        world.index, world.corpus, world.vectors, queries=queries, k=3, encoder=encoder
    )
    embedded = encoder.queries(queries)
    exact = brute_force(world.matrix, embedded, 3)
    found = open_index(world.index, world.corpus).candidates(embedded)[0][:, :3]
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True)]
    assert verdict["gate"] == "recall" and verdict["passed"]
    assert verdict["measured"]["recall"] == pytest.approx(np.mean(hits) / 3)
    sweep = verdict["measured"]["recall_by_ef_search"]
    assert list(sweep) == ["8", "16", "32", "40"] and sweep["8"] <= sweep["40"]
    assert sweep["40"] == verdict["measured"]["recall"]
    smallest = str(verdict["measured"]["smallest_ef_search"])
    assert smallest == next(ef for ef, value in sweep.items() if value >= 0.99)
    assert verdict["threshold"] == {"min_recall": 0.99}
    assert verdict["measured_on"]["queries"] == 100 and verdict["measured_on"]["ef_search"] == 40


def test_lossy_index_fails_the_gate_and_shows_where(tmp_path, fake):
    """M = 2 and efSearch = 3 on random vectors: what fault 4 looks like."""
    from .conftest import make_rows, write_corpus

    corpus = write_corpus(tmp_path / "c.jsonl", make_rows(2000, seed=3))
    vectors = [tmp_path / "v.npy"]
    embed_shard(corpus, vectors[0], shard=0, num_shards=1, model="fake", encoder=fake())
    build_index(vectors, corpus, tmp_path / "index", M=2, ef_construction=4, ef_search=3)
    queries = [f"query {i}" for i in range(200)]
    encoder = fake()
    verdict = measure_recall(
        tmp_path / "index", corpus, vectors, queries=queries, k=3, encoder=encoder
    )
    embedded = encoder.queries(queries)
    exact = brute_force(np.load(vectors[0]), embedded, 3)
    found = open_index(tmp_path / "index", corpus).candidates(embedded)[0][:, :3]
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True)]
    assert verdict["measured"]["recall"] == pytest.approx(np.mean(hits) / 3)
    assert not verdict["passed"] and verdict["measured"]["recall"] < 0.9
    assert verdict["measured"]["smallest_ef_search"] is None
    worst = verdict["details"][0]
    assert worst["exact"] == exact[queries.index(worst["query"])].tolist()


def test_the_chosen_ef_search_is_handed_over(tmp_path, world, encoder):
    from types import SimpleNamespace

    from glimmer.retrieval.index import served_ef_search
    from glimmer.retrieval.recall import hand_over

    here = SimpleNamespace(index=tmp_path / "index")
    shutil.copytree(world.index, here.index)
    verdict = measure_recall(
        here.index, world.corpus, world.vectors, queries=world.titles, k=3, encoder=encoder
    )
    assert served_ef_search(here.index, None) is None  # nothing chosen: the index's own
    smallest = verdict["measured"]["smallest_ef_search"]
    assert smallest < 40
    for choose, expected in (("smallest", smallest), ("index", 40)):
        hand_over(verdict, here.index, choose=choose)
        chosen = read_json(tmp_path / "search.json")
        assert chosen["ef_search"] == served_ef_search(here.index, None) == expected
        assert chosen["recall"] >= 0.99 and chosen["k"] == 3
    assert served_ef_search(here.index, 17) == 17  # the setting comes first
    record = read_json(here.index / "index.json")
    record["index"]["sha256"] = "0" * 64
    write_json(here.index / "index.json", record)
    with pytest.raises(IntegrityError, match="Run the recall gate again"):
        served_ef_search(here.index, None)


def test_the_queries_are_a_seeded_draw():
    from glimmer.retrieval.recall import sampled

    names = [f"q{i}" for i in range(500)]
    drawn = sampled(names, 100)
    assert drawn == sampled(names, 100) and drawn != sampled(names, 100, seed=1)
    assert len({*drawn}) == 100 and drawn == sorted(drawn, key=names.index) and drawn != names[:100]
    assert sampled(names, 9999) == names


def test_refusals(world, encoder, fake, tmp_path):
    def measure(**changes):
        settings = {"queries": ["a"], "k": 3, "encoder": encoder} | changes
        return measure_recall(world.index, world.corpus, world.vectors, **settings)

    with pytest.raises(ConfigError, match=r"recall\.queries"):
        measure(queries=[])
    with pytest.raises(ConfigError, match=r"recall\.min_recall: found 1\.5"):
        measure(min_recall=1.5)
    with pytest.raises(ConfigError, match=r"ef_search: found 2, below recall\.k = 3"):
        measure(ef_search=2)
    with pytest.raises(ConfigError, match=r"recall\.k: found 301"):
        measure(k=301)
    with pytest.raises(IntegrityError, match="sha256"):
        measure(encoder=fake())


def test_other_vectors_than_the_index(small, fake):
    sidecar = small.index / "index.json"
    record = read_json(sidecar)
    record["vectors"][0]["sha256"] = "0" * 64
    write_json(sidecar, record)
    with pytest.raises(IntegrityError, match="built from other vectors"):
        measure_recall(small.index, small.corpus, small.vectors, queries=["a"], k=3, encoder=fake())
