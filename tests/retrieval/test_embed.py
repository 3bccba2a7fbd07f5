"""Vectors against SentenceTransformer.encode, independence of the batch, and resuming."""

from __future__ import annotations

import json
import os
import random
import signal

import numpy as np
import pytest

from glimmer.errors import ConfigError, DataError, GlimmerError
from glimmer.files import read_json, sha256_file
from glimmer.retrieval import embed_shard
from glimmer.retrieval.encoder import Encoder

from .conftest import MODEL


def test_vectors_are_those_of_sentence_transformers(world, encoder):
    reference = encoder._model.encode(
        [row["contents"] for row in world.rows], batch_size=32, normalize_embeddings=True
    )
    assert world.matrix.dtype == np.float32 and world.matrix.shape == (300, 384)
    np.testing.assert_allclose(world.matrix, reference, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(world.matrix, axis=1), 1, atol=1e-6)


def test_sidecar_records_what_was_done(world, encoder):
    records = [read_json(path.with_suffix(".json")) for path in world.vectors]
    assert [(r["start"], r["stop"], r["rows"]) for r in records] == [(0, 150, 150), (150, 300, 150)]
    assert [r["truncated"] for r in records] == [1, 0]  # row 7
    for path, record in zip(world.vectors, records, strict=True):
        assert record["sha256"] == sha256_file(path)
        assert record["corpus_sha256"] == sha256_file(world.corpus)
        assert record["model"] == encoder.identity.as_dict()
    hidden = [path.name for path in world.vectors[0].parent.iterdir() if path.name[0] == "."]
    assert hidden == []


def test_a_text_does_not_depend_on_its_batch_or_threads(world, encoder):
    texts = [*world.titles[:64], "1984", "null", "x " * 400]
    alone = np.concatenate([encoder.queries([text]) for text in texts])
    order = random.Random(0).sample(range(len(texts)), len(texts))
    two_threads = Encoder(MODEL, threads=2)
    for size, used in ((2, encoder), (7, encoder), (64, encoder), (64, two_threads)):
        together = used.queries([texts[i] for i in order], batch_size=size)
        assert (together == alone[order]).all()


def test_a_passage_does_not_depend_on_its_batch(encoder):
    """One left alone in its batch, from the least number of tokens that a batch has by itself."""
    texts = [
        f"{word} " * tokens for tokens in (60, 62, 63, 90, 250) for word in ("sea", "oak", "a")
    ]
    alone = np.concatenate([encoder.passages([text]) for text in texts])
    assert (encoder.passages(texts) == alone).all()


def test_any_number_of_shards_and_workers_gives_the_same_vectors(world, encoder, tmp_path):
    for shard in (2, 0, 1):
        out = tmp_path / f"{shard}.npy"
        embed_shard(
            world.corpus,
            out,
            shard=shard,
            num_shards=3,
            model=MODEL,
            batch_size=10,
            workers=shard,
            encoder=encoder,
        )
    again = np.concatenate([np.load(tmp_path / f"{shard}.npy") for shard in range(3)])
    assert (again == world.matrix).all()


def embed(corpus, out, encoder, **changes):
    settings = {"shard": 0, "num_shards": 1, "model": "fake", "batch_size": 2} | changes
    return embed_shard(corpus, out, encoder=encoder, **settings)


def contents(out):
    return out.read_bytes(), out.with_suffix(".json").read_bytes()


def test_killed_at_any_call_then_resumed(world, fake, tmp_path):
    """kill -9 in a child, at each of 19 windows: it costs that one."""
    whole = tmp_path / "whole.npy"
    embed(world.corpus, whole, fake())
    for killed_at in range(0, 19, 2):
        folder = tmp_path / str(killed_at)
        folder.mkdir()
        out = folder / "whole.npy"
        child = os.fork()
        if child == 0:
            victim = fake(fail_at=killed_at)
            victim.fail = lambda: os.kill(os.getpid(), signal.SIGKILL)
            embed(world.corpus, out, victim)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert not out.exists() and not out.with_suffix(".json").exists()
        rest = fake()
        embed(world.corpus, out, rest)
        assert rest.seen == 300 - 16 * killed_at
        assert contents(out) == contents(whole)


def test_files_cut_at_any_byte_then_resumed(world, fake, tmp_path):
    """What a kill within a write, or a lost page, leaves: cut or changed files."""
    whole = tmp_path / "whole.npy"
    embed(world.corpus, whole, fake())
    out = tmp_path / "cut" / "whole.npy"
    part, journal = out.with_name(".whole.npy.part"), out.with_name(".whole.npy.journal")
    victim = fake(fail_at=15)

    def interrupt():
        raise KeyboardInterrupt

    victim.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        embed(world.corpus, out, victim)
    data, lines = part.read_bytes(), journal.read_bytes()
    rng = random.Random(0)
    for case in range(24):
        cut = data[: rng.randrange(len(data) + 1)] if case % 3 != 1 else data
        cut_lines = lines[: rng.randrange(len(lines) + 1)] if case % 3 != 0 else lines
        if case % 4 == 3 and cut:
            changed = bytearray(cut)
            changed[rng.randrange(len(cut))] ^= 1
            cut = bytes(changed)
        part.write_bytes(cut)
        journal.write_bytes(cut_lines)
        embed(world.corpus, out, fake())
        assert contents(out) == contents(whole), case
        out.unlink()


