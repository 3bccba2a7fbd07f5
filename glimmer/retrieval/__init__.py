"""Retrieval: corpus -> normalised vectors -> HNSW index -> search service -> client.

Names are resolved on first use, so that a client of the service loads neither torch nor faiss, and
so that a rule's code fingerprint covers only the modules of its own stage.
"""

from glimmer.lazy import lazy

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
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
    },
)
