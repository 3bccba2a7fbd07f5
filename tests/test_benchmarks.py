"""What can be said of a benchmark where it cannot run."""

from __future__ import annotations

import importlib.util
from itertools import pairwise

import pytest

from .workflow.copies import ROOT


def benchmark(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_pass_of_the_gpu_slice_finds_its_prompts_in_the_prefix_cache() -> None:
    """They were drawn below another bound and not with another seed: equal, but for a few."""
    module = benchmark("gpu_slice")
    block = 16  # vLLM's smallest
    turns = [
        {tuple(ids[:block]) for ids in module.prompts(202_048, turn)}
        for turn in range(module.PASSES + 2)
    ]
    assert all(len(starts) == module.REQUESTS for starts in turns)
    assert all(not a & b for a, b in pairwise(turns))
    assert module.prompts(202_048, 1) == module.prompts(202_048, 1)


def test_the_parts_of_a_step_in_the_gpu_loop_are_all_of_it(monkeypatch) -> None:
    """The sync is a part of TitanRL's time for generating, and is counted once."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    row = {"seconds": 10.0, "seconds_generate": 6.0, "seconds_train": 3.0, "seconds_sync": 2.0}
    row |= {"sampled_tokens": 32_768.0, "trainer_peak_gib": 105.0, "trainer_allocated_gib": 95.0}
    found = benchmark("gpu_loop").shares([row] * 3, weights=13_000_000_000)
    assert found["seconds"] == {"generating": 4.0, "training": 3.0, "sync": 2.0, "else": 1.0}
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert found["sampled_tokens_per_second_generating"] == 8192
    assert found["sync_gb_per_second"] == 6.5


def test_a_step_off_policy_is_training_and_waiting(monkeypatch) -> None:
    """Its sync runs beside the trainer and may be longer than what the step waits."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    row = {"seconds": 9.0, "seconds_generate": 0.5, "seconds_train": 8.0, "seconds_sync": 2.8}
    row |= {"sampled_tokens": 36_000.0, "trainer_peak_gib": 105.0, "trainer_allocated_gib": 95.0}
    found = benchmark("gpu_loop").shares([row] * 3, weights=11_200_000_000, on_policy=False)
    assert found["seconds"] == {"waiting": 0.5, "training": 8.0, "else": 0.5}
    assert found["sampled_tokens_per_second"] == 4000
    assert found["sync_gb_per_second"] == 4.0
