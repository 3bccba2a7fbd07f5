"""A copy of metrics.jsonl at Weights & Biases, if `training.wandb_project` names a project.

Key, address and mode come from W&B's own environment variables (WANDB_API_KEY, WANDB_BASE_URL,
WANDB_MODE=offline); none is written anywhere. A run that goes on after a kill goes on there too;
a step that it makes again is there twice, the later point being the one in metrics.jsonl.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimmer.errors import GlimmerError
from glimmer.files import write_text


class WandbCopy:
    """One W&B run, known by the id in `folder/wandb_id`."""

    def __init__(self, project: str, folder: Path, settings: Mapping[str, Any]) -> None:
        """Start or continue the run.

        Args:
            folder: of this run's checkpoints; W&B keeps its files in `folder/wandb`.
            settings: what W&B shows as the run's config.

        Raises:
            GlimmerError: W&B does not take the run, such as without a key.
        """
        import wandb

        known = folder / "wandb_id"
        if not known.exists():
            write_text(known, secrets.token_hex(4))
        run_id = known.read_text(encoding="utf-8").strip()
        try:
            self._run = wandb.init(
                project=project,
                id=run_id,
                name=folder.name,
                resume="allow",
                dir=str(folder),
                config=dict(settings),
                settings=wandb.Settings(console="off", silent=True),
            )
        except (wandb.errors.UsageError, wandb.errors.CommError) as error:
            raise GlimmerError(
                f"training.wandb_project: {project}, but W&B does not take the run ({error}). Set "
                "the variable WANDB_API_KEY, or WANDB_MODE to offline, or the key to null."
            ) from error
        # W&B drops what is logged under a step of its own that it has, and a run that goes on from
        # a checkpoint makes some steps again.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def add(self, row: Mapping[str, Any]) -> None:
        """Send one step, in the background."""
        self._run.log({key: value for key, value in row.items() if key != "time"})

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()
