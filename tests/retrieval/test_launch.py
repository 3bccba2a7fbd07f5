"""The service as a process: started, checked, taken down whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import glimmer
from glimmer.errors import ConfigError, IntegrityError
from glimmer.files import read_json, write_json
from glimmer.retrieval import (
    SearchClient,
    SearchRefused,
    ServiceError,
    launch,
    retrieval_service,
)
from glimmer.retrieval.launch import _check_elsewhere, _known_passages, _request
from glimmer.retrieval.settings import service_settings

from .conftest import write_corpus


def info(url):
    with urllib.request.urlopen(url.replace("/retrieve", "/info"), timeout=30) as response:
        return json.load(response)


def ended(pid):
    """Wait, at most 30 s, until a process that may not be our child has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    import select

    try:
        return bool(select.select([handle], [], [], 30)[0])
    finally:
        os.close(handle)


def search(url, query, **settings):
    async def main():
        async with SearchClient(url, topk=1, backoff_s=0.001, **settings) as client:
            return await client.search(query)

    return asyncio.run(main())


def run(world, tmp_path, **settings):
    return retrieval_service(
        settings, index=world.index, corpus=world.corpus, log=tmp_path / "service.log"
    )


@pytest.fixture(scope="module")
def running(world, tmp_path_factory):
    """One service for the tests that do no harm to it."""
    with run(world, tmp_path_factory.mktemp("running")) as url:
        pid = info(url)["pid"]
        yield url
    assert ended(pid)


def test_answers_and_says_what_it_is(running, world):
    (found,) = search(running, world.titles[12])
    assert found.id == "p12"
    record = json.loads((world.index / "index.json").read_text())
    assert info(running)["index"]["sha256"] == record["index"]["sha256"]


def test_configured_url_is_checked_and_handed_out(running, world, tmp_path):
    with run(world, tmp_path, url=running) as url:
        assert url == running
    assert search(running, world.titles[0])[0].id == "p0"  # and left alone
    assert not (tmp_path / "service.log").exists()


@pytest.mark.parametrize("other", ["index", "model"])
def test_configured_url_of_another_index_or_model(running, world, tmp_path, other):
    index = tmp_path / "index"
    shutil.copytree(world.index, index)
    record = read_json(index / "index.json")
    if other == "index":
        record["index"]["sha256"] = "0" * 64
    else:
        record["model"]["query_prefix"] = "query: "
    write_json(index / "index.json", record)
    settings = {"url": running}
    with pytest.raises(ServiceError, match=r"retrieval\.url: .* serves the index"):
        with retrieval_service(settings, index=index, corpus=world.corpus, log=tmp_path / "l"):
            pass


def test_many_clients_at_once(running, world):
    async def main():
        async with SearchClient(running, topk=2) as client:
            return await asyncio.gather(*(client.search(title) for title in world.titles[:128]))

    found = asyncio.run(main())
    assert sum(passages[0].id == f"p{i}" for i, passages in enumerate(found)) > 120


def test_port_taken(world, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"127\.0\.0\.1:{port} is taken by another process"):
            with run(world, tmp_path, port=port):
                pass


def test_refusals_before_anything_is_started(world, other_rows, tmp_path):
    other = write_corpus(tmp_path / "other.jsonl", other_rows)
    with pytest.raises(ConfigError, match="Did you mean 'threads'"):
        with run(world, tmp_path, thread=1):
            pass
    with pytest.raises(IntegrityError, match="another corpus"):
        with retrieval_service({}, index=world.index, corpus=other, log=tmp_path / "l"):
            pass
    with pytest.raises(IntegrityError, match="never finished"):
        with retrieval_service({}, index=tmp_path, corpus=other, log=tmp_path / "l"):
            pass


def test_fault_7_a_truncated_index_is_refused(small, tmp_path):
    index = small.index / "index.faiss"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(ServiceError, match="truncated or of another build"):
        with run(small, tmp_path):
            pass


def test_too_slow_to_start_and_taken_down(world, tmp_path, monkeypatch):
    started = []

    def start(*arguments, real=launch._start):
        started.append(real(*arguments))
        return started[0]

    monkeypatch.setattr(launch, "_start", start)
    with pytest.raises(ServiceError, match=r"within 0\.1 s \(retrieval\.start_timeout_s\)"):
        with run(world, tmp_path, start_timeout_s=0.1):
            pass
    assert started[0][0].returncode is not None


