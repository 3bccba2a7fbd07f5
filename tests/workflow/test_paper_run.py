"""The paper run's DAG, as far as it goes without its host."""

from __future__ import annotations

import subprocess
import sys

import pytest

from glimmer.provenance import why

from .copies import ROOT, Workflow

PAPER = ("--configfile", "config/h100x8.yaml")


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Resources of each job, by rule, of a run from nothing."""
    monkeypatch.chdir(ROOT)
    nothing = tmp_path / "mine.yaml"
    nothing.write_text(f"results: {tmp_path}\n")
    arguments = ("heldout_report", "--cores", "64", *PAPER, str(nothing))
    dag = why._dry_run(arguments).dag
    return {job.rule.name: dict(job.resources.items()) for job in dag.jobs}


def test_memory_is_asked_for_by_the_model_and_the_index(jobs):
    mb = {name: resources.get("mem_mb", 0) for name, resources in jobs.items()}
    # 56 GB staged, 111 GB in the last save, 70 GB of index, ten processes
    assert 250_000 < mb["grpo"] < 290_000
    assert 130_000 < mb["evaluate"] < 170_000  # 56 GB of weights, 70 GB of index
    assert 90_000 < mb["gate_model"] < 130_000  # four layers of float32, five times over


def test_no_job_shares_a_gpu_with_one_that_takes_it_whole(jobs):
    """Embedding is ready when the bitwise gate is: vLLM measures what is free on its card."""
    room = {name: r["gpu_room"] for name, r in jobs.items() if r.get("gpu")}
    limit = room["grpo"]
    assert {"embed", "gate_bitwise", "grpo", "evaluate", "leakage"} == room.keys()
    assert room["embed"] == 1
    assert all(value == limit for name, value in room.items() if name != "embed")
    profile = (ROOT / "profiles/default/config.yaml").read_text()
    assert f"gpu_room={limit}" in profile


def test_a_host_that_cannot_train_is_refused_before_anything_is_fetched(tmp_path):
    workflow = Workflow.copy(tmp_path / "copy", {})
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "train", "--nocolor", *PAPER],
        cwd=workflow.folder,
        env=workflow.environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "preflight refused this host" in said, said[-3000:]
    assert "number of GPUs: found 0, expected 8" in said and "Traceback" not in said
    made = {path.name for path in (workflow.folder / "results/h100x8").iterdir()}
    assert made == {"preflight.json", "preflight.txt"}
    assert "Fetching" not in said
