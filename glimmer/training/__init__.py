"""Stage 8: recipe -> checkpoints and metrics. `train` is the entry; `local` is the CPU engine.

Names are resolved on first use, so that a rule's code fingerprint covers only what it uses.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "train": "glimmer.training.run",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
