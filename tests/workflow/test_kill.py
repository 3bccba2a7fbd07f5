"""kill -9 in embedding, training and evaluation; the next run gives an undisturbed run's files."""

import json
import os
import signal
import time

import pytest

from glimmer.files import sha256_file

from .conftest import SETTINGS, Workflow

WAIT_S = 200


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


@pytest.fixture(scope="module")
def interrupted(finished, tmp_path_factory):
    """A run killed three times, then finished."""
    workflow = Workflow.copy(tmp_path_factory.mktemp("interrupted"), SETTINGS)
    out = workflow.folder / "results/t"
    vectors = out / "retrieval/vectors"
    kill_when(workflow, lambda: any(size(p) > 200_000 for p in vectors.glob(".*.part")))
    assert not list(vectors.glob("shard-*.npy"))
    states = lambda step: list(out.glob(f"training/checkpoints/*/step-{step:06d}/state.json"))  # noqa: E731
    kill_when(workflow, lambda: states(1))
    assert not (out / "training/final").exists()
    part = out / "heldout/.after.jsonl.part"
    kill_when(workflow, lambda: size(part) > 10_000)
    assert not (out / "heldout/after.jsonl").exists()
    log = workflow.run()
    return workflow, log


def same_bytes(finished, workflow, pattern):
    names = [p.relative_to(finished.folder) for p in finished.folder.glob(pattern) if p.is_file()]
    assert names, pattern
    for name in names:
        assert sha256_file(finished.folder / name) == sha256_file(workflow.folder / name), name


def test_training_changed_the_model(finished):
    """Or the comparisons below would say nothing."""
    out = finished.folder / "results/t"
    trained, start = (
        sha256_file(out / name / "model.safetensors")
        for name in ("training/final", "assets/checkpoint")
    )
    assert trained != start


@pytest.mark.parametrize(
    "pattern",
    [
        "results/t/assets/**/*",
        "results/t/retrieval/vectors/*.npy",
        "results/t/retrieval/index/*",
        "results/t/training/final/*",
        "results/t/heldout/*",
    ],
)
def test_files_are_those_of_an_undisturbed_run(finished, interrupted, pattern):
    same_bytes(finished, interrupted[0], pattern)


def test_metrics_are_those_of_an_undisturbed_run(finished, interrupted):
    def rows(workflow):
        lines = (workflow.folder / "results/t/training/metrics.jsonl").read_text().splitlines()
        timed = ("time", "seconds", "tokens_per_s")
        return [
            {k: v for k, v in json.loads(line).items() if not k.startswith(timed)} for line in lines
        ]

    assert rows(finished) == rows(interrupted[0])
    assert [row["step"] for row in rows(finished)] == [1, 2]


def test_finished_work_was_not_done_again(interrupted):
    workflow, log = interrupted
    assert "rule embed:" not in log
    assert "rule grpo:" not in log
    assert "evaluate after: resuming after 6 of 12" in log
    assert workflow.stale() == set()
