"""Which steps a training keeps on its way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def steps_on_the_way(config: Mapping[str, Any]) -> list[int]:
    """Steps between the first and the last one whose checkpoints stay: those of the newest
    `training.keep_checkpoints` that are not the last step's."""
    training = config["training"]
    every, last = training["checkpoint_every"], training["steps"]
    saved = [*range(every, last, every), last]
    return saved[-training["keep_checkpoints"] :][:-1]


def curve_steps(config: Mapping[str, Any]) -> list[int]:
    """Those that are evaluated on the held-out questions too."""
    return steps_on_the_way(config) if config["report"].get("heldout_curve") else []
