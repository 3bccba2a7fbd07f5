"""Checkpoints: what is restored is what was saved, and nothing half-written is taken for whole."""

import pytest
import torch

from glimmer.errors import ConfigError
from glimmer.training import checkpoint as checkpoints


def trained(steps, start=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    done = 0
    if start is not None:
        done, path = start
        checkpoints.restore(path, step=done, model=model, optimizer=optimizer)
    for step in range(done, steps):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def save(folder, step, keep=2, settings="a" * 64, best=None):
    model, optimizer = trained(step)
    return checkpoints.save(
        folder,
        step=step,
        model=model,
        optimizer=optimizer,
        settings_hash=settings,
        keep=keep,
        best=best,
    )


def test_resuming_gives_the_bits_of_an_undisturbed_run(tmp_path):
    save(tmp_path, 3)
    start = checkpoints.latest(tmp_path, settings_hash="a" * 64)
    resumed, _ = trained(7, start)
    straight, _ = trained(7)
    for a, b in zip(resumed.parameters(), straight.parameters(), strict=True):
        assert torch.equal(a, b)


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000003", "step-000004"]


@pytest.mark.parametrize("hurt", ["truncate", "flip", "no_state"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, hurt):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    tensors = newest / checkpoints.TENSORS
    data = tensors.read_bytes()
    if hurt == "truncate":
        tensors.write_bytes(data[:-10])
    elif hurt == "flip":
        tensors.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        (newest / checkpoints.STATE).unlink()
    step, path = checkpoints.latest(tmp_path, settings_hash="a" * 64)
    assert (step, path.name) == (1, "step-000001")


def test_other_settings_are_refused_by_name(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(ConfigError, match="other settings.*run:"):
        checkpoints.latest(tmp_path, settings_hash="b" * 64)


def test_an_empty_folder_has_none(tmp_path):
    assert checkpoints.latest(tmp_path, settings_hash="a" * 64) is None


def test_the_checkpoint_of_the_best_step_outlives_newer_ones(tmp_path):
    for step in (2, 4, 6, 8, 10):
        save(tmp_path, step, keep=1, best=5 if step > 5 else step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000004", "step-000010"]
    save(tmp_path, 12, keep=1, best=11)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000010", "step-000012"]
