"""TitanRL's controller with what a run on record needs: data order and sampling seeds that a
resumed run continues, one row of metrics a step under the names of the local engine, and guards.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glimmer.errors import GlimmerError
from glimmer.progress import Progress
from glimmer.training.job import Job
from glimmer.training.metrics import (
    MetricsFile,
    best_step,
    check_step,
    check_trend,
    rollout_metrics,
)
from glimmer.training.titan.digest import SyncLog
from glimmer.training.titan.journal import Journal, RecordingBatcher, RecordingBuilder
from glimmer.training.titan.keep import keep_best

import torchtitan.experiments.rl.controller as titan  # isort: skip
from torchtitan.experiments.rl.components.work_buffer import RolloutGroupWork  # isort: skip
from torchtitan.experiments.rl.observability.metrics import MetricsProcessor  # isort: skip

# TitanRL's names of what a row holds, by ours.
_NAMES = {
    "loss": "loss/mean",
    "entropy": "trainer/entropy/mean",
    "ratio_clipped_frac": "loss/ratio_clipped_frac",
    "logprob_diff_max": "bit_wise/logprob_diff/max",
    "grad_norm": "trainer/grad_norm/mean",
    "learning_rate": "trainer/lr",
    "seconds": "timing/step/total/mean",
    "seconds_generate": "timing/step/wait_for_training_batch/mean",
}
_TRAIN_TIMES = ("timing/step/forward_backward/mean", "timing/step/optim/mean")
# What the sync after the step before took. On-policy the rollouts wait for it, and it is a part of
# seconds_generate; off-policy it goes on beside the trainer.
_SYNC_TIMES = (
    "timing/weight_sync/trainer_push_model_state_dict",
    "timing/weight_sync/generator_pull_model_state_dict",
)


def request_seed(seed: int, request_id: str) -> int:
    """A 31-bit seed for one request, of the run's seed and the request's name."""
    digest = hashlib.sha256(f"{seed}/{request_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


def check_agreement(row: Mapping[str, float], titan: Mapping[str, Any]) -> None:
    """Stop a run whose trainer and generator should agree bit for bit and do not.

    Off-policy they need not: rollouts then come from older weights than the trainer's.

    Args:
        row: of metrics.
        titan: config section; `batch_invariant` and `offpolicy_steps` count.

    Raises:
        GlimmerError: batch-invariant mode is on, the run is on-policy, and the largest difference
            of a log-probability is not exactly 0.
    """
    expected = titan["batch_invariant"] and titan["offpolicy_steps"] == 0
    if expected and row["logprob_diff_max"] != 0.0:
        raise GlimmerError(
            f"step {int(row['step'])}: trainer and generator differ by "
            f"{row['logprob_diff_max']:.3g} "
            "in a log-probability, expected exactly 0 with titan.batch_invariant. Weights, kernels "
            "or parallel degrees of the two sides are not the same; the bitwise gate says where. "
            "Set titan.batch_invariant: false only if you accept learning from other probabilities "
            "than were sampled."
        )


class SearchController(titan.Controller):
    """The controller of one job."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.Controller.Config):
        """TitanRL's; the job comes separately, by `attach`."""

    def attach(self, job: Job) -> None:
        """Set what the run needs beside TitanRL's config; before `setup_async`."""
        self.job = job
        self.journal = Journal(Path(job.work) / "groups.jsonl")
        self.sync = SyncLog(job.work)
        self.rows: MetricsFile | None = None
        self.progress: Progress | None = None
        self._started = time.monotonic()
        self.metrics_processor.log = self._log  # type: ignore[method-assign]

    async def setup_async(self, **meshes: Any) -> None:
        """Start the actors, then continue data and metrics where the checkpoint stands."""
        await super().setup_async(**meshes)
        work, done = Path(self.job.work), self.start_step
        self.rows = MetricsFile(
            work / "metrics.jsonl",
            Path(self.job.tensorboard),
            steps_done=done,
            settings=self.job.training,
        )
        if done and (not self.rows.rows or self.rows.rows[-1]["step"] != done):
            raise GlimmerError(
                f"{work / 'metrics.jsonl'} has no row for step {done}, from which {work} would "
                "resume. Delete that folder to start this run anew."
            )
        self.journal.resume(done)
        self.sync.check(done, may_stand_still=True)
        self.progress = Progress(
            self.job.training["steps"], "train", unit="step", done=done, every_s=0
        )

    async def close(self) -> None:
        """Take the actors down, then the HTTP session and the files."""
        await super().close()
        await self._rollouter.close()
        if self.rows is not None:
            self.rows.close()

    def _make_generate_fn(self, metrics_prefix: str) -> Any:
        """Each request with a seed of its own, so that groups differ and a resumed run repeats."""
        generate = super()._make_generate_fn(metrics_prefix)
        seed = self.job.training["seed"]

        async def seeded(prompt_token_ids, *, request_id, sampling_config=None, **kwargs):
            sampling = replace(
                sampling_config or self._sampling, seed=request_seed(seed, request_id)
            )
            return await generate(
                prompt_token_ids, request_id=request_id, sampling_config=sampling, **kwargs
            )

        return seeded

    async def _data_input_loop(self, group_buffer: Any) -> None:
        """As TitanRL's, but group k is question k, the first ones are those that a resumed run has
        left, and questions are kept."""
        left = self.journal.left()
        while await group_buffer.wait_for_slot():
            group_id = next(left)
            sample = await asyncio.to_thread(self._question, group_id)
            self.journal.questions[group_id] = sample
            await group_buffer.add_work(RolloutGroupWork(group_id=group_id, sample=sample))

    def _question(self, position: int) -> Any:
        self._rollouter.train_dataset.seek(position)
        return self._rollouter.get_training_sample()

    async def _batcher_loop(
        self, *, training_sample_builder: Any, batcher: Any, **kwargs: Any
    ) -> None:
        await super()._batcher_loop(
            training_sample_builder=RecordingBuilder(training_sample_builder, self.journal),
            batcher=RecordingBatcher(batcher, self.journal),
            **kwargs,
        )

    def _log(self, step: int, metrics: Iterable[Any], *, is_validation: bool = False) -> None:
        """In place of TitanRL's own: one row a step, checked, written and shown."""
        if is_validation:
            return
        assert self.rows is not None and self.progress is not None
        found = MetricsProcessor._aggregate_metrics(metrics)
        training, search = self.job.training, self.job.search
        groups, questions = self.journal.close_step(step)
        row: dict[str, float] = {"step": step, **rollout_metrics(groups, questions)}
        row |= {ours: float(found[theirs]) for ours, theirs in _NAMES.items() if theirs in found}
        row.setdefault("grad_norm", math.nan)  # TitanRL leaves out what is not a number
        wanted = [n for n in _NAMES.values() if n != _NAMES["grad_norm"]]
        wanted += [*_TRAIN_TIMES, *_SYNC_TIMES]
        if missing := sorted(name for name in wanted if name not in found):
            raise GlimmerError(
                f"step {step}: TitanRL reported none of {missing}; it had {sorted(found)[:40]}."
            )
        row["seconds_train"] = sum(float(found[k]) for k in _TRAIN_TIMES)
        row["seconds_sync"] = sum(float(found[k]) for k in _SYNC_TIMES)
        row["sampled_tokens"] = float(
            sum(len(t.completion_token_ids) for g in groups for r in g.rollouts for t in r.turns)
        )
        row["tokens_per_s"] = row["sampled_tokens"] / max(row["seconds"], 1e-9)
        row["groups_consumed"] = float(self.journal.consumed)
        # The sync of the step before has ended: TitanRL waits for it before this call.
        # Those weights are the step before's: with a gradient of 0 they may be its own again.
        before = self.rows.rows[-1:]
        still = training["control"] == "zero_advantages" or any(
            r["grad_norm"] == 0.0 for r in before
        )
        facts = self.sync.check(step - 1, may_stand_still=still)
        row["trainer_peak_gib"] = facts["reserved_gib"]
        row["trainer_allocated_gib"] = facts["allocated_gib"]
        row["time"] = time.time()
        check_step(
            row,
            rollouts=sum(len(g.rollouts) for g in groups),
            max_failed_fraction=search["max_failed_fraction"],
        )
        check_agreement(row, self.job.titan)
        row = {k: v for k, v in row.items() if math.isfinite(v)}
        self.rows.add(row)
        if (best := best_step(self.rows.rows, training["reward_window"])) is not None:
            keep_best(Path(self.job.work), best)
        check_trend(self.rows.rows, training)
        self.progress.update(
            note=f"reward {row['reward']:.3f} searches {row['searches']:.2f} entropy "
            f"{row['entropy']:.2f} grad {row['grad_norm']:.2f} logprob diff "
            f"{row['logprob_diff_max']:.2g}"
        )
