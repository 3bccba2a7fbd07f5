"""Stages 9 and 10: the same held-out questions before and after, paired statistics, the report.

Names are resolved on first use, so that a rule's code fingerprint covers only what it uses.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "evaluate": "glimmer.heldout.evaluation",
    "compare": "glimmer.heldout.paired",
    "write_report": "glimmer.heldout.report",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
