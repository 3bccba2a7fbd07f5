"""Fault 23: the local engine's loop stops a collapsed run and keeps the checkpoint of its best."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from glimmer.config import read_yaml
from glimmer.errors import GlimmerError
from glimmer.training.local.engine import LocalEngine

ROOT = Path(__file__).parents[2]
REWARDS = [0.2, 0.4, 0.6, 0.6, 0.5, 0.5, 0.1, 0.1]


class Scripted(LocalEngine):
    """The engine's own loop and checkpoints; what a step learns is written down."""

    async def step(self, step):
        return {
            "step": step,
            "time": time.time(),
            "reward": REWARDS[step - 1],
            "group_zero_std_frac": 0.0,
            "searches": 1.0,
            "entropy": 1.0,
            "grad_norm": 1.0,
            "failed_searches": 0.0,
            "calls_written": 1.0,
            "crashed": 0.0,
        }


def engine(out: Path, **changes) -> Scripted:
    config = read_yaml(ROOT / "config/config.yaml")
    settings = config["training"] | {
        "steps": len(REWARDS),
        "checkpoint_every": 1,
        "keep_checkpoints": 1,
        "reward_window": 2,
        **changes,
    }
    return Scripted(
        checkpoint=ROOT / "resources/tiny_glimmer",
        out=out,
        settings=settings,
        search=config["search"],
        rollouter=SimpleNamespace(),
        renderer=SimpleNamespace(get_stop_token_ids=lambda: [1]),
        settings_hash="a" * 64,
    )


def test_a_collapse_stops_the_run_and_its_best_checkpoint_is_kept(tmp_path):
    with pytest.raises(GlimmerError, match=r"step 8: .*fallen to 0\.10, from 0\.60 at step 4"):
        asyncio.run(engine(tmp_path).run())
    kept = sorted(p.name for p in (tmp_path / "checkpoints" / ("a" * 12)).glob("step-*"))
    assert kept == ["step-000004", "step-000007"]
    assert not (tmp_path / "final").exists()
    # Started again, it goes on from step 7 and stops at the same place.
    with pytest.raises(GlimmerError, match="step 8"):
        asyncio.run(engine(tmp_path).run())


def test_without_the_guard_it_ends(tmp_path):
    asyncio.run(engine(tmp_path, max_reward_drop=None).run())
    assert (tmp_path / "final" / "model.safetensors").exists()
