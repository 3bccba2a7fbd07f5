"""GRPO on a CPU in one process, on TitanRL's rollouter, sample builder and DAPO loss.

A step: P questions x N rollouts, sampled together; group-relative advantages; one optimiser step
over all sampled tokens, in microbatches that share the prompt's prefix. Everything random is drawn
from (seed, step), so a resumed run goes on exactly as an undisturbed one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glimmer.files import write_jsonl
from glimmer.logs import get_logger
from glimmer.progress import Progress
from glimmer.search_r1.recipe import SearchRollouter
from glimmer.training import checkpoint as checkpoints
from glimmer.training.local.forward import PrefixForward, common_prefix, pad_rows
from glimmer.training.local.model import load_model, save_model
from glimmer.training.local.sampler import BatchedSampler, SamplingConfig
from glimmer.training.metrics import (
    MetricsFile,
    best_step,
    check_step,
    check_trend,
    rollout_metrics,
)

from torchtitan.experiments.rl.components.training_sample_builder import (  # isort: skip
    TrainingSampleBuilder,
)
from torchtitan.experiments.rl.losses import DAPOLoss  # isort: skip
from torchtitan.experiments.rl.rollout.types import RolloutGroup  # isort: skip
from torchtitan.experiments.rl.types import TrainingSample  # isort: skip

logger = get_logger(__name__)


@dataclass(frozen=True)
class TokenBatch:
    """One microbatch after the shared prefix.

    Attributes:
        prefix: [P] shared tokens.
        tokens: [B, T] the rest of each row, right-padded.
        mask, logprobs, advantages: [B, T] of each token: sampled or not, the sampler's
            log-probability, the rollout's advantage.
    """

    prefix: list[int]
    tokens: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor


def token_batch(samples: Sequence[TrainingSample]) -> TokenBatch:
    """Pack TitanRL's training samples; the prefix never reaches into a sampled token."""
    rows = [s.token_ids for s in samples]
    first_sampled = min(s.loss_mask.index(True) for s in samples)
    shared = min(common_prefix(rows), first_sampled - 1)
    tokens, _ = pad_rows([r[shared:] for r in rows])
    mask, _ = pad_rows([s.loss_mask[shared:] for s in samples], False)
    logprobs, _ = pad_rows([s.logprobs[shared:] for s in samples], 0.0)
    advantages, _ = pad_rows([s.advantage[shared:] for s in samples], 0.0)
    return TokenBatch(rows[0][:shared], tokens, mask, logprobs, advantages)


def logits_of_sampled(forward: PrefixForward, batch: TokenBatch) -> tuple[torch.Tensor, ...]:
    """(logits [N, V], labels [N], sampler log-probabilities [N], advantages [N]) of the N sampled
    tokens of a microbatch; the head runs on those positions only."""
    hidden = forward.hidden(forward.prefix(batch.prefix), batch.tokens)[:, :-1]
    chosen = batch.mask[:, 1:]
    return (
        forward.logits(hidden[chosen]),
        batch.tokens[:, 1:][chosen],
        batch.logprobs[:, 1:][chosen],
        batch.advantages[:, 1:][chosen],
    )


def learning_rate(settings: Mapping[str, Any], step: int) -> float:
    """Linear warm-up over `warmup_steps`, then constant; `step` counts from 1."""
    return settings["learning_rate"] * min(1.0, step / max(settings["warmup_steps"], 1))


