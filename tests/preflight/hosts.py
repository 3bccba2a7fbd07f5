"""Simulated hosts: one that carries the paper run, and ways to spoil it."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from glimmer import config as configs
from glimmer.files import read_json
from glimmer.preflight import check
from glimmer.preflight.inventory import MIB, Gpu, Inventory

ROOT = Path(__file__).parents[2]
MODEL = read_json(ROOT / "glimmer/preflight/muse_glimmer_30b.json")
GIB = 2**30
# Memory as nvidia-smi lists it, MiB.
H100_80, H100_NVL, H200 = 81559 * MIB, 95830 * MIB, 143771 * MIB


def gpus(count: int, *, name="NVIDIA H100 NVL", total=H100_NVL, used=0, driver="580.95.05"):
    return tuple(Gpu(i, name, total, used, driver) for i in range(count))


GOOD = Inventory(
    gpus=gpus(8),
    nvlink=True,
    infiniband=("mlx5_0/1",),
    shm=(500 * GIB, 500 * GIB),
    open_files=1_048_576,
    locked_memory=-1,
    processes=-1,
    ram=(1000 * GIB, 900 * GIB),
    disks={"results": 4000 * GIB},
    cores=128,
    token_set=True,
    hub={"hub:meta-models/Muse-Glimmer-30B": None},
    stack=(),
)


def paper_run(**changes: Any) -> dict[str, Any]:
    """config/h100x8.yaml; a change is section__key=value."""
    found = configs.load(ROOT / "config/config.yaml", ROOT / "config/h100x8.yaml")
    return changed(found, **changes)


def one_gpu(**changes: Any) -> dict[str, Any]:
    """config/h200x1.yaml."""
    found = configs.load(ROOT / "config/config.yaml", ROOT / "config/h200x1.yaml")
    return changed(found, **changes)


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        config[section][name] = value
    return config


def refusals(config: dict[str, Any], model=MODEL, **host: Any) -> list[str]:
    """'what: found; expected; way out' of each refusal, on the good host with these changes."""
    verdict = check.preflight(config, host=replace(GOOD, **host), model=model)
    assert verdict["passed"] == (verdict["measured"]["refused"] == 0)
    return [
        f"{f['what']}: {f['found']}; {f['expected']}; {f['way_out']}"
        for f in verdict["details"]
        if f["level"] == "refuse"
    ]
