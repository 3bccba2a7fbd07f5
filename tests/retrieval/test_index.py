"""HNSW against numpy brute force, equal builds, and indexes to be refused (faults 4, 7, 8)."""

from __future__ import annotations

import json
import os
import random
import signal

import faiss
import numpy as np
import pytest

from glimmer.errors import ConfigError, DataError, IntegrityError
from glimmer.files import read_json, sha256_file, write_json
from glimmer.retrieval import build_index
from glimmer.retrieval.hnsw import blocks, fill, new_index, sample
from glimmer.retrieval.index import check_k, open_index, read_offsets
from glimmer.retrieval.sizes import build_bytes, index_bytes

from .conftest import write_corpus

FILES = ("index.faiss", "offsets.npy", "index.json")


def files_of(folder):
    return [(folder / name).read_bytes() for name in FILES]


def brute_force(matrix, queries, k):
    """Rows [q, k] by inner product in double precision, ties to the smaller row."""
    scores = np.round(queries.astype(np.float64) @ matrix.astype(np.float64).T, 6)
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def test_search_equals_brute_force(world, encoder):
    queries = encoder.queries(world.titles)
    opened = open_index(world.index, world.corpus, ef_search=200)
    rows, scores = opened.candidates(queries)
    assert (rows[:, :5] == brute_force(world.matrix, queries, 5)).mean() > 0.999
    direct = np.take_along_axis(queries @ world.matrix.T, rows, 1)
    np.testing.assert_allclose(scores, direct, atol=1e-5)
    assert (rows[:, 0] == np.arange(300)).mean() > 0.97


def test_offsets_lead_to_passages(world):
    opened = open_index(world.index, world.corpus)
    assert [opened.passages[row] for row in (0, 7, 299)] == [world.rows[r] for r in (0, 7, 299)]
    with pytest.raises(IndexError):
        opened.passages[-1]


def test_same_file_twice_and_in_any_order_of_shards(small):
    again = small.base / "again"
    build_index(
        small.vectors[::-1], small.corpus, again, M=8, ef_construction=40, ef_search=40, threads=1
    )
    assert files_of(again) == files_of(small.index)
    assert read_json(again / "index.json")["deterministic"] is True


def test_killed_at_any_moment_then_built_again(small):
    """kill -9 before each rename: nothing that looks whole, and then the same files."""
    expected = files_of(small.index)
    for killed_at in range(3):
        child = os.fork()
        if child == 0:
            calls = iter(range(3))

            def replace(source, target, *, calls=calls, killed_at=killed_at, real=os.replace):
                if next(calls) == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                real(source, target)

            os.replace = replace
            build_index(small.vectors, small.corpus, small.index, M=8, ef_construction=40)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        with pytest.raises(IntegrityError, match="never finished"):
            open_index(small.index, small.corpus)
        build_index(small.vectors, small.corpus, small.index, M=8, ef_construction=40, ef_search=40)
        assert files_of(small.index) == expected


def test_record(world, encoder):
    record = read_json(world.index / "index.json")
    assert record["metric"] == "inner_product"
    assert (record["n"], record["d"], record["M"]) == (300, 384, 16)
    assert record["corpus"]["sha256"] == sha256_file(world.corpus)
    assert [shard["sha256"] for shard in record["vectors"]] == list(map(sha256_file, world.vectors))
    assert record["model"] == encoder.identity.as_dict()


def test_topk_is_a_prefix_and_company_does_not_matter(world, encoder):
    queries = encoder.queries(world.titles[:40])
    opened = open_index(world.index, world.corpus)
    together = opened.candidates(queries)
    alone = [opened.candidates(query[None]) for query in queries]
    assert (together[0] == np.concatenate([rows for rows, _ in alone])).all()
    assert (together[1] == np.concatenate([scores for _, scores in alone])).all()


def test_equal_scores_are_ordered_by_row(tmp_path, fake, rows):
    from glimmer.retrieval import embed_shard

    corpus = write_corpus(
        tmp_path / "c.jsonl", [rows[0] | {"id": str(i)} for i in range(5)] + rows[1:55]
    )
    out = tmp_path / "v.npy"
    embed_shard(corpus, out, shard=0, num_shards=1, model="fake", encoder=fake())
    build_index([out], corpus, tmp_path / "index", M=8, ef_construction=64, ef_search=59)
    opened = open_index(tmp_path / "index", corpus)
    assert opened.candidates(np.load(out)[:1])[0][0, :5].tolist() == list(range(5))


