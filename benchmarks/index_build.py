"""Building the index, measured: memory of each storage on a CPU, CAGRA against HNSW on a GPU.

    python benchmarks/index_build.py --device cpu     two to five minutes on two cores
    python benchmarks/index_build.py --device cuda    about ten minutes on an H200 and 16 cores;
                                                      needs faiss-gpu-cuvs and torch for CUDA

The vectors are random ones in clusters of about 100, of length 1; queries are drawn like them.

cpu: each storage at two sizes, each in a process of its own: bytes of the file, peak memory of the
build above what the process had before it, as a ratio to the file (VmHWM), recall@10 against exact
search, queries a second and build time as ratios to fp32's at the same efSearch. Then the links of
the backend cagra, with exact neighbours in CAGRA's place, against insertion, at 10,000 x 96.

cuda: HNSW built by the CPU, CAGRA's settings through `glimmer.retrieval.links` (in one part, in
two, without the smaller scales), and faiss' own copy of a CAGRA graph (with upper levels, and
base_level_only); recall@10 against queries a second over efSearch, on all threads and with nothing
else at work, and queries a second at equal recall, by interpolation, as a ratio to the CPU-built
index. Whatever is done after --limit-seconds is left out, the least telling last. --dry runs the
same on a CPU, with exact neighbours in CAGRA's place.

Prints a table to stderr as it goes. To stdout: cpu one JSON object; cuda one JSON line a variant as
soon as it is measured, and its ratios to the CPU's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SWEEP = (16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
TARGETS = (0.95, 0.98, 0.99, 0.995, 0.999)
K = 10
STARTED = time.perf_counter()


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
    """Recall and queries a second, the best of two, for each efSearch."""
    import faiss

    rows = []
    for ef in SWEEP:
        params = faiss.SearchParametersHNSW(efSearch=ef)
        index.search(queries[:64], K, params=params)
        seconds = []
        for _ in range(2):
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

    from glimmer.retrieval.hnsw import assemble, draw_levels, new_index
    from glimmer.retrieval.links import exact_neighbours, graph_links

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
        if name == "inserted":
            index.add(vectors)
        else:
            levels = draw_levels(n, options.M)
            links = graph_links(
                torch.from_numpy(vectors), exact_neighbours, levels, degree=64, M=options.M
            )
            with tempfile.TemporaryDirectory() as folder:
                np.save(Path(folder) / "all.npy", vectors)
                assemble(index, [Path(folder) / "all.npy"], levels, links)
        rows[name] = sweep(index, queries, truth)
    ratio = {
        str(target): round(mine / theirs, 2)
        for target in TARGETS
        if (mine := at_recall(rows["linked"], target))
        and (theirs := at_recall(rows["inserted"], target))
    }
    say(f"links, {kind}: queries/s at equal recall x {ratio}")
    return {"n": n, "d": d, **rows, "queries_at_equal_recall": ratio}


def on_gpu(options: argparse.Namespace) -> None:
    # Before faiss: cuVS then finds the CUDA libraries that torch has loaded.
    import torch  # isort: skip
    import faiss

    from glimmer.retrieval import cagra
    from glimmer.retrieval.hnsw import draw_levels

    faiss.omp_set_num_threads(options.threads)
    n, d = options.sizes[0], options.dimension
    if options.dry:
        cagra._DEVICE, cagra._EXACT_BELOW = "cpu", n // 8
        cagra.cagra_graph, cagra.cagra_search = stand_in_graph, stand_in_search
    else:
        cagra.check_gpu(n, d, graph_degree=64, intermediate_degree=128)
    vectors, queries = clustered(n, d, options.queries)
    truth = exact(vectors, queries)
    name = "cpu" if options.dry else torch.cuda.get_device_name(0)
    say(f"{n} x {d} made; {name}, {options.threads} threads, faiss {faiss.__version__}")
    found: dict[str, dict[str, object]] = {}
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        shards = []
        for i, part in enumerate(np.array_split(vectors, 4)):
            shards.append(Path(folder) / f"shard-{i}.npy")
            np.save(shards[-1], part)
        if not options.dry:
            # The first use of each library is warmed up, on its own vectors.
            few = Path(folder) / "few.npy"
            np.save(few, vectors[: 1 << 16])
            for algo, parts in (("nn_descent", 1), ("ivf_pq", 1), ("nn_descent", 2)):
                try:
                    cagra.link_on_gpu(
                        [few], draw_levels(1 << 16, options.M), d, M=options.M, graph_degree=64,
                        intermediate_degree=128, build_algo=algo, parts=parts,
                    )  # fmt: skip
                except Exception as error:
                    emit({"warm_up": algo, "parts": parts, "failed": f"{error}"[:400]})
            say(f"{time.perf_counter() - STARTED:6.1f} s warm")
        for name, build in variants(vectors, shards, n, options):
            if name not in ("cpu", "linked 64/128 nn_descent") and left(options) < longest:
                emit({"variant": name, "left_out": f"{left(options):.0f} s left"})
                continue
            began = time.perf_counter()
            try:
                with gpu_memory(options.dry) as memory:
                    index, more = build()
                seconds = time.perf_counter() - began
            except Exception as error:  # one variant that fails must not lose the others
                emit({"variant": name, "failed": f"{type(error).__name__}: {error}"[:400]})
                continue
            rows = sweep(index, queries, truth)
            del index
            found[name] = {"build_seconds": round(seconds, 2), **more, **memory, "sweep": rows}
            emit({"variant": name, "n": n, "d": d, **found[name]})
            if name != "cpu":
                longest = max(longest, time.perf_counter() - began)
            for row in rows:
                say(f"    ef {row['ef']:4d}  recall {row['recall']:.4f}  {row['qps']:8.0f} q/s")
            if "cpu" in found:
                new = found if name == "cpu" else {name: found[name]}
                emit({"to_cpu": {key: ratios(row, found["cpu"]) for key, row in new.items()}})


def ratios(row: dict[str, object], cpu: dict[str, object]) -> dict[str, object]:
    """How much faster it was built, and queries a second at equal recall."""
    equal = {}
    for target in TARGETS:
        mine, theirs = at_recall(row["sweep"], target), at_recall(cpu["sweep"], target)
        if mine and theirs:
            equal[str(target)] = round(mine / theirs, 3)
    return {
        "faster": round(cpu["build_seconds"] / row["build_seconds"], 2),
        "best_recall": row["sweep"][-1]["recall"],
        "queries_at_equal_recall": equal,
    }


Build = Callable[[], tuple[object, dict[str, object]]]


def variants(
    vectors: np.ndarray, shards: list[Path], n: int, options: argparse.Namespace
) -> Iterator[tuple[str, Build]]:
    """(name, what builds it), the most telling first."""
    linked = partial(build_linked, shards, n, options)
    yield "linked 64/128 nn_descent", partial(linked, 64, 128, "nn_descent")
    yield "linked 32/64 nn_descent", partial(linked, 32, 64, "nn_descent")
    yield "cpu", partial(build_by_cpu, shards, n, options)
    copied = partial(build_copied, vectors, options)
    yield "copied 64/128 nn_descent", partial(copied, 64, 128, "nn_descent")
    yield "linked 64/128 ivf_pq", partial(linked, 64, 128, "ivf_pq")
    yield (
        "linked 64/128 nn_descent, two parts",
        partial(linked, 64, 128, "nn_descent", parts=2),
    )
    yield (
        "copied 64/128 nn_descent, base_level_only",
        partial(copied, 64, 128, "nn_descent", base_level_only=True),
    )
    yield (
        "linked 64/128 nn_descent, one scale",
        partial(linked, 64, 128, "nn_descent", scales=False),
    )
    yield "linked 48/96 nn_descent", partial(linked, 48, 96, "nn_descent")
    yield "copied 64/128 ivf_pq", partial(copied, 64, 128, "ivf_pq")


def build_linked(
    shards: list[Path],
    n: int,
    options: argparse.Namespace,
    degree: int,
    intermediate: int,
    algo: str,
    *,
    parts: int = 1,
    scales: bool = True,
) -> tuple[object, dict[str, object]]:
    """The backend cagra, as `build_index` does it; seconds of its steps."""
    from glimmer.retrieval import cagra
    from glimmer.retrieval.hnsw import assemble, draw_levels, new_index

    seconds = {"graphs": 0.0}

    def timed(name: str, real: Callable, rows: object, k: int, **more: object) -> object:
        began = time.perf_counter()
        if name == "graphs" and not scales and len(rows) < n:
            return rows.new_full((len(rows), k), -1).int()
        made = real(rows, k, **more)
        seconds["graphs"] += time.perf_counter() - began
        return made

    real = cagra.cagra_graph, cagra.cagra_search, cagra.exact_neighbours
    cagra.cagra_graph = partial(timed, "graphs", real[0])
    cagra.cagra_search = partial(timed, "trained", real[1])
    cagra.exact_neighbours = partial(timed, "graphs", real[2])
    try:
        began = time.perf_counter()
        levels = draw_levels(n, options.M)
        links = cagra.link_on_gpu(
            shards, levels, options.dimension, M=options.M, graph_degree=degree,
            intermediate_degree=intermediate, build_algo=algo, parts=parts,
        )  # fmt: skip
        seconds["links"] = time.perf_counter() - began
    finally:
        cagra.cagra_graph, cagra.cagra_search, cagra.exact_neighbours = real
    index = new_index(options.dimension, options.M, "fp32")
    began = time.perf_counter()
    assemble(index, shards, levels, links)
    seconds["assembled"] = time.perf_counter() - began
    told = {key: round(value, 2) for key, value in seconds.items()}
    return index, {"seconds": told, "links": round(float((links[0] >= 0).sum(1).mean()), 1)}


def build_copied(
    vectors: np.ndarray,
    options: argparse.Namespace,
    degree: int,
    intermediate: int,
    algo: str,
    *,
    base_level_only: bool = False,
) -> tuple[object, dict[str, object]]:
    """faiss' own way: CAGRA's graph as the lowest level of an IndexHNSWCagra."""
    import faiss

    from glimmer.retrieval.cagra import configured, resources

    config = configured(degree, intermediate, algo)
    gpu = faiss.GpuIndexCagra(resources(), options.dimension, faiss.METRIC_INNER_PRODUCT, config)
    began = time.perf_counter()
    gpu.train(vectors)
    seconds = {"graphs": round(time.perf_counter() - began, 2)}
    copied = faiss.IndexHNSWCagra()
    copied.base_level_only = base_level_only
    copied.hnsw.efConstruction = options.ef_construction
    gpu.copyTo(copied)
    return copied, {"seconds": seconds}


def build_by_cpu(
    shards: list[Path], n: int, options: argparse.Namespace
) -> tuple[object, dict[str, object]]:
    from glimmer.retrieval.hnsw import fill, new_index

    done = 0

    def progress(rows: int) -> None:
        nonlocal done
        done += rows
        if left(options) < 0:
            raise TimeoutError(f"{done} of {n} vectors were inserted when the time was over")

    index = new_index(options.dimension, options.M, "fp32")
    index.hnsw.efConstruction = options.ef_construction
    fill(index, shards, n, progress=progress)
    return index, {}


def stand_in_graph(vectors: object, k: int, **_: object) -> object:
    from glimmer.retrieval.links import exact_neighbours

    return exact_neighbours(vectors, k)


def stand_in_search(part: object, k: int, **_: object) -> Callable:
    def search(queries: object, wanted: int) -> tuple[object, object]:
        scores, rows = (queries.float() @ part.float().T).topk(wanted, dim=1)
        return rows, scores

    return search


@contextmanager
def gpu_memory(dry: bool) -> Iterator[dict[str, float]]:
    """Peak of the GPU's memory above what was taken before, in GB, looked at 50 times a second."""
    found: dict[str, float] = {}
    if dry:
        yield found
        return
    import torch

    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    least, over = before, threading.Event()

    def watch() -> None:
        nonlocal least
        while not over.wait(0.02):
            least = min(least, torch.cuda.mem_get_info()[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()
        found["gpu_gb"] = round((before - least) / 1e9, 2)


def left(options: argparse.Namespace) -> float:
    return options.limit_seconds - (time.perf_counter() - STARTED)


def emit(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)
    short = {key: value for key, value in line.items() if key != "sweep"}
    say(f"{time.perf_counter() - STARTED:6.1f} s", json.dumps(short))


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
    parser.add_argument("--limit-seconds", type=float, default=600, help="of cuda, in all")
    parser.add_argument("--dry", action="store_true", help="cuda's part, on a CPU")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--storage", default="fp32", help=argparse.SUPPRESS)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    if options.dry:
        options.sizes, options.dimension = options.sizes or [4000], options.dimension or 32
    options.sizes = options.sizes or ([500_000] if gpu else [50_000, 150_000])
    options.dimension = options.dimension or (768 if gpu else 384)
    options.ef_construction = options.ef_construction or (200 if gpu else 40)
    if options.one:
        build_one(options)
        return
    if gpu or options.dry:
        on_gpu(options)
    else:
        print(json.dumps(on_cpu(options), indent=2))


if __name__ == "__main__":
    main()
