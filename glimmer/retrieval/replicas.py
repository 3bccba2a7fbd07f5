"""Several processes of the service behind one port.

The kernel spreads new connections over them (SO_REUSEPORT). Each has its own model, cache and
queue; index and corpus are mapped and so in memory once. An answer does not depend on which one
gives it. If one ends by itself, all are ended: half a service is not left behind unnoticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glimmer.files import sole_writer
from glimmer.logs import get_logger
from glimmer.retrieval.errors import ServiceError
from glimmer.retrieval.leftovers import LOCK, METRICS, remove_leftovers
from glimmer.retrieval.service import stop_signal

logger = get_logger("glimmer.retrieval.service")


@contextlib.contextmanager
def _metrics_folder() -> Iterator[str]:
    """A temporary folder for the replicas' figures; those of killed services are removed first."""
    remove_leftovers()
    with (
        tempfile.TemporaryDirectory(prefix=METRICS, ignore_cleanup_errors=True) as folder,
        sole_writer(Path(folder) / LOCK),
    ):
        yield folder


async def supervise(
    index: Path, corpus: Path, settings: Mapping[str, Any], bound: socket.socket, report: Any
) -> None:
    """Run `replicas` processes until SIGTERM or SIGINT; `report` is called once all are ready.

    Args:
        index, corpus: as for one process.
        settings: complete, from `service_settings`.
        bound: a shared socket that does not listen; it keeps the port.
        report: is given {"port": int}.

    Raises:
        ServiceError: a replica did not start or ended by itself.
    """
    stop = asyncio.ensure_future(stop_signal().wait())
    port = bound.getsockname()[1]
    replicas: list[asyncio.subprocess.Process] = []
    with _metrics_folder() as folder:

        async def start(*, verify: bool) -> None:
            one = {**settings, "port": port, "verify_checksums": verify}
            message = await _started(index, corpus, one, folder, replicas)
            if "error" in message:
                raise ServiceError(message["error"])

        async def start_all() -> None:
            # The first one checks the files, so that they are read once.
            await start(verify=settings["verify_checksums"])
            await asyncio.gather(*(start(verify=False) for _ in range(settings["replicas"] - 1)))

        starting = asyncio.ensure_future(start_all())
        try:
            await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.done():
                await starting
                logger.info("%d replicas serve on port %d", len(replicas), port)
                report({"port": port})
                ends = {asyncio.ensure_future(replica.wait()) for replica in replicas}
                await asyncio.wait({*ends, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not stop.done():
                    ended = next(r for r in replicas if r.returncode is not None)
                    raise ServiceError(
                        f"replica {ended.pid} ended by itself with status {ended.returncode}; the "
                        f"other replicas are ended too. Its last words stand above."
                    )
        finally:
            await _end(replicas, settings["drain_timeout_s"])
            starting.cancel()
            stop.cancel()
            await asyncio.gather(starting, stop, return_exceptions=True)


async def _started(
    index: Path,
    corpus: Path,
    settings: Mapping[str, Any],
    folder: str,
    replicas: list[asyncio.subprocess.Process],
) -> dict[str, Any]:
    """Start one, add it to `replicas`, and wait for what it reports."""
    read, write = os.pipe()
    try:
        replica = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "glimmer.retrieval.service", "--replica"),
            *("--index", str(index), "--corpus", str(corpus)),
            *("--settings", json.dumps(dict(settings))),
            *("--report-fd", str(write), "--parent", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(write,),
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": folder},
        )
    finally:
        os.close(write)
    replicas.append(replica)
    with os.fdopen(read, "rb") as pipe:
        told = await asyncio.to_thread(pipe.read)
    if told:
        return json.loads(told)
    status = await replica.wait()
    return {"error": f"a replica ended with status {status} before it was ready"}


async def _end(replicas: list[asyncio.subprocess.Process], drain_timeout_s: float) -> None:
    """End them all: politely, then not."""
    for replica in replicas:
        if replica.returncode is None:
            replica.terminate()
    ends = [asyncio.ensure_future(replica.wait()) for replica in replicas]
    if ends:
        _, left = await asyncio.wait(ends, timeout=drain_timeout_s + 5)
        if left:
            for replica in replicas:
                if replica.returncode is None:
                    replica.kill()
            await asyncio.wait(ends)
