"""metrics.jsonl: one line a step, the same names for both engines, and the guards that read them.

Names: reward, exact_match, searches, turns (means over rollouts), response_tokens (sampled tokens
a rollout), group_zero_std_frac, grad_norm (before clipping), entropy (nats a token), loss,
logprob_diff_max (trainer against sampler), ratio_clipped_frac, failed_searches, truncated,
calls_written, invalid_calls (sums over the step), tokens_per_s, seconds and its parts.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.errors import GlimmerError
from glimmer.files import whole_lines, write_jsonl
from glimmer.search_r1.outcome import check_failed_searches, judge
from glimmer.training.wandb_copy import WandbCopy


class MetricsFile:
    """Appends steps to metrics.jsonl, to TensorBoard and, if asked for, to Weights & Biases; on
    resume cut back to the checkpoint."""

    def __init__(
        self, path: Path, tensorboard: Path, *, steps_done: int, settings: Mapping[str, Any]
    ) -> None:
        """Args:
        tensorboard: folder of its events.
        steps_done: of the checkpoint from which the run goes on.
        settings: config section `training`.
        """
        self.rows: list[dict[str, Any]] = [
            row for row in whole_lines(path) if row["step"] <= steps_done
        ]
        write_jsonl(path, self.rows)
        self._handle = open(path, "a", encoding="utf-8")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(tensorboard), purge_step=steps_done + 1)
        self._copy = None
        if settings["wandb_project"] is not None:
            self._copy = WandbCopy(settings["wandb_project"], path.parent, settings)

    def add(self, row: dict[str, Any]) -> None:
        """Write one step, to disk at once."""
        self.rows.append(row)
        self._handle.write(json.dumps(row, allow_nan=False) + "\n")
        self._handle.flush()
        for key, value in row.items():
            if key not in ("step", "time"):
                self._writer.add_scalar(key, value, row["step"], walltime=row["time"])
        self._writer.flush()
        if self._copy is not None:
            self._copy.add(row)

    def close(self) -> None:
        """Close the files and send what is left."""
        self._handle.close()
        self._writer.close()
        if self._copy is not None:
            self._copy.close()


def rollout_metrics(groups: Sequence, samples: Sequence[Any]) -> dict[str, float]:
    """Metrics of one step's rollout groups; `samples` are the questions they answer."""
    outcomes, rollouts = [], []
    for group, sample in zip(groups, samples, strict=True):
        for rollout in group.rollouts:
            rollouts.append(rollout)
            outcomes.append(judge(rollout, sample.golden_answers))
    spreads = [statistics.pstdev([r.reward for r in g.rollouts]) for g in groups]
    sampled = [sum(len(t.completion_token_ids) for t in r.turns) for r in rollouts]
    return {
        "reward": statistics.fmean(r.reward for r in rollouts),
        "exact_match": statistics.fmean(o.exact_match for o in outcomes),
        "searches": statistics.fmean(o.searches for o in outcomes),
        "turns": statistics.fmean(len(r.turns) for r in rollouts),
        "response_tokens": statistics.fmean(sampled),
        "group_zero_std_frac": statistics.fmean(s == 0 for s in spreads),
        "failed_searches": float(sum(o.failed_searches for o in outcomes)),
        "truncated": float(sum(r.status.is_truncated() for r in rollouts)),
        "crashed": float(sum(o.outcome == "crashed" for o in outcomes)),
        "calls_written": float(sum(o.calls_written for o in outcomes)),
        "invalid_calls": float(
            sum(t.env_rewards.get("invalid_calls", 0.0) for r in rollouts for t in r.turns)
        ),
    }


def check_step(
    row: Mapping[str, float],
    *,
    rollouts: int,
    max_failed_fraction: float,
    may_collapse: bool = False,
) -> None:
    """Stop a run that trains on something else than what it should.

    Args:
        row: the step's metrics.
        rollouts: of the step.
        max_failed_fraction: of its searches.
        may_collapse: a control with meaningless rewards, which unlearns its calls.

    Raises:
        GlimmerError: a gradient that is not finite; more failed searches than allowed; calls
            written but none executed (the parser does not fit the model, and the run would go on
            closed-book); a crashed rollout.
    """
    step = int(row["step"])
    searches = row["searches"] * rollouts
    if not math.isfinite(row["grad_norm"]):
        raise GlimmerError(
            f"step {step}: the gradient norm is {row['grad_norm']}. Lower training.learning_rate; "
            "the last checkpoint is from before this step."
        )
    check_failed_searches(
        row["failed_searches"], searches, allowed=max_failed_fraction, where=f"step {step}"
    )
    if row["calls_written"] and not searches and not may_collapse:
        raise GlimmerError(
            f"step {step}: the model wrote {row['calls_written']:.0f} tool calls and none could be "
            "executed. The renderer does not parse this model's calls: check renderer.* and the "
            "renderer gate."
        )
    if row["crashed"]:
        raise GlimmerError(
            f"step {step}: {row['crashed']:.0f} of {rollouts} rollouts crashed; the traceback is "
            "in the rule's log. Run again to resume from the last checkpoint."
        )


def best_step(rows: Sequence[Mapping[str, float]], window: int) -> int | None:
    """The step at the end of the `window` consecutive rows with the highest mean reward, the first
    of equal ones; None while there are fewer rows."""
    means = _window_means(rows, window)
    return int(rows[window - 1 + means.index(max(means))]["step"]) if means else None


def _window_means(rows: Sequence[Mapping[str, float]], window: int) -> list[float]:
    rewards = [row["reward"] for row in rows]
    return [
        statistics.fmean(rewards[end - window : end]) for end in range(window, len(rewards) + 1)
    ]


def check_trend(rows: Sequence[Mapping[str, float]], settings: Mapping[str, Any]) -> None:
    """Stop a run that no longer learns, or unlearns what it had.

    Args:
        rows: metrics of all steps so far, the last one included.
        settings: config section `training`. A control run is meant to learn nothing and is not
            judged.

    Raises:
        GlimmerError: every group of each of the last `max_zero_variance_steps` steps had equal
            rewards, so that all advantages are 0; or the mean reward over `reward_window` steps is
            more than `max_reward_drop` below the best such mean.
    """
    if settings["control"] != "none" or not rows:
        return
    step = int(rows[-1]["step"])
    limit = settings["max_zero_variance_steps"]
    if limit is not None and len(rows) >= limit:
        if all(row["group_zero_std_frac"] == 1.0 for row in rows[-limit:]):
            raise GlimmerError(
                f"step {step}: in the last {limit} steps all rollouts of each question had the "
                f"same reward (mean {rows[-1]['reward']:.2f}), so nothing is learned "
                "(training.max_zero_variance_steps). Choose questions that are neither too hard "
                "nor too easy, or raise training.samples_per_prompt or temperature."
            )
    drop, window = settings["max_reward_drop"], settings["reward_window"]
    means = _window_means(rows, window)
    if drop is not None and means and max(means) - means[-1] > drop:
        raise GlimmerError(
            f"step {step}: the mean reward of {window} steps has fallen to {means[-1]:.2f}, from "
            f"{max(means):.2f} at step {best_step(rows, window)}; training.max_reward_drop allows "
            f"{drop:.2f}. The checkpoint at or before that step is kept; lower "
            "training.learning_rate."
        )