def test_padding_of_faiss_is_last_and_marked(world, monkeypatch):
    opened = open_index(world.index, world.corpus)

    class Short:
        def search(self, queries, count, params):
            return np.array([[0.5, 0.7, 0.8, 0.8]]), np.array([[3, 9, -1, -1]])

    opened._faiss = Short()
    assert opened.candidates(np.zeros((1, 384)))[0].tolist() == [[9, 3, -1, -1]]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path, **changes):
    write_json(path, read_json(path) | changes)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda s: truncate(s.index / "index.faiss"), "truncated or of another build"),
        (lambda s: (s.index / "index.faiss").unlink(), "0 bytes, expected"),
        (lambda s: flip(s.index / "index.faiss"), "sha256 differs"),
        (lambda s: (s.index / "index.json").unlink(), "never finished"),
        (lambda s: edit(s.index / "index.json", format=0), "format 0, this code reads 2"),
        (lambda s: flip(s.corpus), "was built from another corpus"),
        (lambda s: truncate(s.corpus), "was built from another corpus"),
        (lambda s: s.corpus.unlink(), "was built from another corpus"),
        (lambda s: truncate(s.index / "offsets.npy"), "cannot be opened"),
    ],
)
def test_damaged_index_is_refused(small, harm, says):
    harm(small)
    with pytest.raises(IntegrityError, match=says) as raised:
        open_index(small.index, small.corpus)
    assert str(small.index) in str(raised.value)


def test_sizes_alone_find_truncation(small):
    truncate(small.index / "index.faiss")
    with pytest.raises(IntegrityError, match="truncated"):
        open_index(small.index, small.corpus, verify=False)


@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
def test_damaged_offsets_are_refused_before_the_service_starts(small, harm):
    """A flipped bit would serve passages that begin and end elsewhere."""
    path = small.index / "offsets.npy"
    data = path.read_bytes()
    match harm:
        case "flip":
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
        case "cut":
            path.write_bytes(data[:-8])
        case "gone":
            path.unlink()
    with pytest.raises(IntegrityError, match=r"offsets\.npy: is not the file that was written"):
        read_offsets(small.index, small.corpus)


def test_offsets_of_another_corpus(small, other_rows):
    with pytest.raises(IntegrityError, match="another corpus"):
        read_offsets(small.index, write_corpus(small.base / "other.jsonl", other_rows))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda s: s.vectors.pop(1), r"found the shards \[0, 2\], expected 0 to 2, each once"),
        (lambda s: s.vectors.append(s.vectors[0]), r"\[0, 0, 1, 2\], expected 0 to 2"),
        (lambda s: s.vectors.clear(), "no shard of vectors"),
        (lambda s: s.vectors[1].unlink(), "is missing"),
        (lambda s: s.vectors[1].with_suffix(".json").unlink(), "is missing"),
        (lambda s: truncate(s.vectors[2]), "truncated or damaged"),
        (lambda s: flip(s.vectors[2]), "truncated or damaged"),
    ],
)
def test_incomplete_shards_are_refused(small, harm, says):
    """Fault 8, of vectors; of a corpus in parts: tests/assets/test_unpack.py."""
    harm(small)
    with pytest.raises(IntegrityError, match=says):
        build_index(small.vectors, small.corpus, small.base / "new")
    assert not (small.base / "new").exists()


def test_shards_of_another_corpus_or_model(small, other_rows):
    other = write_corpus(small.base / "other.jsonl", other_rows)
    with pytest.raises(IntegrityError, match="holds vectors of another corpus"):
        build_index(small.vectors, other, small.base / "new")
    sidecar = small.vectors[1].with_suffix(".json")
    edit(sidecar, model=read_json(sidecar)["model"] | {"passage_prefix": "passage: "})
    with pytest.raises(IntegrityError, match="passage_prefix 'passage: ' instead of ''"):
        build_index(small.vectors, small.corpus, small.base / "new")


@pytest.mark.parametrize("name", ["M", "ef_construction", "ef_search", "threads"])
def test_parameters_out_of_range(small, name):
    with pytest.raises(ConfigError, match=rf"index\.{name}: found 0"):
        build_index(small.vectors, small.corpus, small.base / "new", **{name: 0})


def test_disk_full_while_writing_keeps_nothing_half(small, full_disk):
    """Fault 7; a truncated file: below, and before the service starts, test_launch.py."""
    (full_disk / "ballast").write_bytes(b"\0" * 70_000)
    with pytest.raises(DataError, match="No space left") as raised:
        build_index(small.vectors, small.corpus, full_disk / "index", M=8)
    assert "vectors are kept" in str(raised.value)
    left = sorted(path.name for path in (full_disk / "index").iterdir())
    assert left in ([], ["offsets.npy"])


@pytest.mark.parametrize(
    ("k", "ef_search", "n", "says"),
    [
        (0, 64, 300, "found 0, expected at least 1"),
        (301, 400, 300, "the corpus has 300 passages"),
        (10, 9, 300, "found 9, below retrieval.default_topk = 10"),
    ],
)
def test_k_that_cannot_be_answered(k, ef_search, n, says):
    with pytest.raises(ConfigError, match=says):
        check_k(k, ef_search, n, "retrieval.default_topk")


