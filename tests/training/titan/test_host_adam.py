"""Adam's moments on the host, on plain tensors; sharded ones are in test_fsdp.py."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from glimmer.errors import GlimmerError
from glimmer.titanrl import ensure_importable

ensure_importable()

from torchtitan.components.optimizer import default_adamw  # noqa: E402

from glimmer.training.titan import host_adam  # noqa: E402
from glimmer.training.titan.host_adam import HostAdam  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def optimizers():
    """Torchtitan's and ours, each with a model of its own from equal weights."""
    adamw = default_adamw(lr=0.01)
    for config in (adamw, HostAdam.Config(param_groups=adamw.param_groups)):
        torch.manual_seed(0)
        model = nn.Linear(5, 3).to(DEVICE)
        yield model, config.build(model_parts=[model])


def train(model, optimizer, steps):
    for step in steps:
        model(torch.full((2, 5), step + 1.0, device=DEVICE)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def held(optimizer):
    state = optimizer.optimizers[0].state.values()
    return sum(s[k].untyped_storage().size() for s in state for k in ("exp_avg", "exp_avg_sq"))


def test_steps_are_the_same_and_nothing_is_held_between_them():
    (model, there), (other, away) = optimizers()
    for step in range(3):
        train(model, there, [step])
        train(other, away, [step])
        assert held(there) == 2 * 4 * 18 and held(away) == 0
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    expected, found = there.state_dict(), away.state_dict()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(found[name])), name


def test_a_save_that_fails_leaves_nothing_behind():
    _, (model, optimizer) = optimizers()
    train(model, optimizer, [0])

    def save(step):
        assert held(optimizer) == 0 and optimizer.state_dict() and held(optimizer) > 0
        raise OSError(f"no space for step {step}")

    checkpointer = SimpleNamespace(save=save)
    optimizer.put_away_after(checkpointer)
    with pytest.raises(OSError, match="step 7"):
        checkpointer.save(7)
    assert held(optimizer) == 0
    train(model, optimizer, [1])


def test_memory_that_cannot_be_locked_is_told(monkeypatch):
    cudart = SimpleNamespace(cudaHostRegister=lambda *_: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    with pytest.raises(GlimmerError, match=r"adam_on_host: 0\.0 GB .*CUDA error 2.*to false"):
        host_adam._locked(8, torch.device("cuda"))
