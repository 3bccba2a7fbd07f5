"""The service as a process: its end, its token, its replicas."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp
import pytest

import glimmer
from glimmer.errors import ConfigError
from glimmer.retrieval import SearchClient, SearchHTTPError, ServiceError, retrieval_service
from glimmer.retrieval.replicas import _metrics_folder
from glimmer.retrieval.service import bind, main, serve
from glimmer.retrieval.settings import bearer_token, service_settings

SECRET = "s3cret-of-the-test"  # noqa: S105


def run(world, tmp_path, **settings):
    return retrieval_service(
        settings, index=world.index, corpus=world.corpus, log=tmp_path / "service.log"
    )


def get(url, path, token=None):
    request = urllib.request.Request(url.replace("/retrieve", path))
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read().decode()


@contextlib.contextmanager
def started(world, **settings):
    """(process, URL) of a service of its own, as one starts it by hand."""
    read, write = os.pipe()
    with (
        subprocess.Popen(
            [
                *(sys.executable, "-m", "glimmer.retrieval.service"),
                *("--index", world.index, "--corpus", world.corpus),
                *("--settings", json.dumps(settings), "--report-fd", str(write)),
            ],
            pass_fds=(write,),
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(glimmer.__file__).parents[1])},
        ) as process,
        os.fdopen(read) as pipe,
    ):
        os.close(write)
        try:
            yield process, f"http://127.0.0.1:{json.load(pipe)['port']}/retrieve"
        finally:
            process.kill()


def test_what_is_at_work_is_finished_and_the_rest_refused(world):
    """SIGTERM in the middle of requests: each gets its answer or a 503; the status is 0."""

    async def main(process, url):
        async with aiohttp.ClientSession() as session:

            async def ask(place):
                body = {"queries": [f"{title} {place}" for title in world.titles[:25]], "topk": 1}
                try:
                    async with session.post(url, json=body) as answer:
                        return answer.status, await answer.json(), answer.headers
                except aiohttp.ClientConnectionError:
                    return "refused", None, None

            first = [asyncio.ensure_future(ask(place)) for place in range(8)]
            in_flight = 0.0
            while in_flight < 1 + len(first):  # the question for it is one too
                async with session.get(url.replace("/retrieve", "/metrics")) as answer:
                    (found,) = re.findall(
                        r"\nglimmer_search_in_flight (\S+)\n", await answer.text()
                    )
                    in_flight = float(found)
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.02)
            later = await asyncio.gather(*(ask(100 + place) for place in range(4)))
            return await asyncio.gather(*first), later

    with started(world, max_batch=16, drain_timeout_s=60) as (process, url):
        first, later = asyncio.run(main(process, url))
        assert process.wait(60) == 0
        log = process.stderr.read()
    assert [status for status, *_ in first] == [200] * 8
    assert all(len(answer["result"]) == 25 for _, answer, _ in first)
    for status, answer, headers in later:
        assert status in (503, "refused")
        if status == 503:
            assert answer["error"]["type"] == "Stopping" and headers["Retry-After"] == "1"
    assert 503 in {status for status, *_ in later}
    assert "stopped: " in log


def test_the_end_does_not_wait_for_ever(world, encoder):
    """A request that cannot be finished is given up after drain_timeout_s."""
    from glimmer.retrieval.application import SearchService
    from glimmer.retrieval.index import open_index

    class Slow:
        def queries(self, texts):
            import time

            time.sleep(2.0)
            return encoder.queries(texts)

    async def main():
        settings = service_settings({"drain_timeout_s": 0})
        service = SearchService(open_index(world.index, world.corpus), Slow(), settings)
        bound, stop, ready = bind("127.0.0.1", 0), asyncio.Event(), asyncio.Event()
        serving = asyncio.ensure_future(serve(service, bound, ready=ready.set, stop=stop))
        await ready.wait()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/retrieve"
        async with aiohttp.ClientSession() as session:
            asked = asyncio.ensure_future(session.post(url, json={"queries": ["a"]}))
            while not service.in_flight:
                await asyncio.sleep(0.01)
            stop.set()
            await serving
            (result,) = await asyncio.gather(asked, return_exceptions=True)
            return result

    result = asyncio.run(main())
    assert isinstance(result, aiohttp.ClientError) or result.status in (500, 503)


@pytest.mark.parametrize("value", ["", "two words", "é", "line\nbreak"])
def test_an_unfit_token_is_refused_by_the_name_of_its_variable(monkeypatch, value):
    monkeypatch.setenv("SEARCH_TOKEN_OF_TEST", value)
    with pytest.raises(ConfigError, match=r"retrieval\.token_env: .* SEARCH_TOKEN_OF_TEST") as e:
        bearer_token("SEARCH_TOKEN_OF_TEST")
    assert not value or value not in str(e.value)
    monkeypatch.delenv("SEARCH_TOKEN_OF_TEST")
    with pytest.raises(ConfigError, match="found no value"):
        bearer_token("SEARCH_TOKEN_OF_TEST")
    assert bearer_token(None) is None


@pytest.mark.parametrize("text", ["{bad", "[8000]"])
def test_settings_that_are_no_json_object_are_refused(text, capsys):
    assert main(["--index", "x", "--corpus", "y", "--settings", text]) == 1
    assert f"--settings: found {text!r}, expected a JSON object" in capsys.readouterr().err


@pytest.mark.long
def test_replicas_behind_one_port_with_a_token(world, tmp_path, monkeypatch):
    """The same answers, one sum, no word of the token, and all of them end at the end."""
    monkeypatch.setenv("SEARCH_TOKEN_OF_TEST", SECRET)

    async def search(url):
        found = {}
        # A connection stays with its replica; new ones are spread.
        for _ in range(12):
            async with aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {SECRET}"}
            ) as session:
                async with session.get(url.replace("/retrieve", "/info")) as answer:
                    pid = (await answer.json())["pid"]
                body = {"queries": world.titles[:8], "topk": 3, "return_scores": True}
                async with session.post(url, json=body) as answer:
                    found.setdefault(pid, set()).add(await answer.text())
        return found

    async def ask(url, token):
        async with SearchClient(url, topk=1, token=token) as client:
            return await client.search(world.titles[3])

    with run(world, tmp_path, replicas=2, token_env="SEARCH_TOKEN_OF_TEST") as url:
        found = asyncio.run(search(url))
        assert len(found) == 2, "12 connections all went to one of two replicas"
        assert len(set.union(*found.values())) == 1
        for pid in found:
            assert str(world.index / "index.faiss") in Path(f"/proc/{pid}/maps").read_text()
        assert asyncio.run(ask(url, SECRET))[0].id == "p3"
        for wrong in (None, "other", SECRET + "x", SECRET[:-1]):
            with pytest.raises(SearchHTTPError, match="Authorization: Bearer <token>") as caught:
                asyncio.run(ask(url, wrong))
            assert caught.value.status == 401 and caught.value.attempts == 1
        for path in ("/info", "/metrics", "/openapi.json"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                get(url, path)
            assert SECRET not in get(url, path, SECRET)
        assert json.loads(get(url, "/health")) == {"status": "ok"}
        page = get(url, "/metrics", SECRET)
        queries = re.findall(r'queries_total{answer="\w+"} (\d+)', page)
        # Those above, five at the start, and what each asked replica asked for its health.
        assert 12 * 8 + 5 + 1 < sum(map(int, queries)) <= 12 * 8 + 5 + 1 + 5
        assert 'errors_total{type="Unauthorized"} 7.0' in page
        # A service elsewhere that wants a token is checked with it.
        with run(world, tmp_path, url=url, token_env="SEARCH_TOKEN_OF_TEST"):
            pass
        with pytest.raises(ServiceError, match="401"):
            with run(world, tmp_path, url=url):
                pass
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)
    log = (tmp_path / "service.log").read_text()
    assert log.count("stopped: ") == 2 and SECRET not in log


def test_a_replica_that_cannot_start_says_why(small):
    index = small.index / "index.faiss"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(ServiceError, match="truncated or of another build"):
        with run(small, small.base, replicas=2):
            pass


@pytest.mark.long
def test_a_replica_that_is_killed_ends_the_service_which_says_so(world, tmp_path):
    async def search(url):
        async with SearchClient(url, topk=1, max_retries=0) as client:
            while True:
                await client.search("a")
                await client.close()

    with pytest.raises(ServiceError, match=r"ended by itself with status 1"):
        with run(world, tmp_path, replicas=2) as url:
            os.kill(json.loads(get(url, "/info"))["pid"], signal.SIGKILL)
            asyncio.run(search(url))
    log = (tmp_path / "service.log").read_text()
    assert "ended by itself with status -9; the other replicas are ended too" in log


def test_an_error_of_a_service_that_was_ready_is_logged_and_no_more(monkeypatch, capsys):
    """The pipe is closed once the port is written; the number may be another file's by then."""
    from glimmer.retrieval import service

    async def serves_and_fails(found, bound, report):
        report({"port": 1})
        raise ServiceError("a replica has ended")

    monkeypatch.setattr(service, "open_service", lambda *given: None)
    monkeypatch.setattr(service, "_run", serves_and_fails)
    read, write = os.pipe()
    status = service.main(["--index", "i", "--corpus", "c", "--report-fd", str(write)])
    with os.fdopen(read) as pipe:
        assert (status, pipe.read()) == (1, '{"port": 1}')
    assert "ServiceError: a replica has ended" in capsys.readouterr().err


