"""A digest of weights that is the same on any number of GPUs, and its check after a sync.

Per tensor: the sum modulo 2^64 of a mix of each element's bits, so that shards can be added up in
any order and held in any layout; over all tensors: sha256 of the sorted (name, sum). It sees a
changed, missing or unchanged weight; it does not see two elements of one tensor exchanged.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from glimmer.errors import GlimmerError
from glimmer.files import read_json, write_json

_BLOCK = 1 << 24  # elements mixed at a time: 128 MiB of int64
_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def tensor_sum(tensor: torch.Tensor) -> int:
    """The sum of one tensor, over all shards of a DTensor; the same on every rank."""
    local = getattr(tensor, "_local_tensor", tensor).detach()
    bits = local.contiguous().view(-1).view(_BITS[local.dtype])
    total = torch.zeros((), dtype=torch.int64, device=local.device)
    for block in bits.split(_BLOCK):
        x = block.to(torch.int64)
        total += ((x * 0x9E3779B97F4A7C1) ^ (x << 21)).sum()
    placements = getattr(tensor, "placements", ())
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():  # `is_shard` does not count strided shards
            torch.distributed.all_reduce(total, group=tensor.device_mesh.get_group(dim))
    return int(total)


def digest(state: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.bfloat16) -> str:
    """Hex digest of the floating-point tensors of a state dict, as they are in `dtype`."""
    sums = {
        name: tensor_sum(value.to(dtype))
        for name, value in state.items()
        if value.dtype in _BITS and ".vllm_attn" not in name
    }
    text = "".join(f"{name} {sums[name]}\n" for name in sorted(sums))
    return hashlib.sha256(text.encode()).hexdigest()


def noted(
    put: Callable[..., Awaitable[None]], note: Callable[..., None]
) -> Callable[..., Awaitable[None]]:
    """torchstore's `put_state_dict`, which then tells `note` the digest and the seconds of the put.

    The digest is taken before anything is awaited. Off-policy the next forward pass runs while a
    put waits, and both talk over the same process groups: behind the put, one rank would add up its
    digest while another gathers its layers, and all would wait for ever.
    """

    async def put_and_note(state_dict: Mapping[str, torch.Tensor], *args: Any, **options: Any):
        found = digest(state_dict)
        start = time.perf_counter()
        await put(state_dict, *args, **options)
        note(digest=found, seconds=time.perf_counter() - start)

    return put_and_note


class SyncLog:
    """What each side held after weight version v: `sync/<role>-<v>.json` in the run's folder."""

    def __init__(self, work: Path | str) -> None:
        self.folder = Path(work) / "sync"

    def note(self, role: str, version: int, **facts: Any) -> None:
        """Called by the trainer after a push, by the generator after a pull."""
        write_json(self.folder / f"{role}-{version}.json", facts)

    def read(self, role: str, version: int) -> dict[str, Any]:
        """The facts that `note` wrote."""
        return read_json(self.folder / f"{role}-{version}.json")

    def check(self, version: int, *, may_stand_still: bool) -> dict[str, Any]:
        """Compare both sides at `version`, and the generator with the version before.

        Args:
            may_stand_still: the optimiser step before changed nothing, as in the control with
                advantages of 0.

        Returns:
            The trainer's facts.

        Raises:
            GlimmerError: the generator holds other weights than the trainer sent, or the same as
                before.
        """
        trainer, generator = self.read("trainer", version), self.read("generator", version)
        if trainer["digest"] != generator["digest"]:
            raise GlimmerError(
                f"weight sync {version}: the trainer sent {trainer['digest'][:16]}, the generator "
                f"holds {generator['digest'][:16]}. Rollouts would come from other weights than "
                "those that learn; the last checkpoint is from before this."
            )
        before = self.folder / f"generator-{version - 1}.json"
        if before.exists() and not may_stand_still:
            old = read_json(before)["digest"]
            if old == generator["digest"]:
                raise GlimmerError(
                    f"weight sync {version} changed nothing in the generator ({old[:16]} before "
                    "and after): it is read into a buffer that nobody uses, or the optimiser step "
                    "was 0."
                )
        return trainer
