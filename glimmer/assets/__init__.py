"""Assets: hub repository, local folder or bundled -> verified files and a manifest of their sha256.

Names are resolved on first use, so that a reader of questions loads no download code, and so that a
rule's code fingerprint covers only what its stage uses.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "fetch_checkpoint": "glimmer.assets.fetch",
    "fetch_corpus": "glimmer.assets.fetch",
    "fetch_questions": "glimmer.assets.fetch",
    "check_checkpoint": "glimmer.assets.checkpoint",
    "manifest_names": "glimmer.assets.manifest",
    "verified_folder": "glimmer.assets.manifest",
    "verify_manifest": "glimmer.assets.manifest",
    "write_manifest": "glimmer.assets.manifest",
    "source_files": "glimmer.assets.sources",
    "source_state": "glimmer.assets.sources",
    "Passage": "glimmer.assets.corpus",
    "CorpusStats": "glimmer.assets.corpus",
    "read_corpus": "glimmer.assets.corpus",
    "validate_corpus": "glimmer.assets.corpus",
    "Question": "glimmer.assets.questions",
    "QuestionStats": "glimmer.assets.questions",
    "read_questions": "glimmer.assets.questions",
    "validate_questions": "glimmer.assets.questions",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
