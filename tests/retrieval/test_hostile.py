"""A running service under malformed requests and under load: no crash, no growth, and a valid
request is answered right afterwards. As a process of its own, so that its memory can be read."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

import aiohttp
import numpy as np
import psutil
import pytest

from glimmer.retrieval import SearchClient, retrieval_service

LIMITS = {"max_body_bytes": 200_000, "max_queries": 64, "max_query_chars": 1000}
AT_ONCE = 16


def bodies(rng: random.Random):
    """Bodies without end: bytes, types, sizes, depths, encodings, and valid ones cut or changed."""
    values = [None, True, -1, 0, 2**70, 1.5, 1e308, "a", [], {}, [[]], {"a": 1}, "\x00", ["a"]]
    values += ["\u202e" * 5, ["\ud800"], [" "], "9" * 400, [1], [None], [{"queries": ["a"]}]]
    keys = ["queries", "topk", "return_scores", "query", "x", "", "__class__", "queries "]

    def shaped():
        return json.dumps({key: rng.choice(values) for key in rng.sample(keys, rng.randint(0, 5))})

    def cut():
        whole = json.dumps({"queries": ["who wrote it"] * rng.randint(1, 9), "topk": 3}).encode()
        return whole[: rng.randrange(len(whole))]

    def changed():
        whole = bytearray(json.dumps({"queries": ["é and ü", "b"], "topk": 3}), "utf-8")
        for _ in range(rng.randint(1, 6)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        return bytes(whole)

    depth = [1000, 20_000, 90_000]
    kinds = [
        lambda: rng.randbytes(rng.randrange(600)),
        shaped,
        shaped,
        cut,
        changed,
        lambda: "[" * rng.choice(depth),
        lambda: '{"queries":' * rng.choice(depth[:2]),
        lambda: '{"queries": ' + "[" * 5000 + "]" * 5000 + "}",
        lambda: json.dumps({"queries": ["a" * rng.choice([1001, 50_000])]}),
        lambda: json.dumps({"queries": ["a"] * rng.choice([65, 5000])}),
        lambda: '{"queries": ["a"], "topk": ' + "9" * rng.choice([5, 5000]) + "}",
        lambda: b'{"queries": ["\xff\xfe\xc0\x80"]}',
        lambda: '{"queries": ["\\ud83d"]}',
        lambda: "é".encode("utf-16"),
        lambda: b" " * rng.choice([10, 150_000, 300_000]),
        lambda: json.dumps({"queries": ["a"], "return_scores": rng.choice(["yes", 1, None])}),
    ]
    while True:
        yield rng.choice(kinds)()


HALVES = [
    b"",
    b"POST",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
    b"GET /retrieve HTTP/9.9\r\n\r\n",
    b"POST /retrieve HTTP/1.1\r\nHost: x\r\n",
    b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{",
    b"POST /retrieve HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /retrieve HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 3000,
    b"\r\n" * 2000,
]


async def attack(url: str, count: int, seed: int) -> dict[object, int]:
    """Send `count` malformed requests, every fourth as bytes on a connection; status -> number."""
    rng = random.Random(seed)
    made = bodies(rng)
    host, port = url.split("/")[2].split(":")
    found: dict[object, int] = {}
    places = iter(range(count))

    async def half():
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(rng.choice(HALVES) + (rng.randbytes(20) if rng.random() < 0.3 else b""))
        end = rng.random()
        if end < 0.3:
            writer.transport.abort()
        elif end < 0.6:
            writer.write_eof()
        try:
            await asyncio.wait_for(reader.read(200), 0.05)
        except (TimeoutError, ConnectionError):
            pass
        writer.close()
        return "half"

    async def one(session):
        for place in places:
            if place % 4 == 3:
                status = await half()
            else:
                method = rng.choice(["POST"] * 8 + ["PUT", "GET"])
                path = rng.choice(
                    ["/retrieve"] * 9 + ["/%ff", "/../etc/passwd", "//", "/info?a=%00"]
                )
                kinds = ["application/json"] * 5 + ["text/xml", "multipart/form-data", ""]
                headers = {"Content-Type": rng.choice(kinds)}
                body = next(made)
                data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
                try:
                    async with session.request(
                        method, url.replace("/retrieve", path), data=data, headers=headers
                    ) as answer:
                        await answer.read()
                        status = answer.status
                except aiohttp.ClientError as error:
                    status = type(error).__name__
            found[status] = found.get(status, 0) + 1

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(session) for _ in range(AT_ONCE)))
    return found


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_malformed_requests_do_no_harm(world, tmp_path, count):
    async def valid(url):
        async with SearchClient(url, topk=1) as client:
            return (await client.search(world.titles[3]))[0].id

    with retrieval_service(
        LIMITS | {"idle_timeout_s": 1.0, "body_timeout_s": 1.0},
        index=world.index,
        corpus=world.corpus,
        log=tmp_path / "service.log",
    ) as url:
        service = next(
            child
            for child in psutil.Process().children(recursive=True)
            if "glimmer.retrieval.service" in child.cmdline()
        )
        # The first of every kind: buffers and code paths that are then there to stay.
        asyncio.run(attack(url, max(300, count // 10), seed=0))
        before = service.memory_info().rss
        found = asyncio.run(attack(url, count, seed=1))
        assert asyncio.run(valid(url)) == "p3"
        after = service.memory_info().rss
        time.sleep(1.5)  # the half-open ones are closed by now
        assert len(service.net_connections()) < 8
        assert service.is_running()
    assert sum(found.values()) == count
    assert found.pop("half") == count // 4
    # Refused by name; a fault of the service's own would be 500.
    assert set(found) <= {200, 400, 404, 405, 408, 422, "ServerDisconnectedError"}, found
    assert found[422] > count / 8 and found[400] > count / 8
    print(f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after: {found}")
    assert after <= 1.05 * before, f"{before} bytes grew to {after}"
    assert "Traceback" not in Path(tmp_path / "service.log").read_text()


@pytest.mark.long
def test_half_an_hour_of_load_changes_nothing(world, tmp_path):
    """50,000 requests of 64 clients: what half an hour of rollouts at 28 searches a second asks."""
    rng = random.Random(0)
    # A third of the queries are new, so that the cache fills up and forgets.
    asked = [
        f"{rng.choice(world.titles)} {rng.randrange(400)}" if rng.random() < 0.3
        else rng.choice(world.titles)
        for _ in range(50_000)
    ]  # fmt: skip

    async def load(url):
        quarters, sizes = [], []
        async with SearchClient(url, topk=3, timeout_s=120) as client:
            for quarter in range(4):
                waiting = iter(asked[quarter * 12_500 : (quarter + 1) * 12_500])

                async def one(waiting=waiting):
                    for query in waiting:
                        assert len(await client.search(query)) == 3

                await asyncio.gather(*(one() for _ in range(64)))
                quarters.append(np.percentile(client.latencies, [50, 99]))
                client.latencies.clear()
                sizes.append(service.memory_info().rss)
        return quarters, sizes, client.counts

    with retrieval_service(
        {"cache_size": 2000}, index=world.index, corpus=world.corpus, log=tmp_path / "service.log"
    ) as url:
        service = next(
            child
            for child in psutil.Process().children(recursive=True)
            if "glimmer.retrieval.service" in child.cmdline()
        )
        quarters, sizes, counts = asyncio.run(load(url))
    print("p50, p99 in ms a quarter:", [np.round(1000 * q, 1).tolist() for q in quarters])
    print("MB after each quarter:", [round(size / 1e6, 1) for size in sizes])
    assert counts["failed"] == 0 and counts["searches"] == counts["requests"] == 50_000
    assert sizes[-1] <= 1.05 * sizes[0]
