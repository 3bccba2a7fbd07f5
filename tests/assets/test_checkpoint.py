from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from glimmer.assets import check_checkpoint
from glimmer.assets.checkpoint import safetensors_shapes, select_files
from glimmer.errors import DataError, IntegrityError

from .conftest import checkpoint_files, safetensors_bytes

Folder = Callable[..., Path]


def test_a_whole_checkpoint(folder: Folder) -> None:
    found = check_checkpoint(folder(checkpoint_files()))
    assert found == {"tensors": 2, "parameters": 406, "weights": ["model.safetensors"]}


def test_reads_what_the_safetensors_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {
        "half": np.zeros((3, 5), np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.zeros((), np.int64),
        "flags": np.zeros((7,), np.bool_),
    }
    save_file(arrays, path, metadata={"format": "pt"})
    assert safetensors_shapes(path) == {name: list(a.shape) for name, a in arrays.items()}


@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1, -400])
def test_a_cut_weight_file_is_refused(folder: Folder, keep: int) -> None:
    files = checkpoint_files()
    files["model.safetensors"] = files["model.safetensors"][:keep]
    source = folder(files)
    with pytest.raises(IntegrityError, match=r"model\.safetensors: found.*(cut|damaged)"):
        check_checkpoint(source)


def test_trailing_bytes_are_refused(folder: Folder) -> None:
    files = checkpoint_files()
    files["model.safetensors"] += b"x"
    with pytest.raises(IntegrityError, match="as its header says"):
        check_checkpoint(folder(files))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
        {"dtype": "Q7", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
        {"dtype": "F32", "shape": None, "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]},
        "text",
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, entry: object) -> None:
    header = json.dumps({"a": entry}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(IntegrityError, match=r"m\.safetensors"):
        safetensors_shapes(path)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    place = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": place, "b": place}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(IntegrityError, match="found a tensor at byte 0, expected 8"):
        safetensors_shapes(path)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt", "weights.pkl"]
)
def test_a_pickle_is_refused_by_name(folder: Folder, name: str) -> None:
    files = checkpoint_files()
    files[name] = files.pop("model.safetensors")
    with pytest.raises(DataError) as caught:
        check_checkpoint(folder(files))
    assert name in str(caught.value) and "safetensors" in str(caught.value)


def test_a_pickle_beside_safetensors_is_left_where_it_is() -> None:
    names = [*checkpoint_files(), "pytorch_model.bin", "training_args.bin", "modeling_x.py"]
    taken = select_files(names, "x")
    assert not any(name.endswith((".bin", ".py", ".md")) for name in taken)
    assert "chat_template.jinja" in taken


def test_another_model_type_is_refused(folder: Folder) -> None:
    files = checkpoint_files() | {"config.json": b'{"model_type": "llama"}'}
    with pytest.raises(DataError, match=r"config\.json: found model_type 'llama'.*muse_glimmer"):
        check_checkpoint(folder(files))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_missing_or_broken_json_file_is_named(folder: Folder, name: str) -> None:
    files = checkpoint_files()
    source = folder(files | {name: b"{"})
    with pytest.raises(DataError, match=f"{name}: expected JSON"):
        check_checkpoint(source)
    (source / name).write_text("[]")
    with pytest.raises(DataError, match=f"{name}: expected a JSON object"):
        check_checkpoint(source)
    (source / name).unlink()
    with pytest.raises(DataError, match=f"found no {name}"):
        check_checkpoint(source)


def parts() -> dict[str, bytes]:
    files = checkpoint_files()
    del files["model.safetensors"]
    files["model-00001-of-00002.safetensors"] = safetensors_bytes({"a": [2, 3]})
    files["model-00002-of-00002.safetensors"] = safetensors_bytes({"b": [4]})
    weight_map = {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


def test_weights_in_parts(folder: Folder) -> None:
    found = check_checkpoint(folder(parts()))
    assert (found["tensors"], found["parameters"], len(found["weights"])) == (2, 10, 2)
    taken = select_files([*parts(), "adapter.safetensors"], "x")
    assert "adapter.safetensors" not in taken and len(taken) == 7


def test_a_missing_part_is_named(folder: Folder) -> None:
    source = folder(parts())
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(IntegrityError, match="found no model-00002-of-00002"):
        check_checkpoint(source)


def test_a_tensor_missing_in_its_part_is_named(folder: Folder) -> None:
    files = parts()
    files["model-00002-of-00002.safetensors"] = safetensors_bytes({"c": [4]})
    with pytest.raises(IntegrityError, match=r"00002.*found no tensor 'b'"):
        check_checkpoint(folder(files))


def test_no_weights_at_all() -> None:
    with pytest.raises(DataError, match="found no weights"):
        select_files(["config.json"], "x")
    with pytest.raises(DataError, match="found other.safetensors, expected model.safetensors"):
        select_files(["other.safetensors", *(n for n in checkpoint_files() if n[0] in "ct")], "x")
