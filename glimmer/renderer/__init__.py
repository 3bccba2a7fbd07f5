"""Stage 6, messages <-> token ids: the Muse Glimmer renderer, its parser and the parity gate.

Names are resolved on first use, so that a rule's code fingerprint covers only what it uses.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "CHAT_TEMPLATE": "glimmer.renderer.template",
    "MuseGlimmerRenderer": "glimmer.renderer.muse_glimmer",
    "MuseGlimmerRendererConfig": "glimmer.renderer.config",
    "load_renderer": "glimmer.renderer.load",
    "released_tokenizer": "glimmer.renderer.released",
    "check_parity": "glimmer.renderer.parity",
    "parse_completion": "glimmer.renderer.parse",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
