"""TitanRL's two actors, with what this project adds: a digest of the weights at each sync, and
the order in which they take memory on one GPU.

Importing this module changes torchtitan (see `compat`); Monarch imports it in each spawned process.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from glimmer.errors import GlimmerError
from glimmer.logs import get_logger
from glimmer.training.titan import compat

compat.apply()

import torch  # noqa: E402
import torchstore  # noqa: E402
from torchtitan.distributed.spmd_types import plain_tensor_to_dtensor_state_dict  # noqa: E402
from torchtitan.distributed.utils import get_spmd_backend  # noqa: E402
from torchtitan.experiments.rl.actors.generator import VLLMGenerator  # noqa: E402
from torchtitan.experiments.rl.actors.trainer import PolicyTrainer  # noqa: E402

from glimmer.training.titan.digest import SyncLog, digest, noted  # noqa: E402
from glimmer.training.titan.export import save_text_only  # noqa: E402
from glimmer.training.titan.host_adam import HostAdam  # noqa: E402

compat.use_vllm_attention()

READY = "GLIMMER_TRAINER_READY"
"""Environment variable: file that the trainer makes once its memory is taken (one GPU only)."""
SETUP_TIMEOUT = "GLIMMER_SETUP_TIMEOUT_S"
_GIB = 2**30

logger = get_logger(__name__)


def peak_memory() -> dict[str, float]:
    """Peak GPU memory of this process since the last call, in GiB: what was allocated by tensors
    and what was reserved for them."""
    peak = {
        "allocated_gib": torch.cuda.max_memory_allocated() / _GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / _GIB,
    }
    torch.cuda.reset_peak_memory_stats()
    return peak


class Trainer(PolicyTrainer):
    """`PolicyTrainer` that notes what it sends."""

    def __init__(self, config, *, output_dir: str, **kwargs) -> None:
        super().__init__(config, output_dir=output_dir, **kwargs)
        save_text_only(self.sd_adapter)
        if isinstance(self.optimizers, HostAdam):
            self.optimizers.put_away_after(self.checkpointer)
            self.optimizers.put_away()  # a resumed run has them now
        sync = SyncLog(output_dir)

        def note(**facts: Any) -> None:
            facts |= peak_memory()
            if int(os.environ.get("RANK", "0")) == 0:
                sync.note("trainer", self.policy_version, **facts)

        torchstore.put_state_dict = noted(torchstore.put_state_dict, note)
        if ready := os.environ.get(READY):
            Path(ready).touch()


class Generator(VLLMGenerator):
    """`VLLMGenerator` that notes what it received.

    On a GPU shared with the trainer it waits for the trainer's memory to be taken: vLLM sizes its
    KV cache by what is free, and counts what others take while it measures (symptom: "No available
    memory for the cache blocks").
    """

    def __init__(self, config, *, output_dir: str, **kwargs) -> None:
        if ready := os.environ.get(READY):
            deadline = time.monotonic() + float(os.environ[SETUP_TIMEOUT])
            while not Path(ready).exists():
                if time.monotonic() > deadline:
                    raise GlimmerError(
                        f"the trainer was not ready after titan.setup_timeout_s = "
                        f"{os.environ[SETUP_TIMEOUT]} s; its own message stands above."
                    )
                time.sleep(0.1)
        super().__init__(config, output_dir=output_dir, **kwargs)
        self._sync = SyncLog(output_dir)

    def _build_sampling_params(self, sampling: Any) -> Any:
        """TitanRL's, without a text that it never reads and without an object for each token."""
        params = super()._build_sampling_params(sampling)
        params.detokenize = False
        params.flat_logprobs = True
        return params

    async def _pull_model_state_dict(self, version: int) -> None:
        start = time.perf_counter()
        await super()._pull_model_state_dict(version)
        seconds = time.perf_counter() - start
        model = self._get_model()
        state = model.model.state_dict()
        if get_spmd_backend() == "spmd_types":
            state = plain_tensor_to_dtensor_state_dict(
                dict(state),
                state_dict_layouts=model.get_state_dict_layouts(),
                parallel_dims=model.parallel_dims,
            )
        facts = {"digest": digest(state), "seconds": seconds, **peak_memory()}
        if self._rank == 0:
            self._sync.note("generator", version, **facts)
