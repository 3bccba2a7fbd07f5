"""What nvidia-smi says, and this machine looked at for real."""

from __future__ import annotations

import socket
from pathlib import Path

import torch

from glimmer.files import write_json
from glimmer.preflight import check, inventory
from glimmer.preflight.inventory import MIB, parse_gpus

from .hosts import paper_run

CSV = """\
0, NVIDIA H200, 143771, 0, 580.95.05, Disabled
1, NVIDIA H200, 143771, 91000, 580.95.05, Enabled
2, NVIDIA H200, [N/A], 3, 580.95.05, [N/A]
"""


def test_gpus_of_nvidia_smi():
    first, second, third = parse_gpus(CSV, None)
    assert (first.name, first.total, first.driver) == ("NVIDIA H200", 143771 * MIB, "580.95.05")
    assert not first.mig and second.mig and second.used == 91000 * MIB
    assert third.total == 0


def test_visible_devices_choose_and_order():
    assert [g.index for g in parse_gpus(CSV, "2,0")] == [2, 0]
    assert parse_gpus(CSV, "") == ()
    assert len(parse_gpus(CSV, "GPU-1b2c")) == 3
    assert parse_gpus("NVIDIA-SMI has failed", None) == ()


def test_infiniband_ports_that_are_up(tmp_path: Path):
    for card, state, layer in (
        ("a", "4: ACTIVE", "InfiniBand"),
        ("b", "1: DOWN", "InfiniBand"),
        ("c", "4: ACTIVE", "Ethernet"),
    ):
        port = tmp_path / card / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "link_layer").write_text(layer + "\n")
    assert inventory._infiniband(tmp_path) == ("a/1",)


def test_this_machine(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").write_bytes(b"x" * 1000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = inventory.look(results=tmp_path, run="run", ports=[port, 0])
    assert found.busy_ports == (port,)
    assert found.variables["NCCL_IB_DISABLE"] == "1" and found.token_set
    assert "hf_secret" not in repr(found)
    assert found.written == 1000
    assert found.torch_cuda == (torch.version.cuda is not None)
    assert found.cores >= 1 and found.ram[0] >= found.ram[1] > 0
    assert found.disks[str(tmp_path)] > 0


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path):
    found = inventory.look(results=tmp_path / "not" / "yet", run="run")
    assert found.written == 0 and list(found.disks.values())[0] > 0


def test_what_a_run_has_written_counts_once_and_without_other_settings(tmp_path: Path):
    kept = tmp_path / "run/training/checkpoints/now/checkpoint"
    old = tmp_path / "run/training/checkpoints/before"
    for folder in (kept, old):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 1000)
    (kept.parent / "best").mkdir()
    (kept.parent / "best/file").hardlink_to(kept / "file")
    assert inventory.look(results=tmp_path, run="run").written == 2000
    assert inventory.look(results=tmp_path, run="run", others=[old]).written == 1000


def test_checkpoints_of_other_settings_are_known_by_their_job(tmp_path: Path):
    config = paper_run()
    config["results"] = str(tmp_path)
    for key, changes in {
        "same": {"training": {"keep_checkpoints": 9}},
        "other": {"training": {"learning_rate": 1e-5}},
        "context": {"titan": {"context": 2048}},
    }.items():
        job = {
            name: config[name] | changes.get(name, {})
            for name in ("training", "search", "renderer", "titan")
        }
        write_json(tmp_path / "h100x8/training/checkpoints" / key / "job.json", job)
    found = check.other_checkpoints(config)
    assert [path.name for path in found] == ["context", "other"]


def test_the_memory_limit_is_the_smallest_of_the_groups_above(tmp_path: Path):
    """A scheduler's job has its limit far below the root."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    job = root / "slurm/job_7/step_0"
    job.mkdir(parents=True)
    own.write_text("0::/slurm/job_7/step_0\n")
    assert inventory._cgroup_limit(root, own) is None
    (job / "memory.max").write_text("max\n")
    (root / "slurm/memory.max").write_text("900\n")
    assert inventory._cgroup_limit(root, own) == 900
    (job.parent / "memory.max").write_text("700\n")
    assert inventory._cgroup_limit(root, own) == 700
    (root / "memory.max").write_text("500\n")
    assert inventory._cgroup_limit(root, own) == 500


def test_the_memory_limit_of_the_older_control_groups(tmp_path: Path):
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "memory/slurm/job_7").mkdir(parents=True)
    own.write_text("5:cpuset:/\n4:memory:/slurm/job_7\n")
    (root / "memory/slurm/job_7/memory.limit_in_bytes").write_text("600\n")
    assert inventory._cgroup_limit(root, own) == 600
    assert inventory._cgroup_limit(root, tmp_path / "none") is None
