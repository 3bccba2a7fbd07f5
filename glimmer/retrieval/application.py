"""An opened index and its model -> the web application that answers searches.

Queries of concurrent requests are embedded and searched for in batches in a worker thread; what a
request may ask for and how an error looks is `glimmer.retrieval.protocol`'s.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aiohttp import web

from glimmer.assets.corpus import split_contents
from glimmer.logs import get_logger
from glimmer.retrieval.batching import Batcher
from glimmer.retrieval.index import PassageIndex
from glimmer.retrieval.metrics import CONTENT_TYPE, ServiceMetrics
from glimmer.retrieval.openapi import document
from glimmer.retrieval.protocol import (
    BodyTooLarge,
    BodyTooSlow,
    InternalError,
    Limits,
    MethodNotAllowed,
    NotFound,
    NotReady,
    RequestError,
    Stopping,
    Unauthorized,
    parse_request,
)

if TYPE_CHECKING:
    import numpy as np

    from glimmer.retrieval.encoder import Encoder

logger = get_logger(__name__)

_PROBES = 5


class SearchService:
    """An opened index and its model, as an aiohttp application.

    Args:
        index: opened together with its corpus.
        encoder: the model whose vectors it holds.
        settings: complete, from `service_settings`.
        token: that a request must bear; None takes any request.

    Attributes:
        draining: set to refuse what is new; what has begun is finished.
        in_flight: requests at work.
    """

    def __init__(
        self,
        index: PassageIndex,
        encoder: Encoder,
        settings: Mapping[str, Any],
        *,
        token: str | None = None,
    ) -> None:
        self.index, self.encoder, self.settings = index, encoder, settings
        self._token = None if token is None else token.encode()
        self.limits = Limits(**{name: settings[name] for name in Limits.__slots__})
        self.max_topk = min(index.ef_search, len(index))
        self._default_topk = min(settings["default_topk"], self.max_topk)
        self.metrics = ServiceMetrics()
        self.batcher: Batcher = Batcher(
            self._search,
            max_batch=settings["max_batch"],
            max_wait_s=settings["batch_wait_ms"] / 1000,
            max_waiting=self.limits.max_waiting,
            cache_size=settings["cache_size"],
            metrics=self.metrics,
        )
        self._page = document(
            self.limits,
            max_topk=self.max_topk,
            default_topk=self._default_topk,
            token=token is not None,
        )
        self._known: str | None = None
        self.draining = False
        self.in_flight = 0

    def _search(self, queries: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        rows, scores = self.index.candidates(self.encoder.queries(queries))
        return list(zip(rows, scores, strict=True))

    async def retrieve(self, request: web.Request) -> web.Response:
        """POST /retrieve."""
        asked = parse_request(
            await self._body(request),
            self.limits,
            default_topk=self._default_topk,
            max_topk=self.max_topk,
        )
        result = []
        for rows, scores in await self.batcher.answer(asked.queries):
            # faiss fills up with -1 when a search reaches fewer passages than asked for.
            if (rows[: asked.topk] < 0).any():
                raise InternalError(
                    f"the index gave only {int((rows >= 0).sum())} of {asked.topk} passages; "
                    f"its graph is not connected: build it with a larger M"
                )
            found = zip(rows[: asked.topk].tolist(), scores[: asked.topk].tolist(), strict=True)
            result.append(
                [
                    {"document": self.index.passages[row], "score": score}
                    if asked.return_scores
                    else self.index.passages[row]
                    for row, score in found
                ]
            )
        return web.json_response({"result": result})

    async def _body(self, request: web.Request) -> bytes:
        limit = self.limits.max_body_bytes
        body = bytearray()
        if (request.content_length or 0) <= limit:
            try:
                async with asyncio.timeout(self.settings["body_timeout_s"]):
                    async for chunk in request.content.iter_any():
                        body += chunk
                        if len(body) > limit:
                            break
            except TimeoutError as error:
                raise BodyTooSlow(
                    f"the body did not arrive within {self.settings['body_timeout_s']:g} s"
                ) from error
        if (request.content_length or 0) > limit or len(body) > limit:
            raise BodyTooLarge(
                f"the body is larger than {limit} bytes; send fewer queries", field="body"
            )
        return bytes(body)

    async def info(self, _: web.Request) -> web.Response:
        """GET /info."""
        record = self.index.record
        return web.json_response(
            {
                "service": "glimmer-retrieval",
                "pid": os.getpid(),
                "model": record["model"],
                "device": self.settings["device"],
                "index": {key: record[key] for key in ("metric", "n", "d", "M", "ef_construction")}
                | {"ef_search": self.index.ef_search, "sha256": record["index"]["sha256"]},
                "corpus_sha256": record["corpus"]["sha256"],
                "limits": {name: getattr(self.limits, name) for name in Limits.__slots__}
                | {"max_topk": self.max_topk},
                "counts": dict(self.batcher.counts),
            }
        )

    async def health(self, _: web.Request) -> web.Response:
        """GET /health: a known passage has to be found by its title, not just the process to live.

        Of a few passages spread over the corpus one is enough; it is then the one asked for.
        """
        n = len(self.index)
        rows = sorted({n * place // _PROBES for place in range(_PROBES)})
        texts = [self.index.passages[row]["contents"] for row in rows]
        titles = [split_contents(text)[0] or text[:200] for text in texts]
        probes = [self._known] if self._known is not None else titles
        for title, (found, _scores) in zip(
            probes, await self.batcher.answer(probes, fresh=True), strict=True
        ):
            row = int(found[0])
            if row >= 0 and title in self.index.passages[row]["contents"].partition("\n")[0]:
                self._known = title
                return web.json_response({"status": "ok"})
        raise NotReady(
            f"none of {len(probes)} known passages was found by its title; the index does not fit "
            f"its model"
        )

    async def openapi(self, _: web.Request) -> web.Response:
        """GET /openapi.json."""
        return web.json_response(self._page)

    async def metrics_page(self, _: web.Request) -> web.Response:
        """GET /metrics."""
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    @web.middleware
    async def _around(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Every request is counted and timed, and every error leaves as one of protocol's."""
        began = time.perf_counter()
        self.in_flight += 1
        self.metrics.in_flight.inc()
        status = 499  # the client hung up
        try:
            answer = await self._guarded(request, handler)
            status = answer.status
            return answer
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.dec()
            path = request.path if request.path in self._page["paths"] else "other"
            self.metrics.request(path, status, time.perf_counter() - began)

    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            if self._token is not None and request.path != "/health":
                given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
                # Takes the same time however much of the token is right.
                if not hmac.compare_digest(given, b"Bearer " + self._token):
                    raise Unauthorized("expected the header 'Authorization: Bearer <token>'")
            if self.draining and request.path in ("/retrieve", "/health"):
                raise Stopping("the service has been told to end; ask another one")
            return await handler(request)
        except RequestError as error:
            answer = error
        except web.HTTPNotFound:
            answer = NotFound(f"no such path: {request.path[:80]}; expected POST /retrieve")
        except web.HTTPMethodNotAllowed as error:
            answer = MethodNotAllowed(f"{request.path[:80]} does not take {request.method}")
            answer.headers["Allow"] = error.headers["Allow"]
        except Exception as error:
            if request.transport is None or isinstance(error, ConnectionError):
                raise
            logger.exception("%s %s failed", request.method, request.path)
            answer = InternalError(f"{type(error).__name__}: {error}")
        self.metrics.error(type(answer).__name__)
        return web.json_response(answer.body(), status=answer.status, headers=answer.headers)

    def application(self) -> web.Application:
        """The aiohttp application; its start and clean-up run the batcher."""
        app = web.Application(middlewares=[self._around])
        app.router.add_post("/retrieve", self.retrieve)
        app.router.add_get("/info", self.info)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics_page)
        app.router.add_get("/openapi.json", self.openapi)

        async def start(_: web.Application) -> None:
            self.batcher.start()

        async def stop(_: web.Application) -> None:
            await self.batcher.stop()

        app.on_startup.append(start)
        app.on_cleanup.append(stop)
        return app