def test_random_truncations_never_load(small):
    """Whatever is left of the index file, it is refused, never searched."""
    data = (small.index / "index.faiss").read_bytes()
    rng = random.Random(0)
    for _ in range(20):
        (small.index / "index.faiss").write_bytes(data[: rng.randrange(len(data))])
        with pytest.raises(IntegrityError):
            open_index(small.index, small.corpus, verify=False)
    assert json.loads((small.index / "index.json").read_text())["n"] == 200


@pytest.mark.parametrize("storage", ["fp16", "sq8"])
def test_smaller_storage(world, encoder, tmp_path, storage):
    for name in ("once", "twice"):
        build_index(
            world.vectors, world.corpus, tmp_path / name, M=16, ef_construction=64, ef_search=40,
            storage=storage,
        )  # fmt: skip
    assert files_of(tmp_path / "once") == files_of(tmp_path / "twice")
    record = read_json(tmp_path / "once" / "index.json")
    assert record["storage"] == storage
    assert record["index"]["bytes"] < read_json(world.index / "index.json")["index"]["bytes"]
    assert abs(record["index"]["bytes"] - index_bytes(300, 384, 16, storage)) < 8000
    queries = encoder.queries(world.titles)
    rows = open_index(tmp_path / "once", world.corpus).candidates(queries)[0][:, :5]
    exact = brute_force(world.matrix, queries, 5)
    hits = [len(set(a) & set(b)) for a, b in zip(rows.tolist(), exact.tolist(), strict=True)]
    assert np.mean(hits) / 5 > {"fp16": 0.99, "sq8": 0.95}[storage]


def test_storage_other_than_recorded(small):
    edit(small.index / "index.json", storage="sq8")
    with pytest.raises(IntegrityError, match=r"as fp32, index\.json says sq8"):
        open_index(small.index, small.corpus)


@pytest.mark.parametrize("name", ["storage", "backend"])
def test_unknown_storage_or_backend(small, name):
    with pytest.raises(ConfigError, match=rf"index\.{name}: found 'x', expected one of"):
        build_index(small.vectors, small.corpus, small.base / "new", **{name: "x"})


@pytest.mark.parametrize("storage", ["fp32", "fp16", "sq8"])
def test_no_array_is_copied_while_it_grows(tmp_path, storage):
    """Room is reserved: faiss' arrays stay where they are, whatever is added."""
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((9000, 16), np.float32)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    shards = [tmp_path / f"{i}.npy" for i in range(3)]
    for path, part in zip(shards, np.split(whole, 3), strict=True):
        np.save(path, part)
    index = new_index(16, 8, storage)
    places = []

    def seen(_):
        inner = faiss.downcast_index(index.storage)
        arrays = (inner.codes, index.hnsw.neighbors, index.hnsw.levels, index.hnsw.offsets)
        places.append([int(array.data()) for array in arrays])

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    fill(index, shards, 9000, progress=seen)
    faiss.omp_set_num_threads(threads)
    assert index.ntotal == 9000 and len(places) == 9
    assert all(place == places[0] for place in places)
    assert (index.search(whole[::100], 1)[1][:, 0] == np.arange(0, 9000, 100)).mean() > 0.9


def test_the_sample_of_a_quantiser_is_a_seeded_draw_over_all_shards(tmp_path):
    whole = np.arange(3 * 9000, dtype=np.float32).reshape(9000, 3)
    paths = [tmp_path / f"{i}.npy" for i in range(4)]
    for path, part in zip(paths, np.split(whole, [10, 5000, 5001]), strict=True):
        np.save(path, part)
    chosen = np.sort(np.random.default_rng(0).choice(9000, 4096, replace=False))
    assert (sample(paths, 9000) == whole[chosen]).all()
    assert (sample(paths[:1], 10) == whole[:10]).all()
    truncate(paths[3])
    with pytest.raises(OSError, match=r"3\.npy: ended before its 3999 vectors"):
        sample(paths, 9000)


def test_a_block_of_few_vectors_is_small_beside_their_index():
    """For any number of threads. Measured, with what the allocator keeps: docs/retrieval.md."""
    for n in (40_000, 150_000, 21_015_324):
        for threads in (1, 2, 8, 32):
            file = index_bytes(n, 384, 32, "sq8")
            assert file < build_bytes(n, 384, 32, "sq8", threads) < 1.15 * file


def test_blocks_span_no_shard_and_end_early_never(tmp_path):
    for i, rows in enumerate((5, 1, 7)):
        np.save(tmp_path / f"{i}.npy", np.full((rows, 3), i, np.float32))
    paths = [tmp_path / f"{i}.npy" for i in range(3)]
    assert [(b[0, 0], len(b)) for b in blocks(paths, 4)] == [(0, 4), (0, 1), (1, 1), (2, 4), (2, 3)]
    truncate(paths[1])
    with pytest.raises((OSError, ValueError)):
        list(blocks(paths, 4))