def test_killed_between_the_last_two_renames(world, fake, tmp_path, monkeypatch):
    out = tmp_path / "whole.npy"

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("glimmer.retrieval.embed.write_json", interrupt)
        embed(world.corpus, out, fake())
    rest = fake()
    embed(world.corpus, out, rest)
    assert rest.seen == 0 and len(np.load(out)) == 300


@pytest.mark.parametrize("change", ["corpus", "model", "batch_size"])
def test_part_of_other_settings_is_not_resumed(world, other_rows, corpus_of, fake, change):
    out = world.base / f"changed-{change}" / "whole.npy"
    victim = fake(fail_at=5)

    def interrupt():
        raise KeyboardInterrupt

    victim.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        embed(world.corpus, out, victim)
    corpus = corpus_of(other_rows) if change == "corpus" else world.corpus
    second = fake().renamed(query_prefix="query: ") if change == "model" else fake()
    embed(corpus, out, second, batch_size=4 if change == "batch_size" else 2)
    assert second.seen == 300


def test_two_writers_of_one_shard(world, fake, tmp_path):
    out = tmp_path / "whole.npy"
    first = fake(fail_at=3)

    def second_comes():
        with pytest.raises(GlimmerError, match="another process is making this shard"):
            embed(world.corpus, out, fake())

    first.fail = second_comes
    embed(world.corpus, out, first)
    assert first.seen == 300


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the corpus is empty"),
        ('{"id": "0", "contents": "\\"A\\"\\nb"}\n\n', "line 2: found an empty line"),
        ('{"id": "0", "contents": "\\"A\\"\\nb"}\nnot json\n', "line 2: found b'not json"),
        (b'{"id": "0", "contents": "\xff"}\n', "line 1: found .*expected one JSON object"),
        ('["a"]\n', "line 1: found .*expected a JSON object"),
        ('{"id": "0", "text": "b"}\n', r"line 1: found the keys .*expected 'contents'"),
        ('{"id": "0", "contents": 5}\n', "line 1: found 'contents': 5"),
        ('{"id": "0", "contents": " "}\n', "line 1: found 'contents': ' '"),
        ('{"contents": "\\"A\\"\\nb"}\n', r"line 1: found the keys .*expected 'id'"),
    ],
)
def test_bad_corpus(corpus_of, fake, tmp_path, text, says):
    corpus = corpus_of(text)
    with pytest.raises(DataError, match=says) as raised:
        embed(corpus, tmp_path / "out.npy", fake())
    assert str(corpus) in str(raised.value)
    assert not (tmp_path / "out.npy").exists()


def test_compressed_or_missing_corpus(tmp_path, fake):
    with pytest.raises(DataError, match="Unpack it"):
        embed(tmp_path / "corpus.jsonl.gz", tmp_path / "out.npy", fake())
    with pytest.raises(DataError, match="no such corpus file"):
        embed(tmp_path / "corpus.jsonl", tmp_path / "out.npy", fake())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shard": 2, "num_shards": 2}, "shard 2 of 2 does not exist"),
        ({"num_shards": 301}, "301 shards for the 300 passages"),
        ({"batch_size": 0}, r"embedding\.batch_size: found 0"),
    ],
)
def test_bad_settings(world, fake, tmp_path, change, says):
    with pytest.raises(ConfigError, match=says):
        embed(world.corpus, tmp_path / "out.npy", fake(), **change)


def test_vectors_that_are_not_finite(world, fake, tmp_path, monkeypatch):
    broken = fake()
    monkeypatch.setattr(broken, "_vector", lambda _: np.full(16, np.nan, np.float32))
    with pytest.raises(GlimmerError, match="passages 1 to 16 .* the model gave vectors"):
        embed(world.corpus, tmp_path / "out.npy", broken)


def test_disk_full_keeps_finished_blocks(world, fake, full_disk, tmp_path):
    out = full_disk / "out.npy"
    ballast = full_disk / "ballast"
    ballast.write_bytes(b"\0" * 80_000)
    with pytest.raises(DataError, match="No space left") as raised:
        embed(world.corpus, out, fake())
    assert str(out) in str(raised.value) and "run again" in str(raised.value)
    assert not out.exists() and not out.with_suffix(".json").exists()
    ballast.unlink()
    rest, whole = fake(), tmp_path / "out.npy"
    embed(world.corpus, out, rest)
    embed(world.corpus, whole, fake())
    assert 0 < rest.seen < 300
    assert contents(out) == contents(whole)


def test_no_permission(world, fake, monkeypatch, tmp_path):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", denied)  # root may write anywhere, so by hand
    with pytest.raises(DataError, match=r"Permission denied.*permissions of"):
        embed(world.corpus, tmp_path / "out.npy", fake())


def test_journal_is_json_lines(world, fake, tmp_path):
    victim = fake(fail_at=2)

    def interrupt():
        raise KeyboardInterrupt

    victim.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        embed(world.corpus, tmp_path / "out.npy", victim)
    first, *blocks = map(json.loads, (tmp_path / ".out.npy.journal").read_text().splitlines())
    assert set(first) == {"making"}
    assert [block["rows"] for block in blocks] == [16, 16]
