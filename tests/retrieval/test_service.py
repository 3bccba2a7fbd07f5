"""The service within this process: protocol, limits, batching (known faults 1 and 3)."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from glimmer.errors import ConfigError, IntegrityError
from glimmer.retrieval import SearchClient, openapi, protocol
from glimmer.retrieval.application import SearchService
from glimmer.retrieval.index import open_index
from glimmer.retrieval.service import open_service
from glimmer.retrieval.settings import SERVICE_DEFAULTS, service_settings


@pytest.fixture
def ask(world, encoder):
    """ask(use, **settings): run `use(client, service)` against a service of `world`."""

    def run(use, *, with_encoder=encoder, token=None, **settings):
        async def main():
            service = SearchService(
                open_index(world.index, world.corpus),
                with_encoder,
                service_settings(settings),
                token=token,
            )
            async with TestClient(TestServer(service.application())) as client:
                return await use(client, service)

        return asyncio.run(main())

    return run


async def post(client, body, **more):
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    async with client.post("/retrieve", data=data, **more) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("return_scores", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_fault_1_one_list_a_query(ask, world, encoder, count, return_scores):
    queries = world.titles[10 : 10 + count]

    async def use(client, _):
        body = {"queries": queries, "topk": 2, "return_scores": return_scores}
        return await post(client, body)

    status, answer = ask(use)
    assert status == 200 and set(answer) == {"result"} and len(answer["result"]) == count
    scores = encoder.queries(queries) @ world.matrix.T
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :2]
    for query, (found, rows) in enumerate(zip(answer["result"], expected, strict=True)):
        if return_scores:
            assert [set(entry) for entry in found] == [{"document", "score"}] * 2
            assert [e["score"] for e in found] == pytest.approx(scores[query, rows], abs=1e-5)
            found = [entry["document"] for entry in found]
        assert found == [world.rows[row] for row in rows]


def test_topk_and_scores_have_defaults(ask, world):
    async def use(client, _):
        return await post(client, {"queries": [world.titles[0]]})

    assert [len(found) for found in ask(use, default_topk=4)[1]["result"]] == [4]


BAD_REQUESTS = [
    ({"query": "a"}, 422, "InvalidRequest", "found 'query'; expected 'queries'"),
    ({"query": ["a"], "queries": ["a"]}, 422, "InvalidRequest", "found 'query'"),
    ({"queries": "a"}, 422, "InvalidRequest", "found str, expected a list"),
    ({}, 422, "InvalidRequest", "found none, expected a list"),
    ({"queries": []}, 422, "InvalidRequest", "found 0 queries, expected 1 to 8"),
    ({"queries": ["a"] * 9}, 422, "InvalidRequest", "found 9 queries"),
    ({"queries": ["a", 1984]}, 422, "InvalidRequest", "queries[1]': found int"),
    ({"queries": ["a", " \n"]}, 422, "InvalidRequest", "queries[1]': the query is empty"),
    ({"queries": ["a" * 101]}, 422, "InvalidRequest", "101 characters, expected at most 100"),
    ({"queries": ["\ud800"]}, 422, "InvalidRequest", "surrogate"),
    ({"queries": ["a"], "topk": 0}, 422, "InvalidRequest", "found 0, expected 1 to 40"),
    ({"queries": ["a"], "topk": -1}, 422, "InvalidRequest", "found -1, expected 1 to 40"),
    ({"queries": ["a"], "topk": 41}, 422, "InvalidRequest", "found 41, expected 1 to 40"),
    ({"queries": ["a"], "topk": 3.5}, 422, "InvalidRequest", "found float"),
    ({"queries": ["a"], "topk": 1e300}, 422, "InvalidRequest", "expected 1 to 40"),
    ({"queries": ["a"], "topk": True}, 422, "InvalidRequest", "found bool"),
    ({"queries": ["a"], "topk": "3"}, 422, "InvalidRequest", "found str"),
    ({"queries": ["a"], "return_scores": 1}, 422, "InvalidRequest", "found int"),
    ({"queries": ["a"], "top_k": 3}, 422, "InvalidRequest", "unknown field 'top_k'"),
    ([{"queries": ["a"]}], 400, "MalformedBody", "a JSON list"),
    (b"", 400, "MalformedBody", "not JSON"),
    (b"\xff\xfe", 400, "MalformedBody", "not JSON"),
    (b'{"queries": ["a"], "topk": ' + b"9" * 5000 + b"}", 400, "MalformedBody", "not JSON"),
    (b"[" * 9000, 400, "MalformedBody", "not JSON"),
    (b'{"queries": ["' + b"a" * 20000 + b'"]}', 422, "BodyTooLarge", "larger than 10000 bytes"),
]


def test_bad_requests_are_refused_by_name_and_do_no_harm(ask, world):
    async def use(client, _):
        answers = [await post(client, body) for body, *_ in BAD_REQUESTS]
        return answers, await post(client, {"queries": [world.titles[3]], "topk": 1})

    limits = {"max_body_bytes": 10_000, "max_queries": 8, "max_query_chars": 100}
    answers, good = ask(use, **limits)
    for (body, status, kind, says), (found, answer) in zip(BAD_REQUESTS, answers, strict=True):
        assert (found, answer["error"]["type"]) == (status, kind), body
        assert says in answer["error"]["message"]
        assert status != 422 or answer["error"]["field"]
    assert good == (200, {"result": [[world.rows[3]]]})


def test_fault_3_query_for_queries_is_refused_by_name(ask):
    async def use(client, _):
        bodies = {"query": "a"}, {"query": ["a"], "topk": 1}, {"queries": ["a"], "query": None}
        return [await post(client, body) for body in bodies]

    for status, answer in ask(use):
        assert status == 422 and answer["error"]["field"] == "query"
        assert "found 'query'; expected 'queries', a list" in answer["error"]["message"]


def test_every_error_type_has_its_own_place():
    """All subclasses are in protocol.py, with the status of a client's or a server's fault."""
    kinds = openapi._kinds(protocol.RequestError)
    assert {kind.__module__ for kind in kinds} == {"glimmer.retrieval.protocol"}
    assert {kind.__name__: kind.status for kind in kinds} == {
        "MalformedBody": 400,
        "Unauthorized": 401,
        "NotFound": 404,
        "MethodNotAllowed": 405,
        "BodyTooSlow": 408,
        "InvalidRequest": 422,
        "BodyTooLarge": 422,
        "InternalError": 500,
        "Overloaded": 503,
        "NotReady": 503,
        "Stopping": 503,
    }


def test_chunked_body_is_limited_and_stalled_body_ends(ask):
    async def use(client, _):
        async def endless():
            while True:
                yield b"[" * 1000

        async def stalled():
            yield b"{"
            await asyncio.Event().wait()

        statuses = []
        for body in (endless(), stalled()):
            async with client.post("/retrieve", data=body) as response:
                statuses.append((response.status, (await response.json())["error"]["type"]))
        return statuses

    found = ask(use, max_body_bytes=5000, body_timeout_s=0.2)
    assert found == [(422, "BodyTooLarge"), (408, "BodyTooSlow")]


def test_other_paths_and_methods(ask):
    async def use(client, _):
        statuses = []
        for method, path in (("GET", "/retrieve"), ("POST", "/search"), ("DELETE", "/info")):
            async with client.request(method, path) as response:
                statuses.append((response.status, (await response.json())["error"]["type"]))
        return statuses

    refused = (405, "MethodNotAllowed")
    assert ask(use) == [refused, (404, "NotFound"), refused]


def test_info_and_health(ask, world, encoder):
    async def use(client, _):
        async with client.get("/info") as info, client.get("/health") as health:
            return await info.json(), health.status, await health.json()

    info, status, health = ask(use, max_queries=5)
    assert (status, health) == (200, {"status": "ok"})
    record = json.loads((world.index / "index.json").read_text())
    assert info["model"] == encoder.identity.as_dict()
    assert info["index"]["sha256"] == record["index"]["sha256"]
    assert info["index"]["ef_search"] == 40 and info["index"]["n"] == 300
    assert info["limits"]["max_queries"] == 5 and info["limits"]["max_topk"] == 40


def test_health_is_a_known_passage_found_by_its_title(ask, world, encoder):
    """Searched for each time, of the cache or not; vectors of another model are not ready."""

    class Other:
        def __init__(self):
            self.lost = False

        def queries(self, texts):
            self.asked = list(texts)
            found = encoder.queries(texts)
            return -found if self.lost else found

    other = Other()

    async def use(client, service):
        answers = []
        for lost in (False, False, True, False):
            other.lost = lost
            async with client.get("/health") as answer:
                answers.append((answer.status, await answer.json(), list(other.asked)))
        return answers, service.batcher.counts

    answers, counts = ask(use, with_encoder=other)
    assert [status for status, *_ in answers] == [200, 200, 503, 200]
    assert answers[2][1]["error"]["type"] == "NotReady"
    # Five at first, then the one that was found; none of them from the cache.
    assert [len(asked) for *_, asked in answers] == [5, 1, 1, 1]
    assert answers[0][2] == [world.titles[row] for row in (0, 60, 120, 180, 240)]
    assert counts["cached"] == 0


def test_a_token_is_wanted_by_all_paths_but_health(ask, world):
    async def use(client, _):
        statuses = {}
        for given in (None, "Bearer right", "bearer right", "Bearer wrong", "Bearer", "Bearer é"):
            headers = {} if given is None else {"Authorization": given}
            statuses[given] = [
                (await client.request(method, path, headers=headers, json=body)).status
                for method, path, body in (
                    ("POST", "/retrieve", {"queries": ["a"]}),
                    ("GET", "/info", None),
                    ("GET", "/metrics", None),
                    ("GET", "/openapi.json", None),
                    ("GET", "/elsewhere", None),
                    ("GET", "/health", None),
                )
            ]
        async with client.get("/info") as answer:
            return statuses, dict(answer.headers), await answer.text()

    statuses, headers, text = ask(use, token="right")
    assert statuses.pop("Bearer right") == [200, 200, 200, 200, 404, 200]
    assert all(found == [401] * 5 + [200] for found in statuses.values())
    assert headers["WWW-Authenticate"] == "Bearer" and "right" not in text


def test_metrics_say_what_happened(ask, world):
    from prometheus_client.parser import text_string_to_metric_families

    async def use(client, service):
        for body in ({"queries": world.titles[:4]}, {"queries": world.titles[:6]}, {"queries": 1}):
            await post(client, body)
        await asyncio.gather(*(post(client, {"queries": ["one"]}) for _ in range(3)))
        await post(client, b"not json")
        await client.get("/no/such/path")
        async with client.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return await answer.text()

    found = {}
    for family in text_string_to_metric_families(ask(use)):
        for sample in family.samples:
            found[sample.name.removeprefix("glimmer_search_"), *sample.labels.values()] = sample
    figures = {key: sample.value for key, sample in found.items()}
    assert figures["queries_total", "searched"] == 4 + 2 + 1
    assert figures["queries_total", "cached"] + figures["queries_total", "shared"] == 4 + 2
    assert figures["errors_total", "InvalidRequest"] == 1
    assert figures["errors_total", "MalformedBody"] == figures["errors_total", "NotFound"] == 1
    assert figures["request_seconds_count", "/retrieve", "200"] == 5
    assert figures["request_seconds_count", "/retrieve", "422"] == 1
    assert figures["request_seconds_count", "other", "404"] == 1
    assert figures["request_seconds_bucket", "+Inf", "/retrieve", "200"] == 5
    assert figures["batch_queries_sum",] == 7 and figures["batch_queries_count",] >= 3
    assert figures["batch_seconds_sum",] > 0
    assert figures["queue_queries",] == 0 and figures["cache_entries",] == 7
    assert figures["in_flight",] == 1  # this very request


def test_what_comes_while_it_ends_is_refused(ask, world, encoder):
    counting = Counting(encoder)

    async def use(client, service):
        counting.go.clear()
        begun = asyncio.ensure_future(post(client, {"queries": [world.titles[2]], "topk": 1}))
        while not counting.batches:
            await asyncio.sleep(0.001)
        service.draining = True
        async with client.post("/retrieve", json={"queries": ["a"]}) as refused:
            answer = refused.status, refused.headers["Retry-After"], await refused.json()
        async with client.get("/health") as health:
            counting.go.set()
            return await begun, answer, health.status

    begun, refused, health = ask(use, with_encoder=counting)
    assert begun == (200, {"result": [[world.rows[2]]]})
    assert refused[:2] == (503, "1") and refused[2]["error"]["type"] == "Stopping"
    assert health == 503


def test_a_query_that_nobody_waits_for_is_not_searched_for(world, encoder):
    counting = Counting(encoder)

    async def main():
        settings = service_settings({"max_batch": 1, "batch_wait_ms": 0})
        service = SearchService(open_index(world.index, world.corpus), counting, settings)
        service.batcher.start()
        counting.go.clear()
        asked = [asyncio.ensure_future(service.batcher.answer([q])) for q in ("a", "b", "c", "b")]
        while not counting.batches:
            await asyncio.sleep(0.001)
        for place in (1, 2):
            asked[place].cancel()
        await asyncio.gather(*asked[1:3], return_exceptions=True)
        counting.go.set()
        await asyncio.gather(asked[0], asked[3])
        again = await service.batcher.answer(["c"])
        await service.batcher.stop()
        return again, service.batcher.counts

    again, counts = asyncio.run(main())
    assert [query for (query,) in counting.batches] == ["a", "b", "c"]
    assert counts["dropped"] == 1 and len(again) == 1


def test_a_connection_that_sends_no_whole_request_is_closed(world, encoder):
    from glimmer.retrieval.service import bind, serve

    async def main():
        settings = service_settings({"idle_timeout_s": 0.2, "drain_timeout_s": 0})
        service = SearchService(open_index(world.index, world.corpus), encoder, settings)
        bound, stop, ready = bind("127.0.0.1", 0), asyncio.Event(), asyncio.Event()
        serving = asyncio.ensure_future(serve(service, bound, ready=ready.set, stop=stop))
        await ready.wait()
        ends = []
        for begin in (b"", b"POST /retr", b"POST /retrieve HTTP/1.1\r\nHost: x\r\nX-A"):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(begin)
            ends.append(await asyncio.wait_for(reader.read(), 30))
            writer.close()
        stop.set()
        await serving
        return ends

    assert asyncio.run(main()) == [b"", b"", b""]


def test_answers_do_not_depend_on_company(ask, world):
    """Whatever order and batch: the same bytes for a query."""
    queries = [*world.titles[:40], "1984", "true", "null", '["a","b"]', "é\u0000ü"]

    async def alone(client, _):
        return [
            (await post(client, {"queries": [query], "return_scores": True}))[1]["result"][0]
            for query in queries
        ]

    async def together(client, _):
        order = random.Random(0).sample(range(len(queries)), len(queries))
        answers = await asyncio.gather(
            *(
                post(client, {"queries": [queries[i]], "topk": 1 + i % 5, "return_scores": True})
                for i in order
            )
        )
        return {i: answer["result"][0] for i, (_, answer) in zip(order, answers, strict=True)}

    single = ask(alone, cache_size=0, batch_wait_ms=0, default_topk=5)
    for i, found in ask(together, batch_wait_ms=20).items():
        assert found == single[i][: 1 + i % 5]


class Counting:
    """An encoder that counts its calls and can be held."""

    def __init__(self, encoder):
        self._encoder, self.batches = encoder, []
        self.go = threading.Event()
        self.go.set()

    def queries(self, texts):
        self.batches.append(list(texts))
        self.go.wait(30)
        if "explode" in texts:
            raise RuntimeError("out of memory")
        return self._encoder.queries(texts)


def test_concurrent_queries_share_batches_and_searches(ask, world, encoder):
    counting = Counting(encoder)
    queries = world.titles[:32] * 3

    async def use(client, service):
        counting.go.clear()
        asked = [asyncio.ensure_future(post(client, {"queries": [q]})) for q in queries]
        while service.batcher.counts["queries"] < len(queries):
            await asyncio.sleep(0)
        counting.go.set()
        first = await asyncio.gather(*asked)
        second = await post(client, {"queries": queries})
        return [answer["result"][0] for _, answer in first], second[1]["result"], service

    first, second, service = ask(use, with_encoder=counting, max_batch=16, batch_wait_ms=0)
    assert first == second
    assert sum(map(len, counting.batches)) == 32  # each text once: shared or cached otherwise
    assert max(map(len, counting.batches)) <= 16 and len(counting.batches) <= 5
    counts = service.batcher.counts
    assert counts["queries"] == 192 and counts["searched"] == 32
    assert counts["shared"] + counts["cached"] == 160


def test_cache_forgets_the_oldest(ask, world, encoder):
    counting = Counting(encoder)

    async def use(client, _):
        for title in (0, 1, 0, 2, 0, 1):
            await post(client, {"queries": [world.titles[title]]})

    ask(use, with_encoder=counting, cache_size=2)
    asked = [world.titles.index(query) for (query,) in counting.batches]
    assert asked == [0, 1, 2, 1]


def test_full_queue_is_503_and_a_failed_search_500(ask, world, encoder):
    counting = Counting(encoder)

    async def use(client, service):
        counting.go.clear()
        held = [asyncio.ensure_future(post(client, {"queries": [q]})) for q in world.titles[:4]]
        while service.batcher.counts["queries"] < 4:
            await asyncio.sleep(0)
        body = {"queries": world.titles[10:16]}
        async with client.post("/retrieve", json=body) as full:
            refused = full.status, full.headers["Retry-After"], (await full.json())["error"]
        counting.go.set()
        assert [status for status, _ in await asyncio.gather(*held)] == [200] * 4
        return refused, await post(client, {"queries": ["explode"]}), await post(client, body)

    full, failed, good = ask(use, with_encoder=counting, max_waiting=8, max_queries=8, max_batch=1)
    assert full[:2] == (503, "1") and full[2]["type"] == "Overloaded"
    assert failed[0] == 500 and failed[1]["error"]["type"] == "InternalError"
    assert "out of memory" in failed[1]["error"]["message"]
    assert good[0] == 200


def test_client_that_hangs_up_harms_no_other(ask, world, encoder):
    counting = Counting(encoder)

    async def use(client, service):
        counting.go.clear()
        body = {"queries": [world.titles[5]], "topk": 1}
        leaves, stays = (asyncio.ensure_future(post(client, body)) for _ in range(2))
        while service.batcher.counts["queries"] < 2:
            await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        counting.go.set()
        return await stays

    assert ask(use, with_encoder=counting) == (200, {"result": [[world.rows[5]]]})


def test_padding_is_an_error_not_a_passage(ask, world):
    class Short:
        passages = {4: world.rows[4]}

        def candidates(self, _):
            return np.array([[4, -1, -1]]), np.array([[0.9, -np.inf, -np.inf]])

    async def use(client, service):
        service.index = Short()
        one = await post(client, {"queries": ["a"], "topk": 1})
        return one, await post(client, {"queries": ["a"], "topk": 2})

    one, two = ask(use)
    assert one == (200, {"result": [[world.rows[4]]]})
    assert two[0] == 500 and "only 1 of 2 passages" in two[1]["error"]["message"]


def test_client_and_service_agree(ask, world):
    async def use(client, _):
        async with SearchClient(str(client.make_url("/retrieve")), topk=3) as search:
            found = await search.search(world.titles[9])
            return found, search.counts, search.latencies

    found, counts, latencies = ask(use)
    assert len(found) == 3 and found[0].id == "p9" and found[0].title == world.titles[9]
    assert found[0].contents == world.rows[9]["contents"]
    assert found[0].text == world.rows[9]["contents"].split("\n", 1)[1]
    assert found[0].score > found[1].score
    assert counts["requests"] == counts["searches"] == 1 and counts["failed"] == 0
    assert len(latencies) == 1


def test_random_bytes_and_shapes_do_no_harm(ask, world):
    """Some hundred malformed requests: each is refused, and the next good one is answered."""
    rng = random.Random(0)
    values = [None, True, -1, 10**30, 1.5, "a", [], {}, [[]], {"a": 1}, "\x00", ["a"], "\u202e"]

    def body():
        if rng.random() < 0.4:
            return rng.randbytes(rng.randrange(200))
        keys = rng.sample(["queries", "topk", "return_scores", "query", "x"], rng.randint(0, 4))
        return json.dumps({key: rng.choice(values) for key in keys})

    async def use(client, _):
        statuses = [(await post(client, body()))[0] for _ in range(400)]
        return statuses, await post(client, {"queries": [world.titles[3]], "topk": 1})

    statuses, good = ask(use)
    assert set(statuses) <= {200, 400, 422} and statuses.count(200) < 40
    assert good == (200, {"result": [[world.rows[3]]]})


def open_with(world, **settings):
    return open_service(world.index, world.corpus, service_settings(settings))


def test_fault_4_ef_search_below_k_is_refused(world):
    with pytest.raises(ConfigError, match=r"ef_search: found 2, below retrieval\.default_topk = 3"):
        open_with(world, ef_search=2)


def test_settings_that_cannot_be_served(world):
    with pytest.raises(ConfigError, match=r"retrieval\.default_topk: found 301, .* 300 passages"):
        open_with(world, default_topk=301, ef_search=400)
    with pytest.raises(ConfigError, match="bundled:absent"):
        open_with(world, model="bundled:absent")


def test_fault_5_vectors_with_another_prefix_are_refused(world, tmp_path, small):
    from glimmer.files import read_json, write_json

    from .conftest import MODEL

    record = read_json(small.index / "index.json")
    real = read_json(world.index / "index.json")["model"]
    write_json(
        small.index / "index.json",
        record | {"model": real | {"query_prefix": "query: ", "name": "e5"}},
    )
    with pytest.raises(IntegrityError, match="query_prefix '' instead of 'query: '"):
        open_with(small, model=MODEL)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"prot": 1}, r"retrieval\.prot: no such setting. Did you mean 'port'"),
        ({"port": "8000"}, r"retrieval\.port: found '8000', expected a whole number"),
        ({"port": 70000}, r"retrieval\.port: found 70000"),
        ({"threads": 0}, r"retrieval\.threads: found 0, expected at least 1"),
        ({"threads": True}, r"retrieval\.threads: found True"),
        ({"url": "localhost:8000"}, r"retrieval\.url: found 'localhost:8000'"),
        ({"max_waiting": 9, "max_queries": 10}, r"retrieval\.max_waiting: found 9, .* at least"),
        ({"require_info": "no"}, r"retrieval\.require_info: found 'no'"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(ConfigError, match=says):
        service_settings(settings)


def test_defaults_are_valid():
    assert service_settings({}) == SERVICE_DEFAULTS
