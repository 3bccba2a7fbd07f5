"""Texts -> token ids -> L2-normalised float32 vectors, on a CPU or a GPU.

Rows are brought together by their exact token count, so that most batches hold no padding at all:
nothing is computed for nothing, and attention needs no mask, which lets a GPU take its fastest
kernel. `plan_batches` says which rows go together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from glimmer.errors import ConfigError, IntegrityError
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

Batch = tuple[int, int, int, bool]
Vectors = Callable[[], np.ndarray]


class Encoder:
    """A loaded embedding model. `queries` and `passages` differ only in the prefix.

    On a CPU a text's vector is the same, bit for bit, whatever else is in the batch and however
    many threads there are (checked by tests/retrieval/test_embed.py). Three things change rounding
    otherwise: padding, so a batch holds passages of one token count only, and a query is padded to
    a length that follows from its own; another kernel for matrix products of few rows, so a forward
    pass has at least 64 tokens, by repetition if need be; and splitting a product over threads, so
    each thread works on batches of its own.
    On a GPU the last bits of a vector depend on the shape of its batch.

    Args:
        model: a model setting, see `glimmer.retrieval.models`.
        device: torch device, e.g. "cpu" or "cuda:0"; "cuda" is the first GPU.
        dtype: of weights and activations: float32, and on a GPU float16 or bfloat16 as well.
            Pooling sums and the vectors that leave are float32.
        max_length: tokens after which a text is cut; None or 0 takes the model's own limit.
        threads: batches worked on at a time on a CPU.

    Attributes:
        identity: of the model.
        tokeniser: texts -> token ids.
        hardware: "cpu", or the GPU's name.
        dtype: as given.
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
                f"takes. Set it to at most {limit}."
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
        return self.embed(tokens, batch_size=batch_size)()

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
            least = -(-_LEAST_TOKENS // max(1, length))
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

    def _on_device(self, tokens: Tokens, batch_size: int) -> Vectors:
        """As `_on_cpu`, without ever waiting for the device: token ids are sent once a window."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        # Not cuDNN's: it plans every new shape anew, 50 ms each (H200), and most batches are one.
        attention = [
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ]
        order, batches = plan_batches(tokens.lengths, batch_size, pad=True)
        ids, starts, lengths, order = (
            self._send(array) for array in (tokens.ids, tokens.starts, tokens.lengths, order)
        )
        places = torch.arange(int(tokens.lengths.max(initial=0)), device=self._device)
        out = torch.empty((len(tokens), self.identity.dimension), device=self._device)
        with torch.inference_mode(), sdpa_kernel(attention):
            # Longest first: what is allocated for them serves the others.
            for first, last, length, padded in reversed(batches):
                rows, within = order[first:last], places[:length]
                place = starts[rows, None] + within
                features = {}
                if padded:
                    mask = within < lengths[rows, None]
                    found = ids[torch.where(mask, place, 0)].long()
                    features["input_ids"] = torch.where(mask, found, self._padding_id)
                    features["attention_mask"] = mask.long()
                else:
                    features["input_ids"] = ids[place].long()
                out[rows] = self._forward(features)
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


def plan_batches(
    lengths: np.ndarray, batch_size: int, *, pad: bool, max_tokens: int | None = None
) -> tuple[np.ndarray, list[Batch]]:
    """Which texts go through the model together.

    Texts of one length make up batches. With `pad`, what would be a batch of less than a quarter
    of `batch_size` is set aside, and these texts, sorted by length, are padded to the longest of
    their batch: a small batch takes a GPU as long as a large one.

    Args:
        lengths: int [n], tokens of each text.
        batch_size: texts in a batch, at most.
        pad: whether a batch may hold several lengths.
        max_tokens: tokens in a batch of texts of one length, unless a single text has more.

    Returns:
        order: int64 [n], the texts' numbers; batches: (first, last, length, padded), which says
        that order[first:last] are to be padded to `length` tokens, if `padded`.
    """
    by_length = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[by_length])) + 1
    kept: list[np.ndarray] = []
    aside: list[np.ndarray] = []
    for rows in np.split(by_length, edges) if len(lengths) else []:
        size = batch_size
        if max_tokens is not None:
            size = max(1, min(size, max_tokens // max(1, int(lengths[rows[0]]))))
        # With `pad` full ones and a rest, which goes to the others'; else equal ones: a single text
        # left over would cost half as much again as one in company.
        parts = -(-len(rows) // size)
        even = np.arange(1, parts) * len(rows) // parts
        cuts = np.arange(size, len(rows), size) if pad else even
        for batch in np.split(rows, cuts):
            (aside if pad and len(batch) < size / 4 else kept).append(batch)
    rest = np.concatenate(aside) if aside else by_length[:0]
    kept += [rest[first : first + batch_size] for first in range(0, len(rest), batch_size)]
    batches: list[Batch] = []
    first = 0
    for batch in kept:
        shortest, longest = lengths[batch[0]], lengths[batch[-1]]
        batches.append((first, first + len(batch), int(longest), bool(shortest != longest)))
        first += len(batch)
    return (np.concatenate(kept) if kept else by_length), batches


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
