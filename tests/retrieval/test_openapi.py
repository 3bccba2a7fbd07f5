"""The OpenAPI page is true: schemathesis makes requests from it, right and wrong ones, and holds
every answer against it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from glimmer.retrieval.application import SearchService
from glimmer.retrieval.index import open_index
from glimmer.retrieval.service import bind, serve
from glimmer.retrieval.settings import service_settings


@contextmanager
def serving(service: SearchService):
    """The service in a thread of its own; its address."""
    bound, loop, ready = bind("127.0.0.1", 0), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    def work():
        loop.run_until_complete(serve(service, bound, ready=ready.set, stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(30)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("examples", "token"),
    [
        (15, None),
        pytest.param(1000, None, marks=pytest.mark.long),
        pytest.param(1000, "right", marks=pytest.mark.long),
    ],
)
def test_schemathesis(world, encoder, tmp_path, examples, token):
    chosen = service_settings({"max_queries": 5, "max_query_chars": 60, "max_body_bytes": 4000})
    service = SearchService(open_index(world.index, world.corpus), encoder, chosen, token=token)
    command = [sys.executable, "-m", "schemathesis.cli", "run", "--checks", "all", "--seed", "0"]
    command += ["--max-examples", str(examples), "--generation-database", "none", "--no-color"]
    if token:
        command += ["--header", f"Authorization: Bearer {token}"]
    with serving(service) as address:
        done = subprocess.run(
            [*command, f"{address}/openapi.json"], cwd=tmp_path, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout + done.stderr
    page = service.metrics.text().decode()
    # It did ask, rightly and wrongly.
    for status in (200, 422):
        (count,) = re.findall(rf'_count{{path="/retrieve",status="{status}"}} (\d+)', page)
        assert int(count) >= min(examples, 100) / 3
    assert 'status="500"' not in page
