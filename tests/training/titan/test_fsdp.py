"""FSDP of annotated parameters on CPU ranks (gloo), against the whole model in one process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from glimmer.errors import GlimmerError
from glimmer.training.titan import fsdp

ROOT = Path(__file__).parents[3]
PAPER = "3x2"  # the paper run's trainer: FSDP 3, tensor parallelism 2
ON_HOST = PAPER + "h"  # the same, Adam's moments in host memory between steps
SHAPES = ("2x1", PAPER, ON_HOST)


def in_two_files(source: Path, out: Path) -> Path:
    """A checkpoint as large ones come: two files and an index, which names the vision tower too."""
    shutil.copytree(source, out)
    tensors = load_file(out / "model.safetensors")
    (out / "model.safetensors").unlink()
    names = sorted(tensors)
    half = len(names) // 2
    weight_map = {}
    for i, part in enumerate((names[:half], names[half:]), start=1):
        name = f"model-0000{i}-of-00002.safetensors"
        save_file({k: tensors[k] for k in part}, out / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two steps at each shape; FSDP 3 splits no tensor of the tiny model evenly."""
    out = tmp_path_factory.mktemp("fsdp")
    checkpoint = in_two_files(ROOT / "resources/tiny_glimmer", out / "checkpoint")
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("fsdp_ranks.py")),
            str(checkpoint),
            str(out),
            *SHAPES,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: json.loads((out / f"{name}.json").read_text()) for name in SHAPES}


@pytest.mark.parametrize("shape", SHAPES)
def test_sharded_training_is_that_of_the_whole_model(trained, shape):
    found = trained[shape]
    for own, whole in zip(found["steps"], found["whole"]["steps"], strict=True):
        assert own["loss"] == pytest.approx(whole["loss"], rel=1e-3)
        assert own["norm"] == pytest.approx(whole["norm"], rel=1e-3)
    # The first step starts from equal weights: only the order of sums differs.
    assert found["steps"][0]["gradient"] < 1e-4
    assert found["steps"][0]["gradients"] == 51
    assert found["weights"] < 2e-3  # Adam's two steps of 1e-3, of one sign


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_loaded_saved_resumed_and_exported(trained, shape):
    found = trained[shape]
    assert found["start"] == found["whole"]["start"]  # the same digest, however it is sharded
    assert found["end"] != found["start"]
    assert found["resumed"] == found["end"]
    assert found["resumed_state"]
    assert found["exported"]


def test_moments_on_the_host_change_nothing_and_leave_the_gpu(trained):
    there, away = trained[PAPER], trained[ON_HOST]
    assert away["steps"] == there["steps"]
    assert away["end"] == there["end"]
    assert all(there["moments"])
    assert away["moments"] == [0] * 5  # after each step, each save, and a resume


def test_tensor_parallel_parts_stay_parts(trained):
    assert trained[PAPER]["placements"] == [
        "(Shard(dim=0), Replicate())",
        "(Shard(dim=0), Shard(dim=1))",
        "(_StridedShard(dim=0, sf=2), Shard(dim=0))",
    ]


def test_a_type_that_no_parameter_has_is_refused(monkeypatch):
    axis = object()
    monkeypatch.setattr(fsdp, "normalize_axis", lambda group: axis)
    monkeypatch.setattr(fsdp, "get_local_type", lambda param: {axis: fsdp.spmd.P})
    mesh = SimpleNamespace(mesh_dim_names=("dp_shard", "tp"), get_group=lambda index: None)
    with pytest.raises(GlimmerError, match="P on mesh axis 'tp'"):
        fsdp.placements(torch.zeros(2, 3), mesh, frozenset({"dp_shard"}))


def test_another_fsdp_is_refused(monkeypatch):
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    monkeypatch.setattr(_fsdp_param_group, "FSDPParam", object)
    with pytest.raises(GlimmerError, match=r"its FSDP is not the one"):
        fsdp.apply()
