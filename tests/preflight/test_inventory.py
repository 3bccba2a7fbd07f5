"""What nvidia-smi says, and this machine looked at for real."""

from __future__ import annotations

import socket
from pathlib import Path

from glimmer.preflight import inventory
from glimmer.preflight.inventory import MIB, parse_gpus

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
    assert found.cores >= 1 and found.ram[0] >= found.ram[1] > 0
    assert found.disks[str(tmp_path)] > 0


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path):
    found = inventory.look(results=tmp_path / "not" / "yet", run="run")
    assert found.written == 0 and list(found.disks.values())[0] > 0
