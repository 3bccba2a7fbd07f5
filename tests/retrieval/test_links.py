"""Links made all at once, against HNSW's heuristic written down vector by vector."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch

from glimmer.errors import ConfigError
from glimmer.files import read_json
from glimmer.retrieval import build_index
from glimmer.retrieval.cagra import check_gpu
from glimmer.retrieval.hnsw import assemble, draw_levels, new_index
from glimmer.retrieval.index import storage_of
from glimmer.retrieval.links import (
    diversified,
    exact_neighbours,
    graph_links,
    neighbours_by_parts,
    with_reverse,
)
from glimmer.retrieval.sizes import gpu_bytes, gpu_parts


def unit(n, d, seed):
    x = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def heuristic(x, row, candidates, kept):
    """Algorithm 4 of the paper, one candidate after the other."""
    chosen = []
    for c in sorted({*candidates} - {-1, row}, key=lambda c: -float(x[row] @ x[c])):
        if len(chosen) < kept and all(x[c] @ x[row] >= x[c] @ x[other] for other in chosen):
            chosen.append(c)
    return chosen


def test_chosen_by_the_heuristic():
    x = unit(200, 12, 0)
    rng = np.random.default_rng(1)
    rows = np.arange(0, 200, 3)
    candidates = rng.integers(-1, 200, (len(rows), 40)).astype(np.int32)
    links = diversified(
        torch.from_numpy(x), torch.from_numpy(rows), torch.from_numpy(candidates), 6, 10
    )
    for row, given, found in zip(rows, candidates, links.tolist(), strict=True):
        expected = heuristic(x, row, given.tolist(), 6)
        assert found == expected + [-1] * (10 - len(expected))


def test_every_link_gets_its_reverse_while_there_is_room():
    links = torch.tensor([[1, 2, -1], [-1, -1, -1], [0, 1, 3], [1, -1, -1]], dtype=torch.int32)
    found = with_reverse(links.clone()).tolist()
    assert found[0] == [1, 2, -1]  # 2 -> 0 is there already
    # 0 and 3 have 1 as their first, 2 as its second.
    assert found[1] == [0, 3, 2]
    assert found[2] == [0, 1, 3] and found[3] == [1, 2, -1]
    full = torch.tensor([[1, -1], [2, 3], [0, -1], [0, -1], [1, -1]], dtype=torch.int32)
    assert with_reverse(full.clone()).tolist()[1] == [2, 3]  # no room for 0 and 4


def test_reverse_links_do_not_depend_on_how_many_are_looked_at():
    rng = np.random.default_rng(0)
    links = np.full((500, 8), -1, np.int32)
    for row in range(500):
        # A few are everybody's neighbours: rows that run full.
        count = rng.integers(0, 7)
        near = (500 * rng.random(30) ** 3).astype(int)
        near = list(dict.fromkeys(near[near != row].tolist()))[:count]
        links[row, : len(near)] = near
    # One link after the other: the nearest first, and of these the smaller row.
    expected = [[link for link in row if link >= 0] for row in links.tolist()]
    pairs = [(t, rank, s) for s, row in enumerate(expected) for rank, t in enumerate(row)]
    own = [list(row) for row in expected]
    for target, _, source in sorted(pairs):
        if source not in own[target] and len(expected[target]) < 8:
            expected[target].append(source)
    expected = [row + [-1] * (8 - len(row)) for row in expected]
    for at_once in (60, 500, 1 << 20):
        assert with_reverse(torch.from_numpy(links.copy()), at_once).tolist() == expected


def exact_search(part):
    """What CAGRA is asked for: the nearest of a part, and scores."""

    def search(queries, k):
        scores, rows = (queries.float() @ part.float().T).topk(k, dim=1)
        return rows, scores

    return search


@pytest.mark.parametrize("parts", [1, 3])
def test_neighbours_found_by_parts_are_those_of_the_whole(parts, monkeypatch):
    monkeypatch.setattr("glimmer.retrieval.links._QUERIES", 64)
    x = torch.from_numpy(unit(300, 16, 4))
    found = neighbours_by_parts(x, 20, exact_search, parts=parts, device="cpu")
    assert found.dtype == torch.int32
    assert (found.long() == exact_neighbours(x, 20)).all()


def test_parts_with_fewer_vectors_than_neighbours():
    x = torch.from_numpy(unit(9, 4, 5))
    found = neighbours_by_parts(x, 8, exact_search, parts=4, device="cpu")
    assert (found.long() == exact_neighbours(x, 8)).all()


def test_islands_are_joined(tmp_path):
    """Clusters that a graph of neighbours alone leaves apart: found as well as by insertion."""
    rng = np.random.default_rng(0)
    x = np.repeat(unit(60, 24, 2), 50, 0) + 0.04 * rng.standard_normal((3000, 24), np.float32)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    queries = x[::10] + 0.01 * unit(300, 24, 3)
    truth = np.argsort(-(queries @ x.T), axis=1)[:, :5]

    def recall(index):
        found = index.search(queries, 5)[1]
        return np.mean([len({*a} & {*b}) / 5 for a, b in zip(found, truth, strict=True)])

    np.save(tmp_path / "x.npy", x)
    levels, vectors = draw_levels(len(x), 16), torch.from_numpy(x)
    links = graph_links(vectors, exact_neighbours, levels, degree=32, M=16)
    assert [row.shape for row in links] == [(3000, 32), *((n, 16) for n in above(levels))]

    def built(links):
        index = new_index(24, 16, "fp32")
        assemble(index, [tmp_path / "x.npy"], levels, links)
        index.hnsw.efSearch = 48
        return index

    alone = exact_neighbours(vectors, 32).numpy().astype(np.int32)
    assert recall(built(links)) > 0.98 > recall(built([alone, *links[1:]]))


def above(levels):
    return [int((levels >= level).sum()) for level in range(1, levels.max() + 1)]


@pytest.mark.parametrize("kind", ["fp32", "sq8"])
def test_an_assembled_index_is_as_one_that_was_filled(tmp_path, kind):
    """Each vector's row of links on each level, and the vectors, as faiss itself reads them."""
    x = unit(900, 16, 5)
    for i, part in enumerate(np.array_split(x, 3)):
        np.save(tmp_path / f"{i}.npy", part)
    levels = draw_levels(900, 4)
    links = graph_links(torch.from_numpy(x), exact_neighbours, levels, degree=12, M=4)
    index = new_index(16, 4, kind)
    assemble(index, [tmp_path / f"{i}.npy" for i in range(3)], levels, links)
    hnsw = index.hnsw
    neighbors = faiss.vector_to_array(hnsw.neighbors)
    offsets = faiss.vector_to_array(hnsw.offsets)
    for level, of_level in enumerate(links):
        members = np.flatnonzero(levels >= level)
        assert ((of_level == -1) | np.isin(of_level, members)).all()
        for row, member in zip(of_level, members, strict=True):
            begin = offsets[member] + hnsw.cum_nb_neighbors(level)
            assert (neighbors[begin : begin + len(row)] == row).all()
            assert member not in row
    assert hnsw.max_level == levels.max() == levels[hnsw.entry_point]
    assert index.ntotal == index.storage.ntotal == 900
    tolerance = 0.02 if kind == "sq8" else 0
    for row in (0, 450, 899):
        assert np.abs(index.reconstruct(row) - x[row]).max() <= tolerance
    index.hnsw.efSearch = 200
    assert (index.search(x, 1)[1][:, 0] == np.arange(900)).mean() > 0.99


