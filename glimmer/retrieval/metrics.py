"""What the service counts and measures, in Prometheus' text format.

    glimmer_search_request_seconds   histogram by path and status: from the headers to the answer
    glimmer_search_errors_total      by type, see `glimmer.retrieval.protocol`; BadHttp: no HTTP
    glimmer_search_queries_total     by answer: cached (known), shared (equal to one at work),
                                     searched; hits are the first two
    glimmer_search_batch_queries     histogram: queries in a batch
    glimmer_search_batch_seconds     histogram: embedding and search of a batch
    glimmer_search_queue_queries     waiting for a batch
    glimmer_search_in_flight         requests at work
    glimmer_search_cache_entries     answers kept

With several replicas each writes its figures into a file of the folder PROMETHEUS_MULTIPROC_DIR,
and whichever is asked gives the sum; histograms and counters are then those of all replicas.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ANSWERS = ("cached", "shared", "searched")


class ServiceMetrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        more = {"registry": self._registry, "namespace": "glimmer", "subsystem": "search"}
        self._requests = Histogram(
            "request_seconds",
            "From the headers to the answer",
            ["path", "status"],
            buckets=_SECONDS,
            **more,
        )
        self._errors = Counter("errors", "Error answers", ["type"], **more)
        queries = Counter("queries", "Queries by where their answer came from", ["answer"], **more)
        self._queries = {answer: queries.labels(answer) for answer in ANSWERS}
        self._batch_queries = Histogram(
            "batch_queries", "Queries in a batch", buckets=_SIZES, **more
        )
        self._batch_seconds = Histogram(
            "batch_seconds", "Embedding and search of a batch", buckets=_SECONDS, **more
        )
        live = more | {"multiprocess_mode": "livesum"}
        self.queue = Gauge("queue_queries", "Queries waiting for a batch", **live)
        self.in_flight = Gauge("in_flight", "Requests at work", **live)
        self.cache = Gauge("cache_entries", "Answers kept", **live)

    def request(self, path: str, status: int, seconds: float) -> None:
        """A request has been answered. `path` is one of the service's or "other"."""
        self._requests.labels(path, str(status)).observe(seconds)

    def error(self, kind: str) -> None:
        """It was answered with an error of this type."""
        self._errors.labels(kind).inc()

    def query(self, answer: str) -> None:
        """A query's answer is one of `ANSWERS`."""
        self._queries[answer].inc()

    def batch(self, queries: int, seconds: float) -> None:
        """A batch has been searched for."""
        self._batch_queries.observe(queries)
        self._batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """All of it, of all replicas, as `CONTENT_TYPE`."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)
