"""The log-probability gate: trainer and sampler must give the same numbers for the same tokens.

Three comparisons that compose, and a floor under all of them:
1. trainer: what the sampler noted while sampling, against the trainer's forward pass;
2. rescored: the same, against the sampler reading the finished sequence in one piece;
3. batch: the same prompts sampled one at a time, against all at once;
4. entropy: well under ln(vocabulary). A model of this architecture is initialised with all logits
   0; it passes every comparison and proves nothing.
A control perturbs the trainer's weights and must be seen by the first comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from glimmer.files import sha256_files
from glimmer.parity.conversations import gate_prompts
from glimmer.renderer import load_renderer
from glimmer.search_r1.prompt import SEARCH_TOOL
from glimmer.training.local.determinism import use_threads
from glimmer.training.local.engine import TokenBatch, logits_of_sampled
from glimmer.training.local.forward import PrefixForward, common_prefix, pad_rows
from glimmer.training.local.model import load_model, max_entropy, read_text_config
from glimmer.training.local.sampler import BatchedSampler, SamplingConfig
from glimmer.verdict import settle

_INCOMPARABLE = 1e9  # for rows of unequal length; JSON has no infinity
_CONTROL_NOISE = 0.01  # relative noise on the weights of the negative control


def check_logprobs(
    *,
    checkpoint: Path,
    questions: Path,
    corpus: Path,
    out: Path,
    settings: Mapping[str, Any],
    search: Mapping[str, Any],
    renderer: Mapping[str, Any],
    threads: int,
) -> dict[str, Any]:
    """Measure, write the verdict to `out`, and return it.

    Args:
        settings: config section `parity` (`prompts`, `max_logprob_diff`, `max_entropy_fraction`).
        search: config section `search` (`max_new_tokens`).
        renderer: config section `renderer`.

    Raises:
        GateFailed: a figure is outside its threshold; the verdict has been written.
    """
    use_threads(threads)
    native = load_renderer(checkpoint, renderer, tools=[SEARCH_TOOL])
    prompts = gate_prompts(native, questions, corpus, count=settings["prompts"])
    model = load_model(checkpoint)
    sampling = SamplingConfig(
        temperature=1.0,
        max_tokens=search["max_new_tokens"],
        seed=0,
        stop_token_ids=tuple(native.get_stop_token_ids()),
    )
    together = sample(model, prompts, sampling)
    alone = [
        completion
        for i, prompt in enumerate(prompts)
        for completion in sample(model, [prompt], sampling, first_group=i)
    ]
    noted = [c.token_logprobs for c in together]
    completions = [c.token_ids for c in together]
    trainer, entropy = trainer_logprobs(model, prompts, completions)
    rescored = sampler_logprobs(model, prompts, completions)

    measured = {
        "trainer_vs_sampler": largest_difference(noted, trainer),
        "sampler_vs_rescored": largest_difference(noted, rescored),
        "batch_vs_single": largest_difference(noted, [c.token_logprobs for c in alone]),
        "batch_vs_single_tokens_differing": sum(
            a.token_ids != b.token_ids for a, b in zip(together, alone, strict=True)
        ),
        "entropy": entropy,
        "max_entropy": max_entropy(read_text_config(checkpoint)),
        "control_trainer_vs_sampler": _control(model, prompts, completions, noted),
    }
    limit = settings["max_logprob_diff"]
    entropy_limit = settings["max_entropy_fraction"] * measured["max_entropy"]
    passed = (
        measured["trainer_vs_sampler"] <= limit
        and measured["sampler_vs_rescored"] <= limit
        and measured["batch_vs_single"] <= limit
        and measured["batch_vs_single_tokens_differing"] == 0
        and measured["entropy"] <= entropy_limit
        and measured["control_trainer_vs_sampler"] > limit
    )
    verdict = {
        "gate": "logprob_parity",
        "passed": passed,
        "measured": measured,
        "threshold": {
            "max_logprob_diff": limit,
            "max_entropy": entropy_limit,
            "control_at_least": limit,
        },
        "measured_on": {
            "prompts": len(prompts),
            "tokens": sum(map(len, completions)),
            "checkpoint_sha256": sha256_files(checkpoint, "*.safetensors"),
            "threads": threads,
        },
        "details": [],
    }
    settle(
        verdict,
        out,
        meaning="Training would learn from other probabilities than it sampled with.",
    )
    return verdict


def sample(
    model, prompts: list[list[int]], sampling: SamplingConfig, *, first_group: int = 0
) -> list[Any]:
    """Completions of all prompts in one batch."""
    sampler = BatchedSampler(model)

    async def run() -> list[Any]:
        sampler.expect(len(prompts))
        return await asyncio.gather(
            *(
                sampler.generate(
                    prompt,
                    request_id=f"group={first_group + i}/rollout=0/turn=0",
                    sampling_config=sampling,
                )
                for i, prompt in enumerate(prompts)
            )
        )

    return list(asyncio.run(run()))


def _token_batch(prompts: list[list[int]], completions: list[list[int]]) -> TokenBatch:
    rows = [p + c for p, c in zip(prompts, completions, strict=True)]
    shared = min(common_prefix(prompts), min(map(len, prompts)) - 1)
    tokens, lengths = pad_rows([row[shared:] for row in rows])
    starts = torch.tensor([len(p) - shared for p in prompts])
    at = torch.arange(tokens.shape[1])[None]
    mask = (at >= starts[:, None]) & (at < lengths[:, None])
    zeros = torch.zeros(tokens.shape)
    return TokenBatch(rows[0][:shared], tokens, mask, zeros, zeros)


@torch.no_grad()
def trainer_logprobs(
    model, prompts: list[list[int]], completions: list[list[int]]
) -> tuple[list[list[float]], float]:
    """The trainer's log-probability of each completion token, and the mean entropy in nats."""
    batch = _token_batch(prompts, completions)
    logits, labels, _, _ = logits_of_sampled(PrefixForward(model), batch)
    logprobs = torch.log_softmax(logits, -1)
    picked = logprobs.gather(-1, labels[:, None])[:, 0].split([len(c) for c in completions])
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    return [row.tolist() for row in picked], float(entropy)


