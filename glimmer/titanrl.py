"""Makes TitanRL's submodules importable where vllm is not installed (the CPU environment).

`torchtitan.experiments.rl` imports vllm in its package module; its rollout, environment, rubric,
loss and sample-builder modules do not. Registering a bare package module under that name lets
those be imported. Where vllm is installed nothing is done and the real package is used.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

PACKAGE = "torchtitan.experiments.rl"


def ensure_importable() -> None:
    """Register the bare package once; call before importing any `torchtitan.experiments.rl.*`.

    Raises:
        ImportError: torchtitan is not installed, or has no `experiments/rl` folder.
    """
    if PACKAGE in sys.modules or importlib.util.find_spec("vllm") is not None:
        return
    import torchtitan.experiments as experiments

    folder = Path(next(iter(experiments.__path__))) / "rl"
    if not folder.is_dir():
        raise ImportError(f"{folder} is missing: torchtitan 0.3.0 is needed (envs/workflow.txt)")
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE] = package