def test_dies_in_the_middle(world, tmp_path):
    """The failed search is an error that says so, and its end is told with the log."""
    with pytest.raises(ServiceError, match="ended by itself with status -9") as raised:
        with run(world, tmp_path) as url:
            assert search(url, world.titles[1])[0].id == "p1"
            pid = info(url)["pid"]
            os.kill(pid, signal.SIGKILL)
            assert ended(pid)
            search(url, world.titles[1])
    assert isinstance(raised.value.__cause__, SearchRefused)
    assert "service.log" in str(raised.value) and "serving 300 passages" in str(raised.value)


def test_goes_with_a_parent_that_is_killed(world, tmp_path):
    code = (
        "import sys, signal; from pathlib import Path; from glimmer.retrieval import *\n"
        "index, corpus, log = map(Path, sys.argv[1:])\n"
        "with retrieval_service({}, index=index, corpus=corpus, log=log) as url:\n"
        "    print(url, flush=True); signal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, world.index, world.corpus, tmp_path / "service.log"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(glimmer.__file__).parents[1])},
    )
    with parent:
        url = parent.stdout.readline().strip()
        pid = info(url)["pid"]
        parent.kill()
    assert ended(pid)
    assert "is gone; ending" in (tmp_path / "service.log").read_text()


def elsewhere(world, handlers, **settings):
    """Check a service made of `handlers` {path: answer} as a configured URL; what was raised."""

    async def main():
        app = web.Application()
        for path, answer in handlers.items():

            async def handle(_, answer=answer):
                return web.json_response(answer) if isinstance(answer, dict) else answer

            app.router.add_route("*", path, handle)
        async with TestServer(app) as server:
            complete = service_settings({"url": str(server.make_url("/retrieve"))} | settings)
            probes = _known_passages(world.index, world.corpus)
            await asyncio.to_thread(_check_elsewhere, complete, world.index, probes)

    asyncio.run(main())


def test_plain_search_r1_server_is_accepted_when_asked(world):
    places = [0, 60, 120, 180, 240]
    for nested in (False, True):
        found = [[{"document": world.rows[i]} if nested else world.rows[i]] for i in places]
        answer = {"/retrieve": {"result": found}}
        elsewhere(world, answer, require_info=False)
        with pytest.raises(ServiceError, match="require_info"):
            elsewhere(world, answer)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"result": []}, "not Search-R1's protocol"),
        ({"result": [[]] * 5}, "not Search-R1's protocol"),
        ({"detail": "no"}, "not Search-R1's protocol"),
        ({"result": [[{"id": "1", "contents": '"Else"\nnothing'}]] * 5}, "has another corpus"),
        (web.Response(status=500, text="broken"), "answered 500: broken"),
        (web.Response(text="hello"), "no answer"),
    ],
)
def test_services_that_are_not_the_one_meant(world, answer, says):
    with pytest.raises(ServiceError, match=says):
        elsewhere(world, {"/retrieve": answer}, require_info=False)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", "no whole answer within 1 s"),
        (b"HTTP/1.1 200 OK\r\nX-", "no whole answer within 1 s"),
        (b"\x00\xff no HTTP\r\n\r\n", "no answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no answer"),
    ],
    ids=["body", "header", "garbage", "chunks"],
)
def test_a_service_that_answers_drop_by_drop_or_garbled(answer, says):
    """A byte each 0.1 s keeps a timeout of single reads from ever striking."""
    listening = socket.create_server(("127.0.0.1", 0))

    def drip():
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(answer)
            for _ in range(100):
                time.sleep(0.1)
                connection.sendall(b"x")

    threading.Thread(target=drip, daemon=True).start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/retrieve"
    with listening, pytest.raises(ServiceError, match=says):
        _request(url, {"queries": ["x"]}, 1.0, None)


def test_an_answer_without_end_is_not_read_to_the_end(monkeypatch):
    monkeypatch.setattr(launch, "_MOST_BYTES", 1000)

    async def main():
        app = web.Application()

        async def handle(_):
            return web.Response(body=b" " * 5000)

        app.router.add_route("*", "/retrieve", handle)
        async with TestServer(app) as server:
            url = str(server.make_url("/retrieve"))
            await asyncio.to_thread(_request, url, None, 5.0, None)

    with pytest.raises(ServiceError, match="longer than 1000 bytes"):
        asyncio.run(main())


def test_nobody_at_the_configured_url(world, tmp_path):
    with pytest.raises(ServiceError, match="Connect call failed"):
        with run(world, tmp_path, url="http://127.0.0.1:1/retrieve", require_info=False):
            pass
