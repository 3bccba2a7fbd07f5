"""A step that training kept comes out as the weights of that step, in the released layout."""

import shutil
from pathlib import Path

import pytest
import torch

from glimmer.errors import DataError
from glimmer.files import write_jsonl
from glimmer.training import checkpoint as checkpoints
from glimmer.training.local.kept import export_step
from glimmer.training.local.model import load_model, save_model

SHIPPED = Path(__file__).parents[2] / "resources/tiny_glimmer"
ROWS = [{"step": 1, "reward": 0.25, "time": 1.5}, {"step": 2, "reward": 0.5, "time": 2.5}]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A training folder of two steps under key `b`, and another run's under `a`; what step 1 and 2
    were."""
    folder = tmp_path_factory.mktemp("training")
    model = load_model(SHIPPED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in (1, 2):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 / step)
        optimizer.step()
        checkpoints.save(
            folder / "checkpoints/b",
            step=step,
            model=model,
            optimizer=optimizer,
            settings_hash="b",
            keep=2,
        )
        save_model(model, SHIPPED, folder / f"expected-{step}")
    write_jsonl(folder / "metrics.jsonl", ROWS)
    write_jsonl(folder / "checkpoints/b/metrics.jsonl", ROWS)
    shutil.copytree(folder / "checkpoints/b/step-000002", folder / "checkpoints/a/step-000001")
    write_jsonl(folder / "checkpoints/a/metrics.jsonl", [ROWS[0] | {"time": 9.0}, ROWS[1]])
    return folder


@pytest.mark.parametrize("step", [1, 2])
def test_the_weights_are_those_of_the_step(made, tmp_path, step):
    export_step(made, source=SHIPPED, step=step, out=tmp_path / "out")
    expected = made / f"expected-{step}"
    names = sorted(path.name for path in expected.iterdir())
    assert "manifest.json" in names
    assert names == sorted(path.name for path in (tmp_path / "out").iterdir())
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (expected / name).read_bytes(), name


def test_a_step_that_was_not_kept(made, tmp_path):
    with pytest.raises(DataError, match=r"only step-000001, step-000002; .*keep_checkpoints"):
        export_step(made, source=SHIPPED, step=3, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_one_and_other_runs_are_refused(made, tmp_path):
    shutil.copytree(made, folder := tmp_path / "copy")
    with open(folder / "checkpoints/b/step-000001" / checkpoints.TENSORS, "ab") as handle:
        handle.write(b"x")
    with pytest.raises(DataError, match="no whole checkpoint of this step"):
        export_step(folder, source=SHIPPED, step=1, out=tmp_path / "out")
    write_jsonl(folder / "metrics.jsonl", ROWS[:1])
    with pytest.raises(DataError, match="no folder whose metrics are those of"):
        export_step(folder, source=SHIPPED, step=1, out=tmp_path / "out")