class LocalEngine:
    """One training run.

    Args:
        checkpoint: start, a folder in the released layout.
        out: training folder (metrics.jsonl, checkpoints/, tensorboard/, final/).
        settings: config section `training`.
        search: config section `search`.
        rollouter, renderer: of the recipe.
        settings_hash: of everything the result depends on; a checkpoint of another is refused.
    """

    def __init__(
        self,
        *,
        checkpoint: Path,
        out: Path,
        settings: Mapping[str, Any],
        search: Mapping[str, Any],
        rollouter: SearchRollouter,
        renderer: Any,
        settings_hash: str,
    ) -> None:
        self.source, self.out = checkpoint, out
        self.settings, self.search = settings, search
        self.settings_hash = settings_hash
        self.model = load_model(checkpoint)
        self.forward = PrefixForward(self.model)
        self.sampler = BatchedSampler(self.model)
        self.renderer, self.rollouter = renderer, rollouter
        rollouter.on_rollout_end = self.sampler.leave
        self.sampling = SamplingConfig(
            temperature=settings["temperature"],
            max_tokens=search["max_new_tokens"],
            seed=settings["seed"],
            stop_token_ids=tuple(renderer.get_stop_token_ids()),
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings["learning_rate"],
            betas=(0.9, settings["adam_beta2"]),
            weight_decay=0.0,
        )
        self.loss = DAPOLoss(
            DAPOLoss.Config(
                ratio_clip_low=settings["ratio_clip_low"],
                ratio_clip_high=settings["ratio_clip_high"],
            )
        )
        self.builder = TrainingSampleBuilder(
            TrainingSampleBuilder.Config(drop_zero_std_reward_groups=False)
        )

    async def run(self) -> None:
        """All remaining steps, then `final/`."""
        settings = self.settings
        key = self.settings_hash[:12]
        folder = self.out / "checkpoints" / key
        folder.mkdir(parents=True, exist_ok=True)
        if others := [p.name for p in folder.parent.iterdir() if p.name != key]:
            logger.warning(
                "%s holds runs under other settings, data or code (%s); this one is %s and does "
                "not touch them",
                folder.parent,
                ", ".join(sorted(others)),
                key,
            )
        found = checkpoints.latest(folder, settings_hash=self.settings_hash)
        done = 0
        if found is not None:
            done, path = found
            checkpoints.restore(path, step=done, model=self.model, optimizer=self.optimizer)
            logger.info("resuming from %s", path)
        metrics = MetricsFile(
            folder / "metrics.jsonl",
            self.out / "tensorboard" / key,
            steps_done=done,
            settings=settings,
        )
        rollouts = settings["prompts_per_step"] * settings["samples_per_prompt"]
        try:
            with Progress(
                settings["steps"], "train", unit="step", done=done, every_s=0
            ) as progress:
                for step in range(done + 1, settings["steps"] + 1):
                    row = await self.step(step)
                    check_step(
                        row,
                        rollouts=rollouts,
                        max_failed_fraction=self.search["max_failed_fraction"],
                        may_collapse=settings["control"] == "shuffled_rewards",
                    )
                    metrics.add(row)
                    check_trend(metrics.rows, settings)
                    if step % settings["checkpoint_every"] == 0 or step == settings["steps"]:
                        checkpoints.save(
                            folder,
                            step=step,
                            model=self.model,
                            optimizer=self.optimizer,
                            settings_hash=self.settings_hash,
                            keep=settings["keep_checkpoints"],
                            best=best_step(metrics.rows, settings["reward_window"]),
                        )
                    progress.update(
                        note=f"reward {row['reward']:.3f} searches {row['searches']:.2f} entropy "
                        f"{row['entropy']:.2f} grad {row['grad_norm']:.2f}"
                    )
        finally:
            metrics.close()
        save_model(self.model, self.source, self.out / "final")
        write_jsonl(self.out / "metrics.jsonl", metrics.rows)

    async def step(self, step: int) -> dict[str, float]:
        """Sample, learn, and return the step's metrics."""
        start = time.monotonic()
        groups, questions = await self._rollouts(step)
        generated = time.monotonic()
        if self.settings["control"] == "shuffled_rewards":
            self._shuffle_rewards(groups, step)
        row: dict[str, float] = {"step": step, **rollout_metrics(groups, questions)}
        samples = [
            sample
            for group in groups
            for sample in self.builder.build_from_group(rollout_group=group).training_samples
        ]
        row |= self._learn(samples, step)
        end = time.monotonic()
        row |= {
            "tokens_per_s": self.sampler.tokens_sampled / max(self.sampler.seconds, 1e-9),
            "seconds": end - start,
            "seconds_generate": generated - start,
            "seconds_train": end - generated,
            "time": time.time(),
        }
        return row

    async def _rollouts(self, step: int) -> tuple[list[RolloutGroup], list[Any]]:
        prompts, samples = self.settings["prompts_per_step"], self.settings["samples_per_prompt"]
        first = (step - 1) * prompts
        self.rollouter.train_dataset.seek(first)
        questions = [self.rollouter.get_training_sample() for _ in range(prompts)]
        self.sampler.reset()
        self.sampler.version = step - 1
        self.sampler.expect(prompts * samples)
        groups = await asyncio.gather(
            *(
                self.rollouter.run_group_rollouts(
                    generate_fn=self.sampler.generate,
                    sample=question,
                    group_id=first + i,
                    group_size=samples,
                    sampling=self.sampling,
                    renderer=self.renderer,
                )
                for i, question in enumerate(questions)
            )
        )
        return list(groups), questions

    def _shuffle_rewards(self, groups: list[RolloutGroup], step: int) -> None:
        """The control whose rewards say nothing about the answers."""
        rollouts = [r for group in groups for r in group.rollouts]
        rewards = [r.reward for r in rollouts]
        random.Random(f"{self.settings['seed']}/{step}").shuffle(rewards)
        for rollout, reward in zip(rollouts, rewards, strict=True):
            rollout.reward = reward
        for group in groups:
            advantages = self.rollouter.advantage_estimator(group)
            for rollout, advantage in zip(group.rollouts, advantages, strict=True):
                rollout.advantage = advantage

    def _learn(self, samples: list[TrainingSample], step: int) -> dict[str, float]:
        """One optimiser step over all samples."""
        samples = sorted(samples, key=lambda s: len(s.token_ids))
        sampled = sum(sum(s.loss_mask) for s in samples)
        rows = self.settings["microbatch_rows"]
        totals = {"loss": 0.0, "entropy": 0.0, "ratio_clipped_frac": 0.0}
        worst = 0.0
        for i in range(0, len(samples), rows):
            logits, labels, logprobs, advantages = logits_of_sampled(
                self.forward, token_batch(samples[i : i + rows])
            )
            loss, found = self.loss(
                logits[None] / self.settings["temperature"],
                labels[None],
                sampled,
                generator_logprobs=logprobs[None],
                advantages=advantages[None],
                loss_mask=torch.ones_like(labels[None], dtype=torch.bool),
            )
            loss.backward()
            totals["loss"] += float(found["loss/mean"])
            totals["entropy"] += float(found["trainer/entropy/mean"])
            totals["ratio_clipped_frac"] += float(found["loss/ratio_clipped_frac"])
            worst = max(worst, float(found["bit_wise/logprob_diff/max"]))
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.settings["max_grad_norm"]
        )
        rate = learning_rate(self.settings, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {
            **totals,
            "grad_norm": float(norm),
            "logprob_diff_max": worst,
            "learning_rate": rate,
            "sampled_tokens": float(sampled),
        }
