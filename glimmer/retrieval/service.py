"""The retrieval service: an index behind Search-R1's protocol (see `glimmer.retrieval.protocol`).

    python -m glimmer.retrieval.service --index DIR --corpus FILE [--settings JSON]

One process, one event loop. Queries of concurrent requests are embedded and searched for in batches
in a worker thread; the index and the corpus are memory-mapped. `glimmer.retrieval.launch` starts
it inside the job that needs it and is told the port through `--report-fd`.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from glimmer import logs
from glimmer.errors import ConfigError, GlimmerError
from glimmer.retrieval.batching import Batcher
from glimmer.retrieval.errors import ServiceError
from glimmer.retrieval.index import PassageIndex, check_k, check_model, open_index
from glimmer.retrieval.protocol import (
    BodyTooLarge,
    BodyTooSlow,
    InternalError,
    Limits,
    MethodNotAllowed,
    NotFound,
    RequestError,
    parse_request,
)
from glimmer.retrieval.settings import service_settings

if TYPE_CHECKING:
    import numpy as np

    from glimmer.retrieval.encoder import Encoder

logger = logs.get_logger("glimmer.retrieval.service")  # also when run as a program


class SearchService:
    """An opened index and its model, as an aiohttp application.

    Args:
        index: opened together with its corpus.
        encoder: the model whose vectors it holds.
        settings: complete, from `service_settings`.
    """

    def __init__(self, index: PassageIndex, encoder: Encoder, settings: Mapping[str, Any]) -> None:
        self.index, self.encoder, self.settings = index, encoder, settings
        self.limits = Limits(**{name: settings[name] for name in Limits.__slots__})
        self.max_topk = min(index.ef_search, len(index))
        self.batcher: Batcher = Batcher(
            self._search,
            max_batch=settings["max_batch"],
            max_wait_s=settings["batch_wait_ms"] / 1000,
            max_waiting=self.limits.max_waiting,
            cache_size=settings["cache_size"],
        )

    def _search(self, queries: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        rows, scores = self.index.candidates(self.encoder.queries(queries))
        return list(zip(rows, scores, strict=True))

    async def retrieve(self, request: web.Request) -> web.Response:
        """POST /retrieve."""
        asked = parse_request(
            await self._body(request),
            self.limits,
            default_topk=min(self.settings["default_topk"], self.max_topk),
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
            raise BodyTooLarge(f"the body is larger than {limit} bytes; send fewer queries")
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
        """GET /health: a search has to succeed, not just the process to live."""
        await self.batcher.answer(["health"])
        return web.json_response({"status": "ok"})

    def application(self) -> web.Application:
        """The aiohttp application; its start and clean-up run the batcher."""
        app = web.Application(middlewares=[_errors])
        app.router.add_post("/retrieve", self.retrieve)
        app.router.add_get("/info", self.info)
        app.router.add_get("/health", self.health)

        async def start(_: web.Application) -> None:
            self.batcher.start()

        async def stop(_: web.Application) -> None:
            await self.batcher.stop()

        app.on_startup.append(start)
        app.on_cleanup.append(stop)
        return app


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Every error leaves as one of protocol's types; nothing else is ever sent."""
    try:
        return await handler(request)
    except RequestError as error:
        answer = error
    except web.HTTPNotFound:
        answer = NotFound(f"no such path: {request.path[:80]}; expected POST /retrieve")
    except web.HTTPMethodNotAllowed:
        answer = MethodNotAllowed(f"{request.path[:80]} does not take {request.method}")
    except Exception as error:
        if request.transport is None or isinstance(error, ConnectionError):
            raise
        logger.exception("%s %s failed", request.method, request.path)
        answer = InternalError(f"{type(error).__name__}: {error}")
    return web.json_response(answer.body(), status=answer.status, headers=answer.headers)


def open_service(index: Path, corpus: Path, settings: Mapping[str, Any]) -> SearchService:
    """Open index, corpus and model, and check that they belong together.

    Raises:
        ConfigError: efSearch below topk, topk above the number of passages, the model is absent.
        IntegrityError: index, corpus and model do not belong together, or the index is damaged.
    """
    import faiss

    from glimmer.retrieval.encoder import Encoder

    opened = open_index(
        index, corpus, ef_search=settings["ef_search"], verify=settings["verify_checksums"]
    )
    check_k(settings["default_topk"], opened.ef_search, len(opened), "retrieval.default_topk")
    record = opened.record
    encoder = Encoder(
        settings["model"] or record["model"]["name"],
        device=settings["device"],
        max_length=record["model"]["max_length"],
        threads=settings["threads"],
    )
    check_model(encoder.identity, record, index)
    faiss.omp_set_num_threads(settings["threads"])
    return SearchService(opened, encoder, settings)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to host and port, not yet listening: a taken port is known at once.

    Raises:
        ServiceError: the port is taken or may not be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        taken = error.errno == errno.EADDRINUSE
        raise ServiceError(
            f"retrieval.port: {host}:{port} "
            f"{'is taken by another process' if taken else f'cannot be used ({error})'}. "
            f"Choose another port, or 0 for any free one."
        ) from error
    return bound


async def serve(
    service: SearchService, bound: socket.socket, *, ready: Any, stop: asyncio.Event
) -> None:
    """Serve on a bound socket until `stop` is set; `ready()` is called once it accepts requests."""
    runner = web.AppRunner(service.application(), access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, bound, shutdown_timeout=5.0, backlog=1024).start()
        ready()
        await stop.wait()
    finally:
        await runner.cleanup()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="glimmer.retrieval.service", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="folder of the index")
    parser.add_argument("--corpus", type=Path, required=True, help="the corpus it was built from")
    parser.add_argument("--settings", default="{}", help="section `retrieval` as JSON")
    parser.add_argument("--report-fd", type=int, help="write the port, or the error, to this pipe")
    parser.add_argument("--parent", type=int, help="end when this process is gone")
    options = parser.parse_args(arguments)
    logs.setup()

    def report(message: dict[str, Any]) -> None:
        if options.report_fd is not None:
            with os.fdopen(options.report_fd, "w") as pipe:
                json.dump(message, pipe)

    if options.parent:
        threading.Thread(target=_end_with, args=(options.parent,), daemon=True).start()
    try:
        settings = service_settings(json.loads(options.settings))
        if settings["url"]:
            raise ConfigError("retrieval.url: names a service elsewhere; nothing to start here.")
        bound = bind(settings["host"], settings["port"])
        asyncio.run(_run(open_service(options.index, options.corpus, settings), bound, report))
    except GlimmerError as error:
        logger.error("%s: %s", type(error).__name__, error)
        report({"error": str(error)})
        return 1
    return 0


async def _run(service: SearchService, bound: socket.socket, report: Any) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = bound.getsockname()[:2]

    def ready() -> None:
        logger.info("serving %d passages on http://%s:%d/retrieve", len(service.index), host, port)
        report({"port": port})

    await serve(service, bound, ready=ready, stop=stop)
    logger.info("stopped: %s", dict(service.batcher.counts))


def _end_with(parent: int) -> None:
    """End this process when `parent` has gone, even by kill -9: its end of our stdin closes.

    A process that the parent forked may hold that end open, so the parent's id is looked at too.
    """
    import select

    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], 1.0)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    logger.warning("the process that started this service is gone; ending")
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
