"""The retrieval service as a process; it speaks the protocol of `glimmer.retrieval.protocol`.

    python -m glimmer.retrieval.service --index DIR --corpus FILE [--settings JSON]

One process, one event loop (`glimmer.retrieval.application`), or several that share one port
(`glimmer.retrieval.replicas`); the index and the corpus are memory-mapped. At SIGTERM or SIGINT
requests at work are answered, new ones get 503, and the process ends with status 0.
`glimmer.retrieval.launch` starts it inside the job that needs it and is told the port through
`--report-fd`.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from glimmer import logs
from glimmer.errors import ConfigError, GlimmerError
from glimmer.retrieval.application import SearchService
from glimmer.retrieval.errors import ServiceError
from glimmer.retrieval.index import check_k, check_model, open_index
from glimmer.retrieval.settings import bearer_token, service_settings

logger = logs.get_logger("glimmer.retrieval.service")  # also when run as a program


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
    return SearchService(opened, encoder, settings, token=bearer_token(settings["token_env"]))


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket bound to host and port, not yet listening: a taken port is known at once.

    Args:
        host: name or address.
        port: 0 for any free one.
        shared: other processes of this user may bind it too, if they say so as well; the kernel
            then spreads connections over those that listen.

    Raises:
        ServiceError: the port is taken or may not be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
    """Serve on a bound socket until `stop` is set; `ready()` is called once it accepts requests.

    What is being answered then is finished, for at most `drain_timeout_s`; what comes later is
    refused.
    """
    runner = web.AppRunner(
        service.application(),
        access_log=None,
        logger=_server_log(service),
        # Nobody waits for the answer to a client that has hung up.
        handler_cancellation=True,
        keepalive_timeout=service.settings["idle_timeout_s"],
    )
    await runner.setup()
    try:
        await web.SockSite(runner, bound, shutdown_timeout=1.0, backlog=1024).start()
        ready()
        await stop.wait()
        service.draining = True
        deadline = asyncio.get_running_loop().time() + service.settings["drain_timeout_s"]
        while service.in_flight and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        if service.in_flight:
            logger.warning("ending with %d requests unanswered", service.in_flight)
    finally:
        await runner.cleanup()


def _server_log(service: SearchService) -> logging.Logger:
    """Of the HTTP server. Bytes that are no HTTP are answered 400 and counted; whoever sends them
    must not fill the log."""

    def kept(record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            service.metrics.error("BadHttp")
            return False
        return True

    log = logs.get_logger("glimmer.retrieval.http")
    log.filters = [kept]
    return log


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="glimmer.retrieval.service", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="folder of the index")
    parser.add_argument("--corpus", type=Path, required=True, help="the corpus it was built from")
    parser.add_argument("--settings", default="{}", help="section `retrieval` as JSON")
    parser.add_argument("--report-fd", type=int, help="write the port, or the error, to this pipe")
    parser.add_argument("--parent", type=int, help="end when this process is gone")
    parser.add_argument("--replica", action="store_true", help="share the port (used by replicas)")
    options = parser.parse_args(arguments)
    logs.setup()

    def report(message: dict[str, Any]) -> None:
        # Once: whoever started this reads the port, or why there is none. Later errors are logged.
        descriptor, options.report_fd = options.report_fd, None
        if descriptor is not None:
            with os.fdopen(descriptor, "w") as pipe:
                json.dump(message, pipe)

    if options.parent:
        threading.Thread(target=_end_with, args=(options.parent,), daemon=True).start()
    try:
        settings = service_settings(_parsed(options.settings))
        if settings["url"]:
            raise ConfigError("retrieval.url: names a service elsewhere; nothing to start here.")
        _check_reach(settings)
        bound = bind(settings["host"], settings["port"], shared=settings["replicas"] > 1)
        if settings["replicas"] > 1 and not options.replica:
            from glimmer.retrieval.replicas import supervise

            asyncio.run(supervise(options.index, options.corpus, settings, bound, report))
        else:
            asyncio.run(_run(open_service(options.index, options.corpus, settings), bound, report))
    except GlimmerError as error:
        logger.error("%s: %s", type(error).__name__, error)
        report({"error": str(error)})
        return 1
    return 0


def _parsed(text: str) -> dict[str, Any]:
    """The argument `--settings`.

    Raises:
        ConfigError: it is no JSON object.
    """
    try:
        settings = json.loads(text)
    except ValueError as error:
        settings, why = None, f" ({error})"
    else:
        why = ""
    if not isinstance(settings, dict):
        raise ConfigError(
            f"--settings: found {text[:60]!r}, expected a JSON object{why}, such as "
            "'{\"port\": 8000}'. Correct it."
        )
    return settings


def _check_reach(settings: Mapping[str, Any]) -> None:
    """The token is there if one is named; without one, who can reach the port is said."""
    if bearer_token(settings["token_env"]) is not None:
        return
    host = settings["host"]
    try:
        near = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        near = False
    if not near:
        logger.warning(
            "retrieval.host is %s: whoever reaches this port can search. Set retrieval.token_env, "
            "or retrieval.host to 127.0.0.1",
            host,
        )


async def _run(service: SearchService, bound: socket.socket, report: Any) -> None:
    stop = stop_signal()
    host, port = bound.getsockname()[:2]

    def ready() -> None:
        logger.info("serving %d passages on http://%s:%d/retrieve", len(service.index), host, port)
        report({"port": port})

    await serve(service, bound, ready=ready, stop=stop)
    logger.info("stopped: %s", dict(service.batcher.counts))


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM or SIGINT, from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


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
