"""A batched sampler behind TitanRL's `generate_fn`, deterministic in what it batches.

The rollouts of a step run concurrently and meet at the sampler: once every rollout that has not
ended waits for a completion, all of them are decoded together, in the order of their request ids.
So the batch does not depend on who answered first, and two runs give the same tokens. The keys and
values of a rollout are kept from turn to turn; the prompts' common prefix is computed once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, replace

import torch

from glimmer.titanrl import ensure_importable
from glimmer.training.local.forward import (
    PrefixForward,
    PrefixKV,
    RowCache,
    common_prefix,
    pad_rows,
)

ensure_importable()

from torchtitan.experiments.rl.types import Completion  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """TitanRL's sampling parameters, without its module (which imports vllm)."""

    temperature: float = 1.0
    """0 is greedy."""
    max_tokens: int = 64
    """Sampled tokens a turn at most."""
    seed: int | None = None
    """With the request id it decides a completion's random numbers."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling ends after any of these."""


@dataclass
class _Request:
    """One prompt waiting for its completion."""

    key: tuple[int, ...]  # (group, rollout, turn), for an order that does not depend on timing
    request_id: str
    session: str
    prompt: list[int]
    sampling: SamplingConfig
    future: asyncio.Future


@dataclass
class _Sessions:
    """What the cache holds: a shared prefix, and for each session the tokens after it."""

    prefix_ids: list[int]
    prefix: PrefixKV
    cache: RowCache
    rows: dict[str, int]
    tokens: list[list[int]]


