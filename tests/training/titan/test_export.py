import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from glimmer.assets import verify_manifest
from glimmer.errors import DataError
from glimmer.training.local.model import is_text, load_model
from glimmer.training.titan.export import export, save_text_only

SOURCE = Path(__file__).parents[3] / "resources" / "tiny_glimmer"


@pytest.fixture
def saved(tmp_path):
    """TitanRL's last save: the text model's tensors, changed, in two files."""
    tensors = {k: v for k, v in load_file(SOURCE / "model.safetensors").items() if is_text(k)}
    changed = {k: v + torch.ones_like(v) for k, v in tensors.items()}
    names = sorted(changed)
    folder = tmp_path / "step-5"
    folder.mkdir()
    for i, part in enumerate((names[:10], names[10:])):
        save_file({k: changed[k] for k in part}, folder / f"model-0000{i}-of-00002.safetensors")
    return folder


def test_trained_text_carried_over_vision_and_every_other_file(saved, tmp_path):
    export(saved, SOURCE, tmp_path / "final")
    old = load_file(SOURCE / "model.safetensors")
    new = load_file(tmp_path / "final" / "model.safetensors")
    assert set(new) == set(old)
    for name, tensor in new.items():
        assert tensor.dtype == old[name].dtype
        expected = old[name] + torch.ones_like(old[name]) if is_text(name) else old[name]
        assert torch.equal(tensor, expected)
    files = {p.name for p in SOURCE.iterdir()}
    assert {p.name for p in (tmp_path / "final").iterdir()} == files
    verify_manifest(tmp_path / "final")
    load_model(tmp_path / "final")


def test_a_checkpoint_of_several_files_keeps_them(saved, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(SOURCE, source)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    names = sorted(tensors)
    for i, part in enumerate((names[:7], names[7:])):
        save_file({k: tensors[k] for k in part}, source / f"model-0000{i + 1}-of-00002.safetensors")
    export(saved, source, tmp_path / "final")
    for path in source.glob("*.safetensors"):
        assert set(load_file(tmp_path / "final" / path.name)) == set(load_file(path))


def test_an_incomplete_save_is_refused_by_name(saved, tmp_path):
    (saved / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(DataError, match=r"has no tensor .*last save is damaged or incomplete"):
        export(saved, SOURCE, tmp_path / "final")
    assert not (tmp_path / "final").exists()


def test_an_empty_save_is_refused(tmp_path):
    (tmp_path / "step-5").mkdir()
    with pytest.raises(DataError, match="holds no"):
        export(tmp_path / "step-5", SOURCE, tmp_path / "final")


def test_a_save_of_another_model_is_refused(saved, tmp_path):
    save_file({"model.language_model.more.weight": torch.ones(2)}, saved / "more.safetensors")
    with pytest.raises(DataError, match="not a save of this model"):
        export(saved, SOURCE, tmp_path / "final")


@pytest.mark.parametrize(
    ("planned", "expected"),
    [
        (None, None),  # one file, no index
        (
            {"model.vision_tower.a": 1, "model.language_model.b": 2, "lm_head.weight": 3},
            {"model.language_model.b": 1, "lm_head.weight": 2},
        ),
    ],
)
def test_a_save_names_no_tensor_that_training_does_not_own(planned, expected):
    """What is in no rank's part gets a header of no type, and the file cannot be read."""
    adapter = SimpleNamespace(fqn_to_index_mapping=planned)
    save_text_only(adapter)
    assert adapter.fqn_to_index_mapping == expected
