"""Adam's moments in host memory between optimizer steps (`titan.adam_on_host`).

A trainer GPU is fullest in the backward pass, where nothing reads Adam's m and v, 8 bytes a
parameter. Here they are on the GPU during the optimizer step only, when activations and gathered
layers are gone. What is computed is the same to the last bit; each step copies them there and back.

The tensors themselves stay, so that optimizer, checkpoint and sharding see nothing new: between
steps their storage has no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import OptimizersContainer

from glimmer.errors import GlimmerError

_STEP = "step"  # Adam's counter: four bytes, stays


class HostAdam(OptimizersContainer):
    """`OptimizersContainer` whose moments wait in host memory."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._host: torch.Tensor | None = None  # the moments of this rank, one behind the other
        self._away = False

    def step(self, closure: None = None) -> None:
        self.fetch()
        super().step(closure)
        self.put_away()

    def state_dict(self) -> dict[str, Any]:
        """The state, on the GPU until `put_away` or the end of the next step."""
        self.fetch()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.fetch()
        super().load_state_dict(state_dict)
        self.put_away()

    def put_away_after(self, checkpointer: CheckpointManager) -> None:
        """Put the moments away whenever `checkpointer`, which saves them from the GPU, is done."""
        save = checkpointer.save

        def save_and_put_away(*args: Any, **kwargs: Any) -> bool:
            try:
                return save(*args, **kwargs)
            finally:
                self.put_away()

        checkpointer.save = save_and_put_away

    def fetch(self) -> None:
        """Bring the moments to the GPU, if they are away."""
        if not self._away:
            return
        for moment, host in self._pairs():
            moment.untyped_storage().resize_(host.numel() * host.itemsize)
            moment.copy_(host.view(moment.shape), non_blocking=True)
        self._away = False

    def put_away(self) -> None:
        """Take the moments' bytes off the GPU, if there are any."""
        if self._away:
            return
        moments = list(self._moments())
        if not moments:
            return
        if self._host is None:
            self._host = _locked(sum(m.numel() * m.itemsize for m in moments), moments[0].device)
        for moment, host in self._pairs():
            host.view(moment.shape).copy_(moment, non_blocking=True)
        if moments[0].is_cuda:
            torch.cuda.current_stream().synchronize()
        for moment in moments:
            moment.untyped_storage().resize_(0)
        self._away = True

    @torch.no_grad()
    def _moments(self) -> Iterator[torch.Tensor]:
        """This rank's part of each moment."""
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                for name, value in state.items():
                    if name != _STEP and isinstance(value, torch.Tensor):
                        yield value.to_local() if isinstance(value, DTensor) else value

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each moment and its place in host memory, flat."""
        start = 0
        for moment in self._moments():
            size = moment.numel() * moment.itemsize
            yield moment, self._host[start : start + size].view(moment.dtype)
            start += size


def _locked(size: int, device: torch.device) -> torch.Tensor:
    """`size` bytes of host memory, page-locked where a GPU copies to and from it.

    Registered after the fact: torch's own pinned memory is rounded up to a power of two, which for
    the paper run would be 64 GB for 37.
    """
    host = torch.empty(size, dtype=torch.uint8)
    if device.type == "cuda" and size:
        failed = int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), size, 0))
        if failed:
            raise GlimmerError(
                f"titan.adam_on_host: {size / 1e9:.1f} GB of host memory cannot be locked for this "
                f"GPU (CUDA error {failed}). Free memory, raise `ulimit -l`, or set "
                "titan.adam_on_host to false."
            )
    return host