def test_one_vector_in_m_reaches_the_next_level():
    levels = draw_levels(200_000, 16)
    counts = above(levels)
    assert abs(counts[0] / 200_000 - 1 / 16) < 0.003
    assert abs(counts[1] / counts[0] - 1 / 16) < 0.01
    assert (draw_levels(50, 16) == draw_levels(50, 16)).all() and levels.min() == 0


@pytest.mark.parametrize("parts", [1, 3])
def test_an_index_of_the_gpus_way_is_served_as_any_other(small, monkeypatch, parts):
    """The whole backend, with exact neighbours where CAGRA would be asked."""
    import glimmer.retrieval.cagra as cagra
    from glimmer.retrieval.index import open_index

    asked = []

    def graph(vectors, k, **settings):
        asked.append((len(vectors), settings))
        return exact_neighbours(vectors, k)

    def search(part, k, **settings):
        asked.append((len(part), settings))
        return exact_search(part)

    monkeypatch.setattr(cagra, "check_gpu", lambda *_, **__: parts)
    monkeypatch.setattr(cagra, "cagra_graph", graph)
    monkeypatch.setattr(cagra, "cagra_search", search)
    monkeypatch.setattr(cagra, "_DEVICE", "cpu")
    monkeypatch.setattr(cagra, "_EXACT_BELOW", 100)
    queries = np.concatenate([np.load(path) for path in small.vectors])[:40]
    before = open_index(small.index, small.corpus).candidates(queries)[0][:, 0]
    for storage in ("fp32", "fp16", "sq8"):
        out = small.base / storage
        build_index(
            *(small.vectors, small.corpus, out), M=8, ef_search=40, storage=storage,
            backend="cagra", graph_degree=32, intermediate_graph_degree=48,
        )  # fmt: skip
        record = read_json(out / "index.json")
        assert (record["backend"], record["deterministic"]) == ("cagra", False)
        assert (record["graph_degree"], record["parts"]) == (32, parts)
        assert record["build_algo"] == "nn_descent"
        opened = open_index(out, small.corpus)
        assert storage_of(opened._faiss) == storage
        assert (opened.candidates(queries)[0][:, 0] == before).all()
    assert {size for size, _ in asked} >= ({200} if parts == 1 else {66, 67})
    assert all(s == {"intermediate": 48, "build_algo": "nn_descent"} for _, s in asked)


