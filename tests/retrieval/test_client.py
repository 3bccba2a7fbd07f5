"""The client against servers that fail in every way (known fault 2): always an error, counted."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from glimmer.errors import ConfigError
from glimmer.retrieval import (
    SearchClient,
    SearchError,
    SearchHTTPError,
    SearchProtocolError,
    SearchRefused,
    SearchTimeout,
    ServiceError,
)
from tests.slow_search import slow_service

PASSAGE = {"id": "5", "contents": '"Osvik"\nA river.\nIt is long.'}


def search(handler, *, query="a river", topk=1, **settings):
    """Outcome of one search against `handler`: (passages or error, client)."""

    async def main():
        app = web.Application()
        app.router.add_post("/retrieve", handler)
        async with TestServer(app) as server:
            url = str(server.make_url("/retrieve"))
            async with SearchClient(url, topk=topk, backoff_s=0.001, **settings) as client:
                try:
                    return await client.search(query), client
                except SearchError as error:
                    return error, client

    return asyncio.run(main())


def answering(body, status=200):
    async def handler(_):
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=text, status=status)

    return handler


@pytest.mark.parametrize(
    "body",
    [
        {"result": [[{"document": PASSAGE, "score": 0.5}]]},
        {"result": [[PASSAGE | {"score": 0.5}]]},
    ],
)
def test_fault_3_both_forms_of_a_passage(body):
    (found,), client = search(answering(body))
    assert (found.id, found.title, found.text) == ("5", "Osvik", "A river.\nIt is long.")
    assert found.score == 0.5 and found.as_dict()["title"] == "Osvik"
    assert client.counts == {
        "requests": 1,
        "searches": 1,
        "failed": 0,
        "retried": 0,
        "timeouts": 0,
    }


def test_passage_without_score():
    (found,), _ = search(answering({"result": [[PASSAGE]]}))
    assert found.score is None


@pytest.mark.parametrize("query", ["1984", "true", "null", '["a","b"]', "é\n\u2028"])
def test_query_arrives_as_it_is(query):
    asked = []

    async def handler(request):
        asked.append(await request.json())
        return web.json_response({"result": [[PASSAGE]]})

    search(handler, query=query)
    assert asked == [{"queries": [query], "topk": 1, "return_scores": True}]


@pytest.mark.parametrize(
    "body",
    [
        {"result": []},
        {"result": [[]]},
        {"result": [[PASSAGE, PASSAGE]]},
        {"result": [[PASSAGE], [PASSAGE]]},
        {"result": None},
        {"result": {"0": PASSAGE}},
        {"results": [[PASSAGE]]},
        {"result": [[None]]},
        {"result": [["text"]]},
        {"result": [[{"document": None, "score": 1.0}]]},
        {"result": [[{"document": {"id": "5"}, "score": 1.0}]]},
        {"result": [[{"id": "5", "contents": ""}]]},
        {"result": [[{"document": PASSAGE, "score": "high"}]]},
        [],
        None,
        "not json",
        "",
        "[" * 100_000,
    ],
)
def test_fault_2_answers_that_are_none(body):
    error, client = search(answering(body))
    assert isinstance(error, SearchProtocolError)
    assert error.query == "a river" and error.url in str(error)
    assert client.counts["failed"] == 1 and client.counts["requests"] == 1
    assert client.latencies == []


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (200, SearchProtocolError, "goes on after 3000 bytes; expected 3 passages of at most 1000"),
        (422, SearchHTTPError, "answered 422 .*: aaaaaaaa"),
    ],
)
def test_an_answer_without_end_is_not_read_to_the_end(monkeypatch, status, kind, says):
    monkeypatch.setattr("glimmer.retrieval.client.MOST_PASSAGE_BYTES", 1000)
    sent = 0

    async def endless(request):
        nonlocal sent
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:  # ends when the client hangs up
            await response.write(b"a" * 1000)
            sent += 1000

    error, client = search(endless, topk=3, timeout_s=20)
    assert isinstance(error, kind) and re.search(says, str(error)) and len(str(error)) < 700
    assert client.counts["failed"] == client.counts["requests"] == 1
    assert client.counts["timeouts"] == 0 and sent < 10_000_000  # what sockets hold


def test_an_answer_of_the_largest_size_is_read(monkeypatch):
    text = json.dumps({"result": [[PASSAGE, PASSAGE]]})
    text += " " * (len(text) % 2)
    monkeypatch.setattr("glimmer.retrieval.client.MOST_PASSAGE_BYTES", len(text) // 2)
    found, _ = search(answering(text), topk=2)
    assert len(found) == 2


def test_fault_2_server_error_is_tried_again_then_raised():
    error, client = search(answering({"error": "x"}, status=500), max_retries=2)
    assert isinstance(error, SearchHTTPError) and error.status == 500 and error.attempts == 3
    assert client.counts["requests"] == 3 and client.counts["retried"] == 2
    assert client.counts["failed"] == 1


def test_refused_request_is_not_tried_again():
    error, client = search(answering({"error": "topk too large"}, status=422))
    assert isinstance(error, SearchHTTPError) and error.status == 422
    assert "topk too large" in str(error)
    assert client.counts["requests"] == 1 and client.counts["failed"] == 1


def test_recovers_within_its_retries():
    statuses = iter([503, 500, 200])

    async def handler(_):
        return web.json_response({"result": [[PASSAGE]]}, status=next(statuses))

    found, client = search(handler, max_retries=2)
    assert found[0].id == "5"
    assert client.counts["failed"] == 0 and client.counts["retried"] == 2


@pytest.mark.parametrize("status", [503, 429])
def test_retry_after_is_heeded(status):
    """The client stays away as long as it is told to; its own pause would be a millisecond."""
    times = []

    async def handler(_):
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            return web.Response(status=status, headers={"Retry-After": "1"})
        return web.json_response({"result": [[PASSAGE]]})

    found, client = search(handler, max_retries=1)
    assert found[0].id == "5" and client.counts["retried"] == 1
    assert times[1] - times[0] >= 1.0


@pytest.mark.parametrize("told", ["soon", "-5", "1e9", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 99])
def test_a_retry_after_that_says_nothing_is_passed_over(told):
    statuses = iter([503, 200])

    async def handler(_):
        body = {"result": [[PASSAGE]]}
        return web.json_response(body, status=next(statuses), headers={"Retry-After": told})

    assert search(handler, max_retries=1)[0][0].id == "5"


def test_told_to_come_back_too_late():
    """The time allowed ends the wait; the message has what the service said."""

    async def handler(_):
        return web.Response(status=503, text="queue full", headers={"Retry-After": "600"})

    error, client = search(handler, timeout_s=0.2)
    assert isinstance(error, SearchTimeout) and error.attempts == 2
    assert "answered 503" in str(error) and "queue full" in str(error)
    assert client.counts["requests"] == 1 and client.counts["failed"] == 1


def test_connections_are_used_again():
    async def main():
        peers = set()

        async def handler(request):
            peers.add(request.transport.get_extra_info("peername"))
            return web.json_response({"result": [[PASSAGE]]})

        app = web.Application()
        app.router.add_post("/retrieve", handler)
        async with TestServer(app) as server:
            url = str(server.make_url("/retrieve"))
            async with SearchClient(url, topk=1, max_connections=4) as client:
                for _ in range(10):
                    await client.search("one after the other")
                assert len(peers) == 1
                await asyncio.gather(*(client.search(f"q{i}") for i in range(40)))
        return peers

    assert len(asyncio.run(main())) <= 4


def test_pauses_between_retries_double_and_differ(monkeypatch):
    pauses = []

    async def pause(seconds, real=asyncio.sleep):
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr("glimmer.retrieval.client.asyncio.sleep", pause)
    search(answering("", status=500), max_retries=6)
    shares = [p / (0.001 * 2**n) for n, p in enumerate(p for p in pauses if p > 0)]
    assert len(set(shares)) == 6 and all(0.5 <= share <= 1 for share in shares)


def test_fault_2_silence_times_out():
    async def handler(_):
        await asyncio.Event().wait()

    error, client = search(handler, timeout_s=0.05)
    assert isinstance(error, SearchTimeout) and "search.timeout_s" in str(error)
    assert client.counts["timeouts"] == client.counts["failed"] == 1


def test_time_allowed_includes_retries():
    error, client = search(answering("", status=500), timeout_s=0.2, max_retries=10**6)
    assert isinstance(error, SearchTimeout)
    assert client.counts["retried"] >= 1 and client.counts["failed"] == 1


def test_fault_9_one_slow_search_does_not_hold_the_others():

    async def main():
        async with (
            TestServer(slow_service(PASSAGE)) as server,
            SearchClient(str(server.make_url("/retrieve")), topk=1, timeout_s=0.3) as client,
        ):
            slow = asyncio.ensure_future(client.search("slow"))
            quick = await asyncio.gather(*(client.search(f"q{i}") for i in range(20)))
            assert not slow.done()
            (error,) = await asyncio.gather(slow, return_exceptions=True)
            return quick, error, client.counts

    quick, error, counts = asyncio.run(main())
    assert len(quick) == 20 and isinstance(error, SearchTimeout)
    assert counts["searches"] == 21 and counts["failed"] == counts["timeouts"] == 1


def test_too_many_failures_stop_a_run():
    async def main():
        async def handler(request):
            fails = (await request.json())["queries"] == ["bad"]
            return web.json_response({"result": [[PASSAGE]]}, status=422 if fails else 200)

        app = web.Application()
        app.router.add_post("/retrieve", handler)
        async with (
            TestServer(app) as server,
            SearchClient(str(server.make_url("/retrieve")), topk=1) as client,
        ):
            client.check_failures(max_share=0.0)  # nothing asked yet
            queries = ["good"] * 9 + ["bad"]
            await asyncio.gather(*map(client.search, queries), return_exceptions=True)
            client.check_failures(max_share=0.1)
            await asyncio.gather(*map(client.search, queries), return_exceptions=True)
            with pytest.raises(ServiceError, match=r"1 of 10 searches failed, 5% .* answered 422"):
                client.check_failures(max_share=0.05)
            client.check_failures(max_share=0.0)  # only what is new counts

    asyncio.run(main())


def test_fault_2_nobody_listens():
    async def main():
        url = f"http://127.0.0.1:{unused_port()}/retrieve"
        async with SearchClient(url, topk=1, backoff_s=0.001) as client:
            with pytest.raises(SearchRefused, match="not started or has died") as raised:
                await client.search("a")
            return raised.value, client.counts

    error, counts = asyncio.run(main())
    assert error.attempts == 3 and counts["retried"] == 2 and counts["failed"] == 1


def test_connection_cut_in_the_middle():
    async def handler(request):
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"result"')
        request.transport.abort()
        return response

    error, client = search(handler)
    assert isinstance(error, SearchRefused)
    assert client.counts["requests"] == 3 and client.counts["failed"] == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"topk": 0}, r"search\.topk: found 0"),
        ({"topk": 3, "timeout_s": 0}, r"search\.timeout_s: found 0"),
        ({"topk": 3, "max_retries": -1}, r"search\.max_retries: found -1"),
    ],
)
def test_wrong_settings(settings, says):
    with pytest.raises(ConfigError, match=says):
        SearchClient("http://127.0.0.1:1/retrieve", **settings)
