"""What torchtitan 0.3.0 needs changed at process start, in one place. Applied in every process.

The largest change, to torch's FSDP, stands in `fsdp.py`.

Each change names the symptom that it cures. `apply` refuses another torchtitan: what is changed
here would then have to be read again.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os

from glimmer.errors import ConfigError

TORCHTITAN = "0.3.0"
FLASH_ATTENTION_3 = "flash_attn_interface"


def check_version() -> None:
    """Raise `ConfigError` unless the installed torchtitan is the one this was written for."""
    found = importlib.metadata.version("torchtitan")
    if found != TORCHTITAN:
        raise ConfigError(
            f"torchtitan {found} is installed, glimmer.training.titan.compat was written for "
            f"{TORCHTITAN}. Install the locked environment again (envs/train), or read that module "
            "against the new version."
        )


def use_flash_attention_2() -> None:
    """Without FlashAttention 3, which has no wheel, the GPU counts as one below SM 9.0.

    Symptom: `No module named 'flash_attn_interface'` on a Hopper GPU. That one question decides two
    things: the attention kernel of the model, and vLLM's KV block size of 256, without which
    FlashAttention 2 fails with "Paged KV cache block size must be divisible by 256". Must run
    before torchtitan's attention module is imported.
    """
    if importlib.util.find_spec(FLASH_ATTENTION_3) is not None:
        return
    import torchtitan.tools.utils as utils

    found = utils.has_cuda_capability
    if getattr(found, "below_hopper", False):
        return

    def has_cuda_capability(major: int, minor: int) -> bool:
        return (major, minor) < (9, 0) and found(major, minor)

    has_cuda_capability.below_hopper = True
    utils.has_cuda_capability = has_cuda_capability


def use_vllm_attention() -> None:
    """The generator attends by vLLM's own kernel, outside batch-invariant mode.

    Symptom: torch's FlashAttention 2, which is there so that trainer and generator agree bit for
    bit, takes ten times as long to decode as the FlashAttention 3 that vLLM brings (128 requests of
    600 tokens on an H200: 0.39 ms a layer against 0.03). In batch-invariant mode nothing changes.
    Called where the generator's module is imported, since it imports vLLM.
    """
    import torchtitan.experiments.rl.models.attention as attention

    kind = attention.PyTorchVarlenAttentionImpl
    of_torch, of_vllm = kind.forward, attention.FlashAttentionImpl.forward
    if getattr(of_torch, "or_vllm", False):
        return

    @functools.wraps(of_torch)
    def forward(self, *args, **kwargs):
        agree = attention.is_in_batch_invariant_mode() or self.out_transform is not None
        return (of_torch if agree else of_vllm)(self, *args, **kwargs)

    forward.or_vllm = True
    kind.forward = forward


def without_mismatched_cudnn() -> None:
    """Turn cuDNN off where the one at run time is older than torch was built for.

    Symptom: `RuntimeError: cuDNN version incompatibility` at the first convolution or attention
    that asks for it. Nothing in a text model needs cuDNN.
    """
    import torch

    try:
        torch.backends.cudnn.version()
    except RuntimeError:
        torch.backends.cudnn.enabled = False


def apply() -> None:
    """All changes, in the order in which they must be made. Called again, it does nothing more."""
    check_version()
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    without_mismatched_cudnn()
    use_flash_attention_2()
    from glimmer.training.titan import fsdp

    fsdp.apply()


def bootstrap() -> None:
    """First call in every spawned process, before its actor is unpickled.

    torchstore is imported here because two actors that unpickle at once race on its import
    (symptom: `KeyError: 'torchstore'`).
    """
    apply()
    import torchstore  # noqa: F401
