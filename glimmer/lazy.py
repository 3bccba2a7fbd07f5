"""Packages whose names are resolved on first use.

    __all__, __getattr__, __dir__ = lazy(__name__, {"Client": "glimmer.retrieval.client"})

Importing such a package imports none of its modules. `glimmer.provenance.code` reads this form, so
that a stage's fingerprint covers the modules of the names that it takes and no others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(
    package: str, home: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        home: name -> module that has it; written out as a dict where it is called.
    """
    names = sorted(home)

    def resolve(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return names, resolve, lambda: names
