"""Building the index, measured: memory of each storage on a CPU, CAGRA against HNSW on a GPU.

    python benchmarks/index_build.py --device cpu     about five minutes on two cores
    python benchmarks/index_build.py --device cuda    about five minutes on an H200 and 16 cores;
                                                      needs faiss-gpu-cuvs and torch for CUDA

The vectors are random ones in clusters of about 100, of length 1; queries are drawn like them.

cpu: each storage at two sizes, each in a process of its own: bytes of the file, peak memory of the
build above what the process had before it, as a ratio to the file (VmHWM), recall@10 against exact
search, queries a second and build time as ratios to fp32's at the same efSearch. Then the links of
the backend cagra, with exact neighbours in CAGRA's place, against insertion, at 10,000 x 96.

cuda: CAGRA's settings through `glimmer.retrieval.links`, faiss' own copy of a CAGRA graph
(base_level_only), and HNSW built by the CPU; recall@10 against queries a second over efSearch, and
queries a second at equal recall, by interpolation, as a ratio to the CPU-built index.

Prints a table to stderr as it goes and one JSON object to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SWEEP = (16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
TARGETS = (0.95, 0.98, 0.99, 0.995, 0.999)
K = 10
CAGRA = [  # graph degree, intermediate degree, build algorithm
    (64, 128, "nn_descent"),
    (32, 64, "nn_descent"),
    (32, 128, "nn_descent"),
    (64, 128, "ivf_pq"),
]


def clustered(n: int, d: int, queries: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Float32 vectors [n, d] and queries [queries, d], all of length 1."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, n // 100), d), np.float32)

    def draw(count: int) -> np.ndarray:
        out = np.empty((count, d), np.float32)
        for first in range(0, count, 50_000):
            part = out[first : first + 50_000]
            rng.standard_normal(dtype=np.float32, out=part)
            part *= 0.8
            part += centres[rng.integers(0, len(centres), len(part))]
            part /= np.linalg.norm(part, axis=1, keepdims=True)
        return out

    return draw(n), draw(queries)


def exact(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    import faiss

    best = faiss.knn(queries, vectors, K, metric=faiss.METRIC_INNER_PRODUCT)
    return best[1]


def recall_of(found: np.ndarray, truth: np.ndarray) -> float:
    pairs = zip(found.tolist(), truth.tolist(), strict=True)
    return float(np.mean([len(set(a) & set(b)) / K for a, b in pairs]))


def sweep(index: object, queries: np.ndarray, truth: np.ndarray) -> list[dict[str, float]]:
    """Recall and queries a second, the best of three, for each efSearch."""
    import faiss

    rows = []
    for ef in SWEEP:
        params = faiss.SearchParametersHNSW(efSearch=ef)
        index.search(queries[:64], K, params=params)
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            found = index.search(queries, K, params=params)[1]
            seconds.append(time.perf_counter() - began)
        rows.append(
            {"ef": ef, "recall": recall_of(found, truth), "qps": len(queries) / min(seconds)}
        )
    return rows


def at_recall(rows: list[dict[str, float]], target: float) -> float | None:
    """Queries a second at a recall: log-linear between the two efSearch around it."""
    for low, high in pairwise(rows):
        if low["recall"] < target <= high["recall"]:
            share = (target - low["recall"]) / (high["recall"] - low["recall"])
            return float(np.exp((1 - share) * np.log(low["qps"]) + share * np.log(high["qps"])))
    return rows[0]["qps"] if rows[0]["recall"] >= target else None


def hwm() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM")


def build_one(options: argparse.Namespace) -> None:
    """In a process of its own: build, write, measure; one JSON line."""
    import faiss

    from glimmer.retrieval.build import write_faiss
    from glimmer.retrieval.hnsw import fill, new_index

    faiss.omp_set_num_threads(options.threads)
    folder = Path(options.folder)
    shards = sorted(folder.glob("shard-*.npy"))
    n, d = sum(len(np.load(s, mmap_mode="r")) for s in shards), options.dimension
    # What libraries allocate at their first use is not the index'.
    tiny = np.eye(d, dtype=np.float32)
    faiss.IndexHNSWFlat(d, 4).add(tiny)
    Path("/proc/self/clear_refs").write_text("5")
    before = hwm()
    began = time.perf_counter()
    index = new_index(d, options.M, options.storage)
    index.hnsw.efConstruction = options.ef_construction
    fill(index, shards, n)
    out = folder / f"{options.storage}.faiss"
    write_faiss(index, out)
    seconds = time.perf_counter() - began
    print(
        json.dumps({"bytes": out.stat().st_size, "peak": hwm() - before, "build_seconds": seconds})
    )


def on_cpu(options: argparse.Namespace) -> dict[str, object]:
    import faiss

    faiss.omp_set_num_threads(options.threads)
    table = []
    for n in options.sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            vectors, queries = clustered(n, options.dimension, options.queries)
            truth = exact(vectors, queries)
            for i, part in enumerate(np.array_split(vectors, 4)):
                np.save(folder / f"shard-{i}.npy", part)
            del vectors
            rows = []
            for storage in ("fp32", "fp16", "sq8"):
                command = [sys.executable, __file__, "--one", "--folder", name]
                command += ["--storage", storage, "--threads", str(options.threads)]
                command += ["--dimension", str(options.dimension), "--M", str(options.M)]
                command += ["--ef-construction", str(options.ef_construction)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = {"n": n, "storage": storage, **json.loads(done.stdout)}
                path = folder / f"{storage}.faiss"
                index = faiss.read_index(os.fspath(path), faiss.IO_FLAG_MMAP_IFC)
                found = next(r for r in sweep(index, queries, truth) if r["ef"] == options.ef)
                row |= {"peak_ratio": row["peak"] / row["bytes"], "recall": found["recall"]}
                rows.append(row | {"qps": found["qps"]})
                del index
                path.unlink()
            for row in rows:
                row["qps_ratio"] = row["qps"] / rows[0]["qps"]
                row["build_ratio"] = row["build_seconds"] / rows[0]["build_seconds"]
                say(
                    f"{n:8d} {row['storage']:5s} {row['bytes'] / 1e6:8.1f} MB  peak/file "
                    f"{row['peak_ratio']:.3f}  recall@10 {row['recall']:.4f}  queries/s x "
                    f"{row['qps_ratio']:.2f}  build time x {row['build_ratio']:.2f}"
                )
            table += rows
    return {
        "device": "cpu",
        "ef_search": options.ef,
        "storages": table,
        "links": {kind: linked(kind, options) for kind in ("clusters", "no clusters")},
    }


def linked(kind: str, options: argparse.Namespace) -> dict[str, object]:
    """The backend cagra's links, with exact neighbours where CAGRA would be asked, against
    insertion."""
    import torch

    from glimmer.retrieval.hnsw import new_index, set_ground_links
    from glimmer.retrieval.links import exact_neighbours, ground_links

    n, d = 10_000, 96
    if kind == "clusters":
        vectors, queries = clustered(n, d, options.queries)
    else:
        # 24 directions and noise: neighbours in every direction, and no islands.
        rng = np.random.default_rng(0)
        inner = rng.standard_normal((n + options.queries, 24), np.float32)
        whole = inner @ rng.standard_normal((24, d), np.float32)
        whole += 0.5 * rng.standard_normal(whole.shape, np.float32)
        whole /= np.linalg.norm(whole, axis=1, keepdims=True)
        vectors, queries = whole[:n], whole[n:]
    truth = exact(vectors, queries)
    rows = {}
    for name in ("inserted", "linked"):
        index = new_index(d, options.M, "fp32")
        index.hnsw.efConstruction = 200
        index.init_level0 = name == "inserted"
        index.add(vectors)
        if name == "linked":
            links = ground_links(
                torch.from_numpy(vectors), exact_neighbours, degree=64, width=2 * options.M
            )
            set_ground_links(index, links)
        rows[name] = sweep(index, queries, truth)
    ratio = {
        str(target): round(mine / theirs, 2)
        for target in TARGETS
        if (mine := at_recall(rows["linked"], target))
        and (theirs := at_recall(rows["inserted"], target))
    }
    say(f"links, {kind}: queries/s at equal recall x {ratio}")
    return {"n": n, "d": d, **rows, "queries_at_equal_recall": ratio}


def on_gpu(options: argparse.Namespace) -> dict[str, object]:
    import faiss
    import torch

    from glimmer.retrieval.cagra import (
        cagra_graph,
        check_gpu,
        configured,
        link_on_gpu,
        load,
        resources,
    )
    from glimmer.retrieval.hnsw import fill, new_index, set_ground_links

    faiss.omp_set_num_threads(options.threads)
    n, d = options.sizes[0], options.dimension
    check_gpu(n, d, graph_degree=64, intermediate_degree=128)
    vectors, queries = clustered(n, d, options.queries)
    truth = exact(vectors, queries)
    say(f"{n} x {d} made; {torch.cuda.get_device_name(0)}, {options.threads} threads")
    found: dict[str, dict[str, object]] = {}

    def record(name: str, index: object, seconds: float, **more: float) -> None:
        rows = sweep(index, queries, truth)
        found[name] = {"build_seconds": seconds, **more, "sweep": rows}
        say(f"{name}: built in {seconds:.1f} s {more or ''}")
        for row in rows:
            say(f"    efSearch {row['ef']:4d}  recall {row['recall']:.4f}  {row['qps']:8.0f} q/s")

    with tempfile.TemporaryDirectory() as name:
        shards = []
        for i, part in enumerate(np.array_split(vectors, 4)):
            shards.append(Path(name) / f"shard-{i}.npy")
            np.save(shards[-1], part)
        # The first use of each library is warmed up on a twentieth.
        warm = load([], 1 << 16, d, device="cuda")
        warm[:, :d] = torch.from_numpy(vectors[: 1 << 16]).half()
        cagra_graph(warm, 32, intermediate=64, build_algo="nn_descent")
        del warm
        for degree, intermediate, algo in CAGRA:
            try:
                torch.cuda.reset_peak_memory_stats()
                began = time.perf_counter()
                index = new_index(d, options.M, "fp32")
                index.hnsw.efConstruction = options.ef_construction
                index.init_level0 = False
                fill(index, shards, n)
                filled = time.perf_counter() - began
                links = link_on_gpu(
                    index, shards, n, graph_degree=degree,
                    intermediate_degree=intermediate, build_algo=algo,
                )  # fmt: skip
                set_ground_links(index, links)
                seconds = time.perf_counter() - began
                record(
                    f"cagra {degree}/{intermediate} {algo}, linked", index, seconds,
                    upper_levels=round(filled, 2), links=float((links >= 0).sum(1).mean()),
                    torch_gb=torch.cuda.max_memory_allocated() / 1e9,
                )  # fmt: skip
                del index
            except Exception as error:  # one setting that fails must not lose the others
                say(f"cagra {degree}/{intermediate} {algo} failed: {error}")
        try:
            began = time.perf_counter()
            gpu = faiss.GpuIndexCagra(
                resources(), d, faiss.METRIC_INNER_PRODUCT, configured(64, 128, "nn_descent")
            )
            gpu.train(vectors)
            copied = faiss.IndexHNSWCagra()
            copied.base_level_only = True
            gpu.copyTo(copied)
            record("cagra 64/128 nn_descent, copied", copied, time.perf_counter() - began)
            del gpu, copied
        except Exception as error:
            say(f"faiss' own copy failed: {error}")
        began = time.perf_counter()
        index = new_index(d, options.M, "fp32")
        index.hnsw.efConstruction = options.ef_construction
        fill(index, shards, n)
        record("cpu", index, time.perf_counter() - began)
    cpu = found["cpu"]
    for name, row in found.items():
        row["faster"] = cpu["build_seconds"] / row["build_seconds"]
        row["queries_at_equal_recall"] = {}
        for target in TARGETS:
            mine, theirs = at_recall(row["sweep"], target), at_recall(cpu["sweep"], target)
            if mine and theirs:
                row["queries_at_equal_recall"][str(target)] = round(mine / theirs, 3)
        say(f"{name:36s} x {row['faster']:6.1f} faster; {row['queries_at_equal_recall']}")
    return {"device": torch.cuda.get_device_name(0), "n": n, "d": d, "built": found}


def say(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cuda", "cpu"])
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--M", type=int, default=32)
    parser.add_argument("--ef-construction", type=int)
    parser.add_argument("--ef", type=int, default=64, help="efSearch of the CPU's table")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--storage", default="fp32", help=argparse.SUPPRESS)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    options.sizes = options.sizes or ([500_000] if gpu else [50_000, 150_000])
    options.dimension = options.dimension or (768 if gpu else 384)
    options.ef_construction = options.ef_construction or (200 if gpu else 40)
    if options.one:
        build_one(options)
        return
    print(json.dumps(on_gpu(options) if gpu else on_cpu(options), indent=2))


if __name__ == "__main__":
    main()