def test_who_can_reach_it_is_said(world, tmp_path, caplog, monkeypatch):
    from glimmer.retrieval import service

    for host, warns in (("127.0.0.1", 0), ("localhost", 0), ("::1", 0), ("0.0.0.0", 1)):
        caplog.clear()
        service._check_reach(service_settings({"host": host}))
        assert len(caplog.records) == warns
    monkeypatch.setenv("SEARCH_TOKEN_OF_TEST", SECRET)
    caplog.clear()
    service._check_reach(service_settings({"host": "0.0.0.0", "token_env": "SEARCH_TOKEN_OF_TEST"}))
    assert not caplog.records
    assert service_settings({})["host"] == "127.0.0.1"


def test_what_a_killed_service_left_is_removed_by_the_next_one(tmp_path, monkeypatch):
    """The replicas' figures lie in the temporary folder; those of a service that lives stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, being_made = tmp_path / "glimmer-metrics-dead", tmp_path / "glimmer-metrics-new"
    for folder in (dead, being_made):
        folder.mkdir()
        (folder / "histogram_1.db").touch()
    (dead / ".lock").touch()
    with _metrics_folder() as first:
        assert not dead.exists() and being_made.exists()
        code = (
            "from glimmer.retrieval.replicas import _metrics_folder\n"
            "with _metrics_folder() as folder: print(folder)"
        )
        second = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        assert second != first and Path(first).exists()
    assert sorted(tmp_path.iterdir()) == [being_made]
