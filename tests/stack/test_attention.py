"""Which kernel the generator attends by, with the installed vLLM; no GPU is asked."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="the GPU stack (envs/train) is not installed here")

from glimmer.training.titan import compat  # noqa: E402

compat.apply()

import torchtitan.experiments.rl.models.attention as attention  # noqa: E402

TORCH, VLLM = attention.PyTorchVarlenAttentionImpl, attention.FlashAttentionImpl
ARGUMENTS = [name for name in inspect.signature(TORCH.forward).parameters if name != "self"]


@pytest.mark.parametrize(
    ("invariant", "transform", "kernel"),
    [(False, None, "vllm"), (True, None, "torch"), (False, lambda out, lse: out, "torch")],
)
def test_the_kernel_follows_the_mode(monkeypatch, invariant, transform, kernel):
    assert ARGUMENTS == list(inspect.signature(VLLM.forward).parameters)[1:]
    monkeypatch.setattr(TORCH, "forward", lambda self, *given, **more: ("torch", given, more))
    monkeypatch.setattr(VLLM, "forward", lambda self, *given, **more: ("vllm", given, more))
    compat.use_vllm_attention()
    changed = TORCH.forward
    compat.use_vllm_attention()
    assert TORCH.forward is changed
    monkeypatch.setattr(attention, "is_in_batch_invariant_mode", lambda: invariant)
    layer = SimpleNamespace(out_transform=transform)
    assert TORCH.forward(layer, 1, 2, output=3) == (kernel, (1, 2), {"output": 3})
