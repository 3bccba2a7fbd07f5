"""Retrieval: corpus -> normalised vectors -> HNSW index -> search service -> client.

Names are resolved on first use, so that a client of the service loads neither torch nor faiss, and
so that a rule's code fingerprint covers only the modules of its own stage.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "embed_shard": "glimmer.retrieval.embed",
    "build_index": "glimmer.retrieval.build",
    "measure_recall": "glimmer.retrieval.recall",
    "retrieval_service": "glimmer.retrieval.launch",
    "SearchClient": "glimmer.retrieval.client",
    "FoundPassage": "glimmer.retrieval.client",
    "SearchError": "glimmer.retrieval.errors",
    "SearchTimeout": "glimmer.retrieval.errors",
    "SearchRefused": "glimmer.retrieval.errors",
    "SearchHTTPError": "glimmer.retrieval.errors",
    "SearchProtocolError": "glimmer.retrieval.errors",
    "ServiceError": "glimmer.retrieval.errors",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
