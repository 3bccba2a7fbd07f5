"""kill -9 at random moments of embedding and building: the files of an undisturbed run."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time

import pytest

from glimmer.files import sha256_file
from glimmer.retrieval import embed_shard

from .conftest import FakeEncoder, make_rows, write_corpus

KILLS = 12


def start(what, folder):
    """A process that has loaded its libraries and begins to work."""
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.retrieval.killed", what, str(folder)], stdout=subprocess.PIPE
    )
    assert running.stdout.readline() == b"ready\n"
    return running


def files(folder):
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.long
@pytest.mark.parametrize(("what", "passages", "made"), [("embed", 1200, "vectors"),
                                                        ("build", 9000, "index")])  # fmt: skip
def test_kill_at_random_moments(tmp_path, what, passages, made):
    rows = make_rows(passages, seed=5)
    base = tmp_path / "base"
    base.mkdir()
    write_corpus(base / "corpus.jsonl", rows)
    if what == "build":
        for shard in range(2):
            out = base / f"vectors/shard-{shard:05d}-of-00002.npy"
            embed_shard(base / "corpus.jsonl", out, shard=shard, num_shards=2, model="fake",
                        encoder=FakeEncoder(dimension=64))  # fmt: skip
    undisturbed = shutil.copytree(base, tmp_path / "undisturbed")
    began = time.monotonic()
    assert start(what, undisturbed).wait() == 0
    seconds = time.monotonic() - began
    expected = files(undisturbed / made)
    assert len(expected) >= 3
    rng, kills, whole = random.Random(0), 0, 0
    while kills < KILLS or not whole:
        folder = tmp_path / "killed"
        if not folder.exists():
            shutil.copytree(base, folder)
        running = start(what, folder)
        # Of embedding, which is gone on with, less is left each time; and the last run is let go.
        time.sleep(rng.uniform(0, seconds / (3 if what == "embed" else 1)))
        if kills < KILLS and running.poll() is None:
            running.kill()
            kills += 1
        running.wait()
        if running.returncode == 0:
            assert files(folder / made) == expected
            whole += 1
            shutil.rmtree(folder)
    assert kills == KILLS and whole >= 1
