"""What can be said of a benchmark where it cannot run."""

from __future__ import annotations

import importlib.util
from itertools import pairwise

from .workflow.copies import ROOT


def test_no_pass_of_the_gpu_slice_finds_its_prompts_in_the_prefix_cache() -> None:
    """They were drawn below another bound and not with another seed: equal, but for a few."""
    spec = importlib.util.spec_from_file_location("gpu_slice", ROOT / "benchmarks/gpu_slice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    block = 16  # vLLM's smallest
    turns = [
        {tuple(ids[:block]) for ids in module.prompts(202_048, turn)}
        for turn in range(module.PASSES + 2)
    ]
    assert all(len(starts) == module.REQUESTS for starts in turns)
    assert all(not a & b for a, b in pairwise(turns))
    assert module.prompts(202_048, 1) == module.prompts(202_048, 1)