def test_parts_cost_no_recall(tmp_path, monkeypatch):
    """recall@5 of the same vectors linked in one part and in four."""
    import glimmer.retrieval.cagra as cagra

    monkeypatch.setattr(cagra, "cagra_graph", lambda vectors, k, **_: exact_neighbours(vectors, k))
    monkeypatch.setattr(cagra, "cagra_search", lambda part, k, **_: exact_search(part))
    monkeypatch.setattr(cagra, "_DEVICE", "cpu")
    monkeypatch.setattr(cagra, "_EXACT_BELOW", 100)
    rng = np.random.default_rng(0)
    x = np.repeat(unit(60, 24, 2), 50, 0) + 0.04 * rng.standard_normal((3000, 24), np.float32)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    queries = x[::10] + 0.01 * unit(300, 24, 3)
    truth = np.argsort(-(queries @ x.T), axis=1)[:, :5]
    levels = draw_levels(3000, 16)
    for parts in (1, 4):
        links = cagra.link_on_gpu(
            [tmp_path / "x.npy"], levels, 24, M=16, graph_degree=32, intermediate_degree=48,
            build_algo="nn_descent", parts=parts,
        )  # fmt: skip
        index = new_index(24, 16, "fp32")
        assemble(index, [tmp_path / "x.npy"], levels, links)
        index.hnsw.efSearch = 48
        found = index.search(queries, 5)[1]
        recall = np.mean([len({*a} & {*b}) / 5 for a, b in zip(found, truth, strict=True)])
        assert recall > 0.98


def test_without_cuvs_it_is_refused_by_name(small):
    with pytest.raises(ConfigError, match=r"index\.backend: found 'cagra'.*without cuVS"):
        build_index(small.vectors, small.corpus, small.base / "new", backend="cagra")
    assert not (small.base / "new").exists()


def test_a_gpu_that_is_too_small_is_refused_with_the_sum(monkeypatch):
    import faiss

    monkeypatch.setattr(faiss, "GpuIndexCagra", object, raising=False)
    degrees = {"graph_degree": 64, "intermediate_degree": 128}
    with pytest.raises(ConfigError, match="see no GPU"):
        check_gpu(1000, 768, **degrees)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    card = type("Card", (), {"total_memory": 40 * 10**9})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A card")
    # Too few for wiki-18's links, which are not made in parts.
    card.total_memory = 14 * 10**9
    need = gpu_bytes(21_015_324, 768, 64, 128)
    with pytest.raises(ConfigError, match=rf"{need / 1e9:.1f} GB on a GPU.*A card has 14\.0 GB"):
        check_gpu(21_015_324, 768, **degrees)
    card.total_memory = need
    assert check_gpu(21_015_324, 768, **degrees) == 1
    card.total_memory = need - 1
    assert check_gpu(21_015_324, 768, **degrees) == 2


def test_parts_of_wiki18_by_card():
    """docs/retrieval.md's table."""
    found = {
        gb: gpu_parts(21_015_324, 768, 64, 128, gb * 10**9) for gb in (150, 141, 80, 48, 40, 24)
    }
    assert found == {150: 1, 141: 1, 80: 2, 48: 2, 40: 3, 24: 5}
