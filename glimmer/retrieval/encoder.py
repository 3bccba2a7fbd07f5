"""Texts -> token ids -> L2-normalised float32 vectors, on a CPU or a GPU.

Rows are brought together by their exact token count, so that most batches hold no padding at all:
nothing is computed for nothing, and attention needs no mask, which lets a GPU take its fastest
kernel. `glimmer.retrieval.batches` says which rows go together, and has another way for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from glimmer.errors import ConfigError, IntegrityError
from glimmer.retrieval.batches import Shapes, plan_batches, plan_shapes
from glimmer.retrieval.models import ModelIdentity, folder_sha256, locate_model, prefixes_of
from glimmer.retrieval.tokens import Tokeniser, Tokens

# Below 16 rows MKL takes another kernel on some CPUs (seen with AVX-512); 64 leaves a margin.
_LEAST_TOKENS = 64
# Tokens in a CPU's batch: 8 passages of 135 tokens went a quarter faster than 16 or more, since
# what a layer hands to the next then stays in the cache.
_CPU_TOKENS = 1024
# A CPU's queries are padded to multiples of this: a forward pass of few tokens mostly waits for the
# weights, so that fewer and larger ones are faster, and a batch of queries has few of one length.
_QUERY_ROOM = 8

DTYPES = ("float32", "float16", "bfloat16")

Vectors = Callable[[], np.ndarray]


class Encoder:
    """A loaded embedding model. `queries` and `passages` differ only in the prefix.

    On a CPU a text's vector is the same, bit for bit, whatever else is in the batch and however
    many threads there are (checked by tests/retrieval/test_embed.py). Three things change rounding
    otherwise: padding, so a batch holds passages of one token count only, and a query is padded to
    a length that follows from its own; another kernel for matrix products of few rows, so a forward
    pass has at least two texts and 64 tokens, by repetition if need be; and splitting a product
    over threads, so each thread works on batches of its own.
    On a GPU the last bits of a vector depend on the shape of its batch; with `shapes.room` the
    shape of a passage follows from the passage alone.

    Args:
        model: a model setting, see `glimmer.retrieval.models`.
        device: torch device, e.g. "cpu" or "cuda:0"; "cuda" is the first GPU.
        dtype: of weights and activations: float32, and on a GPU float16 or bfloat16 as well.
            Pooling sums and the vectors that leave are float32.
        max_length: tokens after which a text is cut; None or 0 takes the model's own limit.
        threads: batches worked on at a time on a CPU.
        shapes: of a GPU's batches.

    Attributes:
        identity: of the model.
        tokeniser: texts -> token ids.
        hardware: "cpu", or the GPU's name.
        dtype, shapes: as given.
        windows: batches in the first and in the largest window that `embed` should be given.

    Raises:
        ConfigError: a setting is wrong, or the device is absent.
        IntegrityError: the model's files are damaged.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_length: int | None = None,
        threads: int = 1,
        shapes: Shapes | None = None,
    ) -> None:
        import torch

        self._device = _device(device, dtype)
        folder = locate_model(model)
        sha256 = folder_sha256(folder)
        self.on_cpu = self._device.type == "cpu"
        torch.set_num_threads(1 if self.on_cpu else threads)
        self._pool = ThreadPoolExecutor(threads) if self.on_cpu and threads > 1 else None
        # Imported late: sentence-transformers takes seconds, a wrong setting should not.
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        try:
            self._model = SentenceTransformer(
                str(folder), device=str(self._device), local_files_only=True
            )
        except Exception as error:
            raise IntegrityError(
                f"embedding.model: {model!r} in {folder} could not be loaded "
                f"({type(error).__name__}: {error}). The copy is incomplete or damaged: fetch it "
                f"again."
            ) from error
        self._model.eval()
        if dtype != "float32":
            self._model.to(getattr(torch, dtype))
        tokenizer = self._model.tokenizer
        limit = int(self._model.max_seq_length or tokenizer.model_max_length)
        if max_length and max_length > limit:
            raise ConfigError(
                f"embedding.max_length: {max_length} is above the {limit} tokens that {model!r} "
                f"takes. Set it to at most {limit}, or 0 for the model's own limit."
            )
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"embedding.model: {model!r} has no tokenizer.json, nor a tokenizer that gives "
                f"one. Use a model with a fast tokenizer."
            )
        family, query_prefix, passage_prefix = prefixes_of(model, folder)
        self.identity = ModelIdentity(
            name=model,
            family=family,
            sha256=sha256,
            dimension=int(self._model.get_embedding_dimension()),
            max_length=max_length or limit,
            pooling=_pooling(self._model),
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
        )
        self.tokeniser = Tokeniser(
            tokenizer.backend_tokenizer.to_str(), max_length=self.identity.max_length
        )
        self._limit = limit
        self._padding_id = int(tokenizer.pad_token_id or 0)
        self._token_types = "token_type_ids" in tokenizer.model_input_names
        self.dtype = dtype
        self.shapes = shapes or Shapes()
        self._graphs: dict[tuple[int, ...], Any] = {}
        self.hardware = (
            torch.cuda.get_device_name(self._device)
            if self._device.type == "cuda"
            else self._device.type
        )
        # A GPU's windows are large, so that most batches are full; the first are small, so that it
        # has work before many passages are tokenised.
        self.windows = (8, 8) if self.on_cpu else (8, 256)

    def queries(self, texts: Sequence[str], *, batch_size: int = 64) -> np.ndarray:
        """float32 [len(texts), d], rows of length 1, of texts as queries."""
        tokens = self.tokeniser(texts, prefix=self.identity.query_prefix)
        if self.on_cpu:
            return self._on_cpu(tokens, batch_size, room=_QUERY_ROOM)()
        return self._on_device(tokens, batch_size, fill=False)()

    def passages(self, texts: Sequence[str], *, batch_size: int = 64) -> np.ndarray:
        """float32 [len(texts), d], rows of length 1, of texts as passages."""
        tokens = self.tokeniser(texts, prefix=self.identity.passage_prefix)
        return self.embed(tokens, batch_size=batch_size)()

    def embed(self, tokens: Tokens, *, batch_size: int) -> Vectors:
        """Begin with the vectors of tokenised texts.

        On a GPU this returns once all work is enqueued; what it returns waits for the result, and
        may be called in another thread.

        Returns:
            A function that gives float32 [len(tokens), d], rows of length 1.
        """
        return (self._on_cpu if self.on_cpu else self._on_device)(tokens, batch_size)

    def _on_cpu(self, tokens: Tokens, batch_size: int, *, room: int = 0) -> Vectors:
        """With `room`, each text is padded to the next multiple of it above its own length."""
        import torch

        out = np.empty((len(tokens), self.identity.dimension), dtype=np.float32)
        # Above and never equal: then every batch of padded texts has a mask, so that it does not
        # depend on the company of a text whether there is one.
        padded = tokens.lengths // room * room + room if room else tokens.lengths
        fits = padded <= self._limit if room else np.zeros(len(tokens), bool)
        jobs = []
        for masked, lengths in ((True, padded), (False, tokens.lengths)):
            chosen = np.flatnonzero(fits == masked)
            order, batches = plan_batches(
                lengths[chosen], batch_size, pad=False, max_tokens=_CPU_TOKENS
            )
            jobs += [(chosen[order[a:b]], length, masked) for a, b, length, _ in batches]

        def forward(job: tuple[np.ndarray, int, bool]) -> None:
            rows, length, masked = job
            least = max(2, -(-_LEAST_TOKENS // max(1, length)))
            repeated = np.resize(rows, max(len(rows), least))
            place = tokens.starts[repeated, None] + np.arange(length)
            features = {}
            if masked:
                mask = np.arange(length) < tokens.lengths[repeated, None]
                ids = np.where(mask, tokens.ids[np.where(mask, place, 0)], self._padding_id)
                features["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
            else:
                ids = tokens.ids[place]
            features["input_ids"] = torch.from_numpy(ids.astype(np.int64))
            with torch.inference_mode():
                out[rows] = self._forward(features)[: len(rows)].numpy()

        # `list` waits for all of them, and raises what one of them raised.
        list((self._pool.map if self._pool else map)(forward, jobs))
        return lambda: out

    def _on_device(self, tokens: Tokens, batch_size: int, *, fill: bool = True) -> Vectors:
        """As `_on_cpu`, without ever waiting for the device: token ids are sent once a window.

        `fill`: of `plan_shapes`.
        """
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        # Not cuDNN's: it plans every new shape anew, 50 ms each (H200), and most batches are one.
        attention = [
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ]
        few = self.shapes.room > 0
        # (first, last, length, whether there is a mask, rows)
        if few:
            order, shaped = plan_shapes(
                tokens.lengths, batch_size, self.shapes, limit=self._limit, fill=fill
            )
            batches = [(a, b, length, True, rows) for a, b, length, rows in shaped]
        else:
            order, plain = plan_batches(tokens.lengths, batch_size, pad=True)
            batches = [(a, b, length, padded, b - a) for a, b, length, padded in plain]
        ids, starts, lengths, order = (
            self._send(array) for array in (tokens.ids, tokens.starts, tokens.lengths, order)
        )
        longest = max((length for _, _, length, _, _ in batches), default=0)
        places = torch.arange(longest, device=self._device)
        out = torch.empty((len(tokens), self.identity.dimension), device=self._device)
        forward = self._replayed if few and self.shapes.graphs else self._forward
        with torch.inference_mode(), sdpa_kernel(attention):
            # Longest first: what is allocated for them serves the others.
            for first, last, length, masked, count in reversed(batches):
                rows, within = order[first:last], places[:length]
                if count > last - first:
                    rows = rows[torch.arange(count, device=self._device) % (last - first)]
                place = starts[rows, None] + within
                features = {}
                if masked:
                    mask = within < lengths[rows, None]
                    found = ids[torch.where(mask, place, 0)].long()
                    features["input_ids"] = torch.where(mask, found, self._padding_id)
                    features["attention_mask"] = mask.long()
                else:
                    features["input_ids"] = ids[place].long()
                out[rows[: last - first]] = forward(features)[: last - first]
        if self._device.type != "cuda":
            return lambda: out.cpu().numpy()
        host = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        host.copy_(out, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def wait() -> np.ndarray:
            copied.synchronize()
            return host.numpy()

        return wait

    def _replayed(self, features: dict[str, Any]) -> Any:
        """`_forward` by a CUDA graph of this shape; valid until the shape comes again."""
        import torch

        key = tuple(features["input_ids"].shape)
        if key not in self._graphs:
            inputs = {name: tensor.clone() for name, tensor in features.items()}
            # What allocates or plans at its first use must have done so before the capture.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._forward(dict(inputs))
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            pool = next((kept[0].pool() for kept in self._graphs.values()), None)
            with torch.cuda.graph(graph, pool=pool):
                vectors = self._forward(dict(inputs))
            self._graphs[key] = graph, inputs, vectors
        graph, inputs, vectors = self._graphs[key]
        for name, tensor in features.items():
            inputs[name].copy_(tensor)
        graph.replay()
        return vectors

    def _forward(self, features: dict[str, Any]) -> Any:
        """float32 [rows, d] of length 1, on the device. No attention_mask says: no padding."""
        import torch

        if self._token_types:
            features["token_type_ids"] = torch.zeros_like(features["input_ids"])
        vectors = self._model(features)["sentence_embedding"].float()
        return torch.nn.functional.normalize(vectors, dim=1)

    def _send(self, array: np.ndarray) -> Any:
        import torch

        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _device(device: str, dtype: str) -> Any:
    """The torch device, with its number; checked."""
    import torch

    if dtype not in DTYPES:
        raise ConfigError(f"embedding.dtype: found {dtype!r}, expected one of {', '.join(DTYPES)}.")
    chosen = torch.device(device)
    if chosen.type == "cpu" and dtype != "float32":
        raise ConfigError(
            f"embedding.dtype: found {dtype!r} with embedding.device cpu, expected float32: only "
            f"then does a vector not depend on its batch. Set it, or take a GPU."
        )
    if chosen.type == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= found:
            raise ConfigError(
                f"embedding.device: found {device!r}, but torch {torch.__version__} sees {found} "
                f"GPUs. Install torch for CUDA, ask the scheduler for a GPU, or set it to cpu."
            )
        chosen = torch.device("cuda", chosen.index or 0)
    return chosen


def _pooling(model: Any) -> str:
    for module in model:
        mode = getattr(module, "pooling_mode", None)
        if isinstance(mode, str):
            return mode
        if hasattr(module, "get_pooling_mode_str"):
            return str(module.get_pooling_mode_str())
    return "model"
