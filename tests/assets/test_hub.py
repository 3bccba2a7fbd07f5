from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glimmer.assets import fetch_checkpoint, fetch_corpus, fetch_questions, verify_manifest
from glimmer.errors import DataError, IntegrityError

from .conftest import checkpoint_files, corpus_bytes, question_bytes, safetensors_bytes
from .hub_server import COMMIT, Hub

MODEL = "hub:owner/model"
DATA = "hub:owner/data"
WEIGHTS = "model.safetensors"


@pytest.fixture
def model(hub: Hub) -> Hub:
    files = checkpoint_files() | {"pytorch_model.bin": b"pickle", "sub/config.json": b"{}"}
    hub.repos["model", "owner/model"] = files
    hub.large.add(WEIGHTS)
    return hub


def stage(out: Path) -> Path:
    return out.parent / f".{out.name}.incoming"


def test_a_checkpoint(model: Hub, tmp_path: Path) -> None:
    manifest = fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    expected = {n: d for n, d in checkpoint_files().items() if n != "README.md"}
    assert {n: (tmp_path / "out" / n).read_bytes() for n in manifest["files"]} == expected
    assert (manifest["source"], manifest["revision"]) == (MODEL, COMMIT)
    assert verify_manifest(tmp_path / "out") == manifest
    assert not stage(tmp_path / "out").exists()
    # Weights in a pickle and files of subfolders are not even asked for.
    assert not any(
        "pickle" in url or ".bin" in url or "/sub/" in url for _, url, _ in model.requests
    )


def test_data_sets(hub: Hub, tmp_path: Path) -> None:
    packed = gzip.compress(corpus_bytes(20))
    hub.repos["dataset", "owner/data"] = {
        "wiki.jsonl.gz": packed,
        "nq/train.jsonl": question_bytes("t"),
        "nq/test.jsonl": question_bytes("h"),
    }
    hub.large.add("wiki.jsonl.gz")
    pin = {"wiki.jsonl.gz": hashlib.sha256(packed).hexdigest()}
    fetch_corpus(DATA, tmp_path / "c", filename="wiki.jsonl.gz", revision=COMMIT, sha256=pin)
    assert (tmp_path / "c" / "corpus.jsonl").read_bytes() == corpus_bytes(20)
    fetch_questions(
        DATA, tmp_path / "q", train="nq/train.jsonl", heldout="nq/test.jsonl", revision=COMMIT
    )
    assert (tmp_path / "q" / "heldout.jsonl").read_bytes() == question_bytes("h")


def test_a_cut_connection_goes_on_where_it_was(model: Hub, tmp_path: Path) -> None:
    model.cuts[WEIGHTS] = [100, 50]
    fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    assert model.bodies(WEIGHTS) == [None, "bytes=100-", "bytes=150-"]


