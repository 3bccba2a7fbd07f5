"""Gates on a checkpoint in several files, and on the first layers of a large one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import glimmer.parity.model as model_gate
from glimmer.errors import DataError
from glimmer.files import sha256_files
from glimmer.parity.first_layers import first_layers
from glimmer.training.local.model import load_model, load_tensors

from .test_gates import SHIPPED, check_model, without_weights


def in_parts(folder: Path, *, layers: int) -> Path:
    """The shipped checkpoint with its layers repeated `layers` / 4 times, in two files."""
    config = without_weights(folder)
    text = config["text_config"]
    times = layers // text["num_hidden_layers"]
    for key in ("layer_types", "layer_rope_theta"):
        if text.get(key) is not None:
            text[key] = text[key] * times
    tensors = load_file(SHIPPED / "model.safetensors")
    prefix = "model.language_model.layers."
    for name, value in list(tensors.items()):
        if name.startswith(prefix):
            layer, rest = name.removeprefix(prefix).split(".", 1)
            for turn in range(1, times):
                place = int(layer) + turn * text["num_hidden_layers"]
                tensors[f"{prefix}{place}.{rest}"] = value.clone() * (1 + turn)
    text["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    place = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
        place |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_the_first_layers_are_the_checkpoints_own(tmp_path):
    large = in_parts(tmp_path / "large", layers=8)
    small = first_layers(large, tmp_path / "small")
    kept, whole = load_tensors(small), load_tensors(large)
    assert kept.keys() == load_file(SHIPPED / "model.safetensors").keys()
    assert all(torch.equal(kept[name], whole[name]) for name in kept)
    assert len(load_model(small).layers) == 4
    assert len(load_model(large).layers) == 8


def test_the_gate_takes_them_for_a_large_checkpoint(tmp_path, monkeypatch):
    large = in_parts(tmp_path / "large", layers=8)
    monkeypatch.setattr(model_gate, "LARGEST", 1_000_000)
    verdict = check_model(tmp_path / "v.json", large)
    assert verdict["passed"]
    assert verdict["measured_on"]["layers"] == 4
    assert verdict["measured_on"]["checkpoint_sha256"] == sha256_files(large, "*.safetensors")
    assert not (tmp_path / "first_layers").exists()


def test_a_pattern_that_would_change_is_refused(tmp_path):
    large = in_parts(tmp_path / "large", layers=8)
    config = json.loads((large / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 6
    (large / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="num_hidden_layers is 6, expected at least 4"):
        first_layers(large, tmp_path / "small")