class BatchedSampler:
    """Generates for many concurrent rollouts with one model, in one thread.

    Use: `expect(n)` before n rollouts start, `generate` as their `generate_fn`, `leave()` when one
    ends, `reset()` after the weights have changed.

    Attributes:
        tokens_sampled: tokens sampled since the last `reset`.
        seconds: time spent generating since the last `reset`.
        version: policy version put on completions.
    """

    def __init__(self, model) -> None:
        self.forward = PrefixForward(model)
        self.version = 0
        self._live = 0
        self._waiting: list[_Request] = []
        self._sessions: _Sessions | None = None
        self.tokens_sampled, self.seconds = 0, 0.0

    def reset(self) -> None:
        """Forget all keys and values, and the counts."""
        self._sessions = None
        self.tokens_sampled, self.seconds = 0, 0.0

    def expect(self, rollouts: int) -> None:
        """Announce rollouts about to start; no batch is decoded until all of them wait or ended."""
        self._live += rollouts

    def leave(self) -> None:
        """A rollout has ended. Call it on the event loop's thread."""
        self._live -= 1
        self._run_if_complete()

    async def generate(
        self,
        prompt_token_ids: list[int],
        *,
        request_id: str,
        routing_session_id: str | None = None,
        sampling_config: SamplingConfig | None = None,
    ) -> Completion:
        """TitanRL's `GenerateFn`. Returns when the whole batch is decoded."""
        request = _Request(
            key=tuple(int(part.split("=")[1]) for part in request_id.split("/")),
            request_id=request_id,
            session=routing_session_id or request_id,
            prompt=prompt_token_ids,
            sampling=sampling_config or SamplingConfig(),
            future=asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(request)
        self._run_if_complete()
        return await request.future

    def _run_if_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self._live:
            return
        batch, self._waiting = sorted(self._waiting, key=lambda r: r.key), []
        start = time.monotonic()
        try:
            completions = self.complete(batch)
        except Exception as error:
            for request in batch:
                request.future.set_exception(error)
            return
        self.seconds += time.monotonic() - start
        for request, completion in zip(batch, completions, strict=True):
            request.future.set_result(completion)

    # ---- synchronous part ------------------------------------------------------------------

    @torch.no_grad()
    def complete(self, batch: list[_Request]) -> list[Completion]:
        """Decode one batch to its end."""
        sampling = batch[0].sampling
        if any(replace(r.sampling, seed=None) != replace(sampling, seed=None) for r in batch):
            raise ValueError("the requests of one batch must share all sampling settings but seed")
        state = self._place(batch, sampling.max_tokens)
        new = [
            request.prompt[len(state.prefix_ids) + len(tokens) :]
            for request, tokens in zip(batch, state.tokens, strict=True)
        ]
        tokens, valid = pad_rows(new)
        lengths = torch.tensor([len(t) for t in state.tokens])
        hidden = self.forward.append(state.prefix, state.cache, lengths, tokens, valid)
        hidden = hidden[torch.arange(len(batch)), valid - 1]
        lengths = lengths + valid
        for row, added in zip(state.tokens, new, strict=True):
            row.extend(added)

        uniforms = torch.stack(
            [uniform_numbers(r.sampling.seed, r.request_id, sampling.max_tokens) for r in batch]
        )
        stops = torch.tensor(sorted(sampling.stop_token_ids))
        sampled: list[torch.Tensor] = []
        logprobs: list[torch.Tensor] = []
        finished = torch.zeros(len(batch), dtype=torch.bool)
        ones = torch.ones(len(batch), dtype=torch.long)
        for step in range(sampling.max_tokens):
            token, logprob = pick(
                self.forward.logits(hidden), sampling.temperature, uniforms[:, step]
            )
            sampled.append(token)
            logprobs.append(logprob)
            finished |= torch.isin(token, stops)
            if finished.all() or step + 1 == sampling.max_tokens:
                break
            # Rows that have ended go on writing behind their end, where nothing reads it.
            hidden = self.forward.append(
                state.prefix, state.cache, lengths + step, token[:, None], ones
            )[:, 0]
        return self._completions(batch, state, torch.stack(sampled, 1), torch.stack(logprobs, 1))

    def _completions(
        self,
        batch: list[_Request],
        state: _Sessions,
        sampled: torch.Tensor,
        logprobs: torch.Tensor,
    ) -> list[Completion]:
        """Cut each row [B, S] after its first stop token and remember what the cache holds."""
        completions = []
        for i, request in enumerate(batch):
            ids, scores = sampled[i].tolist(), logprobs[i].tolist()
            stops = request.sampling.stop_token_ids
            end = next((j + 1 for j, token in enumerate(ids) if token in stops), None)
            ids, scores = ids[:end], scores[:end]
            # The last sampled token has not been through the model; the next turn appends it.
            state.tokens[i].extend(ids[:-1])
            self.tokens_sampled += len(ids)
            completions.append(
                Completion(
                    min_policy_version=self.version,
                    max_policy_version=self.version,
                    request_id=request.request_id,
                    token_ids=ids,
                    token_logprobs=scores,
                    finish_reason="stop" if end is not None else "length",
                )
            )
        return completions

    def _place(self, batch: list[_Request], max_tokens: int) -> _Sessions:
        """The cache rows of this batch, in its order, kept from earlier turns where they fit."""
        old = self._sessions
        known = old is not None and all(
            request.session in old.rows and request.prompt[: len(old.prefix_ids)] == old.prefix_ids
            for request in batch
        )
        if not known:
            shared = common_prefix([request.prompt for request in batch])
            prefix_ids = batch[0].prompt[: max(shared, 1)]
            prefix = self.forward.prefix(prefix_ids)
            kept: list[list[int]] = [[] for _ in batch]
            old_rows = None
        else:
            prefix_ids, prefix = old.prefix_ids, old.prefix
            old_rows = [old.rows[request.session] for request in batch]
            kept = [
                _agreeing(old.tokens[row], request.prompt[len(prefix_ids) : -1])
                for row, request in zip(old_rows, batch, strict=True)
            ]
        longest = max(len(request.prompt) for request in batch) - len(prefix_ids)
        self.forward.check_length(len(prefix_ids) + longest + max_tokens)
        capacity = longest + max_tokens
        if old_rows is None:
            cache = self.forward.new_cache(len(batch), capacity)
        else:
            cache = old.cache.select(torch.tensor(old_rows), capacity)
        self._sessions = _Sessions(
            prefix_ids=prefix_ids,
            prefix=prefix,
            cache=cache,
            rows={request.session: i for i, request in enumerate(batch)},
            tokens=kept,
        )
        return self._sessions


def _agreeing(cached: list[int], wanted: list[int]) -> list[int]:
    """The common beginning of what is cached and what the prompt asks for."""
    if wanted[: len(cached)] == cached:
        return list(cached)
    length = common_prefix([cached, wanted], keep=0)
    return cached[:length]


def pick(
    logits: torch.Tensor, temperature: float, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row and its log-probability at that temperature.

    Args:
        logits: [B, V] float32.
        temperature: 0 takes the largest logit, with log-probabilities at temperature 1.
        uniform: [B] in [0, 1); inverted through the cumulative distribution.
    """
    logprobs = torch.log_softmax(logits / temperature if temperature else logits, -1)
    if not temperature:
        token = logits.argmax(-1)
    else:
        cumulative = logprobs.double().exp().cumsum(-1)
        target = uniform.double()[:, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, target, right=True)[:, 0]
        token = token.clamp(max=logits.shape[-1] - 1)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


def uniform_numbers(seed: int | None, request_id: str, count: int) -> torch.Tensor:
    """[count] numbers in [0, 1) that depend on seed and request id alone, not on the batch."""
    digest = hashlib.sha256(f"{seed}/{request_id}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.rand(count, generator=generator)
