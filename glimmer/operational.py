"""Settings that can stop a stage but cannot change its result: no stage is stale by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPERATIONAL = (
    "timeout_s",
    "max_retries",
    "max_failed_fraction",
    "keep_checkpoints",
    "wandb_project",
    "max_zero_variance_steps",
    "max_reward_drop",
    "reward_window",
    "python",
    "setup_timeout_s",
    "step_timeout_s",
)


def decisive(section: Mapping[str, Any]) -> dict[str, Any]:
    """A config section without its operational settings."""
    return {key: value for key, value in section.items() if key not in OPERATIONAL}
