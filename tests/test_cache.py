"""The cache that run folders share."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimmer.cache import cached


class Stage:
    """A stage with two files whose content is told by its parameter."""

    def __init__(self, cache: Path, folder: Path, max_gb: float = 1) -> None:
        self.settings = {"folder": str(cache), "max_gb": max_gb}
        self.folder, self.made = folder, 0

    def __call__(self, text: str, inputs=(), stage: str = "s") -> bool:
        def make():
            self.made += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "data").write_text(text * 100)
            (self.folder / "record").write_text(text)

        return cached(
            self.settings,
            make,
            stage=stage,
            params={"text": text},
            inputs=inputs,
            out=self.folder / "record",
            beside=lambda: ["data"],
        )

    def read(self) -> tuple[str, str]:
        return (self.folder / "data").read_text()[:1], (self.folder / "record").read_text()


def test_another_run_copies(tmp_path):
    first, second = (Stage(tmp_path / "cache", tmp_path / name) for name in "ab")
    assert first("x") is False and second("x") is True
    assert (first.made, second.made) == (1, 0)
    assert second.read() == ("x", "x")
    # A copy is its own file: what is done to it does not reach the cache.
    (second.folder / "data").write_text("hurt")
    assert Stage(tmp_path / "cache", tmp_path / "c")("x") is True


@pytest.mark.parametrize("what", ["params", "inputs", "stage"])
def test_another_key_makes_anew(tmp_path, what):
    source = tmp_path / "in"
    source.write_text("1")
    stage = Stage(tmp_path / "cache", tmp_path / "a")
    stage("x", [source])
    if what == "inputs":
        source.write_text("2")
    assert (
        stage("y" if what == "params" else "x", [source], "t" if what == "stage" else "s") is False
    )
    assert stage.made == 2
    source.touch()
    assert (
        stage("y" if what == "params" else "x", [source], "t" if what == "stage" else "s") is True
    )


def test_no_cache(tmp_path):
    stage = Stage(tmp_path / "cache", tmp_path / "a")
    stage.settings["folder"] = None
    assert stage("x") is False and stage("x") is False
    assert stage.made == 2 and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "entry", "no json"])
def test_a_damaged_entry_is_made_anew(tmp_path, damage):
    stage = Stage(tmp_path / "cache", tmp_path / "a")
    stage("x")
    (entry,) = (tmp_path / "cache").iterdir()
    data = entry / "data"
    match damage:
        case "flip":
            data.write_bytes(b"y" + data.read_bytes()[1:])
        case "cut":
            data.write_bytes(data.read_bytes()[:-1])
        case "gone":
            data.unlink()
        case "entry":
            (entry / "entry.json").unlink()
        case "no json":
            (entry / "entry.json").write_text("{")
    other = Stage(tmp_path / "cache", tmp_path / "b")
    assert other("x") is False and other.read() == ("x", "x")
    assert not [p for p in other.folder.iterdir() if p.name.startswith(".")]
    if damage != "entry":
        assert Stage(tmp_path / "cache", tmp_path / "c")("x") is True


def test_a_failed_stage_leaves_nothing(tmp_path):
    stage = Stage(tmp_path / "cache", tmp_path / "a")

    def fail():
        raise RuntimeError("gate")

    with pytest.raises(RuntimeError):
        cached(
            stage.settings,
            fail,
            stage="s",
            params={},
            out=stage.folder / "data",
        )
    assert not (tmp_path / "cache").exists()


def test_the_least_recently_used_goes(tmp_path):
    size = 101 * 1e-9  # GB of one entry
    stage = Stage(tmp_path / "cache", tmp_path / "a", max_gb=2.5 * size)
    for text in "xy":
        stage(text)
        time.sleep(0.01)
    stage("x")  # used again
    time.sleep(0.01)
    stage("z")  # y goes
    kept = {
        json.loads((p / "entry.json").read_text())["files"]["record"]["sha256"]: p
        for p in (tmp_path / "cache").iterdir()
    }
    assert len(kept) == 2
    made = stage.made
    assert stage("x") is True and stage("z") is True
    assert stage("y") is False and stage.made == made + 1


def test_what_is_larger_than_the_cache_is_not_kept(tmp_path):
    stage = Stage(tmp_path / "cache", tmp_path / "a", max_gb=1e-9)
    assert stage("x") is False and stage("x") is False
    assert stage.read() == ("x", "x")


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    (tmp_path / "cache").write_text("a file")
    stage = Stage(tmp_path / "cache", tmp_path / "a")
    assert stage("x") is False and stage.read() == ("x", "x")
    assert "cache" in caplog.text


def _work(cache: str, folder: str, texts: str) -> None:
    stage = Stage(Path(cache), Path(folder), max_gb=450e-9)
    for text in texts:
        stage(text)
        assert stage.read() == (text, text)


def test_runs_at_the_same_time(tmp_path):
    """Eight writers and readers of a cache so small that entries go all the time."""
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(
            target=_work, args=(str(tmp_path / "cache"), str(tmp_path / str(i)), "abcdefgh" * 10)
        )
        for i in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]


@given(data=st.binary(max_size=5000))
def test_any_bytes_come_back(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")

    def make():
        (folder / "a").mkdir()
        (folder / "a" / "record").write_bytes(data)

    for name in "ab":
        cached(
            {"folder": str(folder / "cache"), "max_gb": 1},
            make,
            stage="s",
            params={},
            out=folder / name / "record",
        )
    assert (folder / "b" / "record").read_bytes() == data
    assert os.stat(folder / "b" / "record").st_ino != os.stat(folder / "a" / "record").st_ino