@torch.no_grad()
def sampler_logprobs(
    model, prompts: list[list[int]], completions: list[list[int]]
) -> list[list[float]]:
    """The sampler's cached pass over the finished sequences, read in one piece."""
    forward = PrefixForward(model)
    batch = _token_batch(prompts, completions)
    rows, length = batch.tokens.shape
    prefix = forward.prefix(batch.prefix)
    cache = forward.new_cache(rows, length)
    zeros = torch.zeros(rows, dtype=torch.long)
    hidden = forward.append(prefix, cache, zeros, batch.tokens, zeros + length)[:, :-1]
    chosen = batch.mask[:, 1:]
    logprobs = torch.log_softmax(forward.logits(hidden[chosen]), -1)
    picked = logprobs.gather(-1, batch.tokens[:, 1:][chosen][:, None])[:, 0]
    return [row.tolist() for row in picked.split([len(c) for c in completions])]


def largest_difference(a: list[list[float]], b: list[list[float]]) -> float:
    """Largest absolute difference of two ragged lists; 1e9 for rows of unequal length."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if len(x) != len(y):
            return _INCOMPARABLE
        worst = max([worst, *(abs(p - q) for p, q in zip(x, y, strict=True))])
    return worst


def _control(model, prompts, completions, noted) -> float:
    """The first comparison with noise on the trainer's weights; undone afterwards."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * parameter.abs().mean() * _CONTROL_NOISE)
    disturbed, _ = trainer_logprobs(model, prompts, completions)
    model.load_state_dict(state)
    return largest_difference(noted, disturbed)
