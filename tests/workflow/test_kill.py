"""kill -9 in embedding, training and evaluation; the next run gives an undisturbed run's files."""

import json
import os
import shutil
import signal
import time

from glimmer.files import sha256_file

WAIT_S = 200
RUN = "results/t"


def kill_when(workflow, ready, *targets):
    """Start a run, wait for `ready()`, and kill everything that it started."""
    running = workflow.start(*targets)
    try:
        deadline = time.monotonic() + WAIT_S
        while not ready():
            assert running.poll() is None, running.communicate()[0][-3000:]
            assert time.monotonic() < deadline, "the moment to kill never came"
            time.sleep(0.02)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    workflow.run("--unlock")


def size(path):
    return path.stat().st_size if path.exists() else 0


def remake(workflow, *names):
    """Delete outputs, with what a resumed run could go on from."""
    for name in names:
        path = workflow.folder / RUN / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def same_bytes(finished, workflow, name):
    path = finished.folder / RUN / name
    within = [p for p in path.rglob("*") if p.is_file() and p.suffix != ".seal"]  # hold a time
    files = within if path.is_dir() else [path]
    assert files, name
    for file in files:
        again = workflow.folder / file.relative_to(finished.folder)
        assert sha256_file(file) == sha256_file(again), again


def test_embedding(finished, workflow):
    shard = "retrieval/vectors/shard-00000-of-00002"
    remake(workflow, f"{shard}.npy", f"{shard}.json", "retrieval/index")
    part = workflow.folder / RUN / "retrieval/vectors/.shard-00000-of-00002.npy.part"
    kill_when(workflow, lambda: size(part) > 90_000, f"{RUN}/retrieval/index/index.json")
    assert not (workflow.folder / RUN / f"{shard}.npy").exists()
    log = workflow.run(f"{RUN}/retrieval/index/index.json")
    assert "embedding shard-00000-of-00002: resuming after" in log
    same_bytes(finished, workflow, "retrieval/vectors")
    same_bytes(finished, workflow, "retrieval/index")


def test_training(finished, workflow):
    out = finished.folder / RUN
    trained, start = (
        sha256_file(out / name / "model.safetensors")
        for name in ("training/final", "assets/checkpoint")
    )
    assert trained != start  # or the comparison below would say nothing
    remake(workflow, "training")
    folder = workflow.folder / RUN / "training"
    target = f"{RUN}/training/metrics.jsonl"
    kill_when(workflow, lambda: list(folder.glob("checkpoints/*/step-000001/state.json")), target)
    assert not (folder / "final/manifest.json").exists()
    assert "resuming from" in workflow.run(target)
    same_bytes(finished, workflow, "training/final")
    assert untimed(finished) == untimed(workflow)
    assert [row["step"] for row in untimed(workflow)] == [1, 2]


def untimed(workflow):
    """The rows of metrics.jsonl without what a clock measured."""
    lines = (workflow.folder / RUN / "training/metrics.jsonl").read_text().splitlines()
    timed = ("time", "seconds", "tokens_per_s")
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(timed)} for line in lines
    ]


def test_evaluation(finished, workflow):
    remake(workflow, "heldout/after.jsonl", "heldout/after.repeats.jsonl")
    target = f"{RUN}/heldout/after.jsonl"
    part = workflow.folder / RUN / "heldout/.after.jsonl.part"
    kill_when(workflow, lambda: size(part) > 10_000, target)
    assert not (workflow.folder / target).exists()
    assert "evaluate after: resuming after 6 of 12" in workflow.run(target)
    same_bytes(finished, workflow, "heldout/after.jsonl")
    same_bytes(finished, workflow, "heldout/after.repeats.jsonl")