def test_a_connection_that_stays_cut_is_an_error_and_resumes(model: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    model.cuts[WEIGHTS] = [100, *[0] * 10]
    with pytest.raises(DataError) as caught:
        fetch_checkpoint(MODEL, out, revision=COMMIT)
    text = str(caught.value)
    assert f"{MODEL}/{WEIGHTS}" in text and "run again to go on" in text and model.url in text
    assert not (out / "manifest.json").exists() and not (out / WEIGHTS).exists()
    assert [p.stat().st_size for p in stage(out).glob("*.part")] == [100]

    model.cuts.clear()
    model.requests.clear()
    fetch_checkpoint(MODEL, out, revision=COMMIT)
    # Only the missing bytes of the one unfinished file are asked for.
    assert model.bodies(WEIGHTS) == ["bytes=100-"]
    assert model.bodies("config.json") == [] and model.bodies("tokenizer.json") == [None]
    assert verify_manifest(out)["files"][WEIGHTS]["bytes"] == len(checkpoint_files()[WEIGHTS])
    assert not stage(out).exists()


def test_a_network_that_is_away_for_minutes_is_waited_for(
    model: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("glimmer.assets.hub._PAUSES_S", (5, 60))
    monkeypatch.setattr("glimmer.assets.hub.time.sleep", waited.append)
    # Bytes, then nothing until http_get gives up; again bytes, and so on.
    model.cuts[WEIGHTS] = [100, *[0] * 5, 0, *[0] * 5, 50, *[0] * 5, 0, *[0] * 5]
    fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    assert len([pause for pause in waited if pause == 5]) == 2 and 60 in waited
    assert "bytes=150-" in model.bodies(WEIGHTS)
    verify_manifest(tmp_path / "out")


def test_a_hub_that_stays_away_is_an_error_after_the_last_pause(
    model: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("glimmer.assets.hub._PAUSES_S", (5, 60))
    monkeypatch.setattr("glimmer.assets.hub.time.sleep", waited.append)
    model.status[WEIGHTS] = 503
    with pytest.raises(DataError, match="status 503"):
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    assert [pause for pause in waited if pause in (5, 60)] == [5, 60]
    model.status[WEIGHTS] = 404
    waited.clear()
    with pytest.raises(DataError):
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    assert waited == []


def test_a_killed_rename_downloads_nothing_again(model: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fetch_checkpoint(MODEL, out, revision=COMMIT)
    (out / "manifest.json").unlink()
    stage(out).mkdir()
    (out / "config.json").rename(stage(out) / "config.json")
    model.requests.clear()
    fetch_checkpoint(MODEL, out, revision=COMMIT)
    assert len(model.requests) == 1, "the listing alone"
    verify_manifest(out)


def test_a_leftover_of_another_commit_is_not_taken(model: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage(out).mkdir()
    (stage(out) / "config.json").write_bytes(b'{"model_type": "muse_glimmer", "x": 1}')
    fetch_checkpoint(MODEL, out, revision=COMMIT)
    assert (out / "config.json").read_bytes() == checkpoint_files()["config.json"]


def test_resume_where_the_server_knows_no_ranges(model: Hub, tmp_path: Path) -> None:
    model.cuts[WEIGHTS] = [100]
    model.no_range = True
    fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    assert model.bodies(WEIGHTS) == [None, "bytes=100-"]
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == checkpoint_files()[WEIGHTS]


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_changed_bytes_are_refused(model: Hub, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    real = checkpoint_files()[name]
    model.served[name] = real[:-1] + b"!"
    with pytest.raises(IntegrityError) as caught:
        fetch_checkpoint(MODEL, out, revision=COMMIT)
    text = str(caught.value)
    assert f"{MODEL}/{name}" in text and "expected" in text and "HF_ENDPOINT" in text
    if name == WEIGHTS:
        assert hashlib.sha256(real).hexdigest() in text
        assert hashlib.sha256(model.served[name]).hexdigest() in text
    assert not (out / "manifest.json").exists() and not (out / name).exists()
    assert not list(stage(out).glob(f"{name}*"))
    del model.served[name]
    fetch_checkpoint(MODEL, out, revision=COMMIT)
    verify_manifest(out)


def test_a_damaged_part_is_found_and_not_kept(model: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    model.cuts[WEIGHTS] = [100, *[0] * 10]
    with pytest.raises(DataError):
        fetch_checkpoint(MODEL, out, revision=COMMIT)
    model.cuts.clear()
    (part,) = stage(out).glob("*.part")
    part.write_bytes(b"?" * 100)
    with pytest.raises(IntegrityError, match="found"):
        fetch_checkpoint(MODEL, out, revision=COMMIT)
    fetch_checkpoint(MODEL, out, revision=COMMIT)
    verify_manifest(out)


def test_a_part_longer_than_the_file_is_dropped(model: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    model.cuts[WEIGHTS] = [100, *[0] * 10]
    with pytest.raises(DataError):
        fetch_checkpoint(MODEL, out, revision=COMMIT)
    model.cuts.clear()
    (part,) = stage(out).glob("*.part")
    part.write_bytes(b"?" * 100_000)
    fetch_checkpoint(MODEL, out, revision=COMMIT)
    verify_manifest(out)


def test_a_longer_or_shorter_body_is_refused(model: Hub, tmp_path: Path) -> None:
    real = checkpoint_files()[WEIGHTS]
    for wrong in (real[:-8], real + b"12345678"):
        model.served[WEIGHTS] = wrong
        with pytest.raises((DataError, IntegrityError), match=WEIGHTS):
            fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
        assert not (tmp_path / "out" / "manifest.json").exists()
    del model.served[WEIGHTS]
    for _ in range(2):
        try:
            fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
            break
        except IntegrityError:
            pass
    verify_manifest(tmp_path / "out")


def test_a_pin_that_the_hub_does_not_meet(model: Hub, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=f"expected {'0' * 64}.*checkpoint.sha256"):
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT, sha256={WEIGHTS: "0" * 64})
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_truncated_checkpoint_at_the_hub(hub: Hub, tmp_path: Path) -> None:
    files = checkpoint_files()
    files[WEIGHTS] = files[WEIGHTS][:-4]
    hub.repos["model", "owner/model"] = files
    with pytest.raises(IntegrityError, match=f"{MODEL}/{WEIGHTS}: found .* as its header says"):
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)


def test_a_pickle_at_the_hub_is_refused_unfetched(hub: Hub, tmp_path: Path) -> None:
    hub.repos["model", "owner/model"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(DataError, match=r"found pytorch_model\.bin, expected model\.safetensors"):
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    assert len(hub.requests) == 1


def test_what_is_not_there_is_named(model: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match="hub:owner/absent: found no such repository"):
        fetch_checkpoint("hub:owner/absent", out, revision=COMMIT)
    with pytest.raises(DataError, match=f"found no commit {'f' * 40}"):
        fetch_checkpoint(MODEL, out, revision="f" * 40)
    model.repos["dataset", "owner/data"] = {"wiki.jsonl": corpus_bytes()}
    with pytest.raises(DataError, match=r"corpus\.jsonl: found no such file.*wiki\.jsonl"):
        fetch_corpus(DATA, out, revision=COMMIT)


def test_a_listing_of_another_commit_is_refused(model: Hub, tmp_path: Path) -> None:
    model.answered_commit = "f" * 40
    with pytest.raises(IntegrityError, match=f"commit {'f' * 40}, expected {COMMIT}"):
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)


@pytest.mark.parametrize("status", [403, 500])
def test_a_hub_that_fails_is_an_error(model: Hub, tmp_path: Path, status: int) -> None:
    model.status[WEIGHTS] = status
    with pytest.raises(DataError, match=f"{WEIGHTS}: .*status {status}"):
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)


def test_a_hub_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://someone:secret@127.0.0.1:9/")
    with pytest.raises(DataError) as caught:
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    assert "http://127.0.0.1:9 failed" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_name_in_the_listing_cannot_leave_the_folder(hub: Hub, tmp_path: Path) -> None:
    hub.repos["model", "owner/model"] = checkpoint_files() | {"../evil.safetensors": b"x"}
    fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
    assert not (tmp_path / "evil.safetensors").exists()


def test_two_downloads_into_one_folder(model: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage(out).mkdir()
    with open(stage(out) / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process downloads into this folder"):
            fetch_checkpoint(MODEL, out, revision=COMMIT)
    # The lock of a process that ended is no obstacle.
    fetch_checkpoint(MODEL, out, revision=COMMIT)


def test_a_kill_in_the_middle_resumes_at_the_byte(model: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    weights = safetensors_bytes({"a": [50_000]})
    model.repos["model", "owner/model"][WEIGHTS] = weights
    model.stalls[WEIGHTS] = 100_000
    code = (
        "import sys, huggingface_hub.constants as c; c.DOWNLOAD_CHUNK_SIZE = 20_000\n"
        "from glimmer.assets import fetch_checkpoint\n"
        "fetch_checkpoint(*sys.argv[1:3], revision=sys.argv[3])"
    )
    child = subprocess.Popen([sys.executable, "-c", code, MODEL, str(out), COMMIT])
    try:
        assert model.stalled.wait(30)
        # What the server has sent is not in the file at once.
        deadline = time.monotonic() + 5
        while not any(p.stat().st_size for p in stage(out).glob(f"{WEIGHTS}*.part")):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    (part,) = stage(out).glob(f"{WEIGHTS}*.part")
    received = part.stat().st_size
    assert not (out / "manifest.json").exists()
    model.stalls.clear()
    model.requests.clear()
    fetch_checkpoint(MODEL, out, revision=COMMIT)
    assert verify_manifest(out)["files"][WEIGHTS]["bytes"] == len(weights)
    assert model.bodies(WEIGHTS) == [f"bytes={received}-"]
    assert model.bodies("config.json") == [], "a finished file is not fetched again"


def test_a_content_network_gets_no_token_and_its_url_is_not_shown(
    model: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Hub()
    try:
        network.repos["model", "owner/model"] = model.repos["model", "owner/model"]
        path = f"{network.url}/owner/model/resolve/{COMMIT}/{WEIGHTS}"
        model.redirects[WEIGHTS] = f"{path}?Signature=do-not-show"
        monkeypatch.setenv("HF_TOKEN", "hf_do_not_show")
        network.cuts[WEIGHTS] = [100, *[0] * 10]
        with pytest.raises(DataError) as caught:
            fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
        assert "do-not-show" not in str(caught.value)
        assert "hf_do_not_show" not in str(caught.value)
        network.cuts.clear()
        fetch_checkpoint(MODEL, tmp_path / "out", revision=COMMIT)
        assert network.bodies(WEIGHTS)[-1] == "bytes=100-"
        assert set(model.tokens) == {"Bearer hf_do_not_show"}
        assert set(network.tokens) == {None}
    finally:
        network.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_fills_during_a_download(model: Hub, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(small, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small disk here")
    files = model.repos["model", "owner/model"]
    files[WEIGHTS] = safetensors_bytes({"a": [50_000]})
    try:
        with pytest.raises(DataError, match=f"{disk}.*disk is full"):
            fetch_checkpoint(MODEL, disk / "out", revision=COMMIT)
        assert not (disk / "out" / "manifest.json").exists()
        assert (disk / ".out.incoming" / "config.json").exists(), "what is finished is kept"
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        fetch_checkpoint(MODEL, disk / "out", revision=COMMIT)
        verify_manifest(disk / "out")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
