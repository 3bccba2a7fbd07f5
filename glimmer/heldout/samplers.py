"""What answers held-out questions: one small interface, one engine behind it each.

`glimmer.heldout.evaluation` drives TitanRL's rollouter with `Sampler.generate` and knows nothing
else of an engine. A further engine is one class here (or in a package of its own) and one line in
`open_sampler`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from glimmer.errors import ConfigError

VLLM_DECISIVE = ("generator_tp", "batch_invariant", "cudagraph", "context")
"""Keys of section `titan` that a completion of the engine `vllm` depends on."""


class Sampler(Protocol):
    """Completions for concurrent rollouts."""

    async def generate(self, prompt_token_ids: list[int], **options: Any) -> Any:
        """TitanRL's `GenerateFn`: keywords request_id, routing_session_id, sampling_config."""

    def sampling(
        self, *, temperature: float, max_tokens: int, seed: int, stop_token_ids: tuple[int, ...]
    ) -> Any:
        """The engine's own sampling settings, which `generate` gets back. They must have a field
        `seed`: TitanRL adds a rollout's place in its group to it."""

    def begin(self, rollouts: int) -> None:
        """A batch of so many rollouts starts; none of an earlier one is left."""

    def leave(self) -> None:
        """One rollout of the batch has ended. Called on the event loop's thread."""

    async def close(self) -> None:
        """The last batch is answered."""


class LocalSampler:
    """The CPU engine: batches of a fixed composition, so that a completion depends on nothing
    else."""

    def __init__(self, checkpoint: Path) -> None:
        from glimmer.training.local.model import load_model
        from glimmer.training.local.sampler import BatchedSampler, SamplingConfig

        self._batched = BatchedSampler(load_model(checkpoint))
        self.generate, self.sampling = self._batched.generate, SamplingConfig
        self.leave = self._batched.leave

    def begin(self, rollouts: int) -> None:
        self._batched.reset()
        self._batched.expect(rollouts)

    async def close(self) -> None:
        """Nothing is open."""


@contextlib.contextmanager
def open_sampler(
    engine: str, checkpoint: Path, *, threads: int, titan: Mapping[str, Any], log: Path
) -> Iterator[Sampler]:
    """The sampler of `evaluation.engine`, taken down at the end whatever happens.

    Args:
        engine: `local` or `vllm`.
        checkpoint: folder in Hugging Face layout.
        threads: of torch, where the engine computes on a CPU.
        titan: config section, of which the engine `vllm` takes its interpreter, degree and context.
        log: file for what the engine's own process prints.

    Raises:
        ConfigError: there is no such engine, or no program `titan.python`.
        GlimmerError: vLLM did not start.
    """
    if engine == "local":
        from glimmer.training.local.determinism import use_threads

        use_threads(threads)
        yield LocalSampler(checkpoint)
    elif engine == "vllm":
        from glimmer.heldout.vllm import VLLMSampler, vllm_server

        with vllm_server(checkpoint, titan, log=log) as url:
            yield VLLMSampler(url, context=titan["context"])
    else:
        raise ConfigError(
            f"evaluation.engine: found {engine!r}, expected local or vllm. Correct it in the "
            "config."
        )
