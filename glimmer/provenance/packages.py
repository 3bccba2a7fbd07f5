"""Locked versions of the packages that a stage's code imports.

They are read from the lock and not from what is installed, so that the answer does not depend on
the machine that asks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

from glimmer.errors import DataError

# Imported, but without a say in any result: progress, settings, serving, downloads (checked by
# sha256), curves for TensorBoard, and the workflow engine.
IMMATERIAL = frozenset(
    {"tqdm", "pyyaml", "jsonschema", "aiohttp", "prometheus-client", "huggingface-hub"}
    | {"tensorboard", "snakemake"}
)
# Name in an import -> name in the lock, where they differ by more than case and dashes.
_DISTRIBUTIONS = {"faiss": "faiss-cpu", "yaml": "pyyaml", "sklearn": "scikit-learn"}
# Packages that a package computes with, beside what the code itself imports.
_COMPANIONS = {
    "sentence-transformers": ("transformers", "tokenizers", "torch"),
    "transformers": ("tokenizers", "safetensors", "jinja2"),
    "torchtitan": ("torch",),
}


def locked_versions(lock: Path | str, imports: Iterable[str]) -> dict[str, str]:
    """Distribution -> version in the lock, of the imports that can change a result, sorted.

    Args:
        lock: file of `name==version` lines.
        imports: top-level names; those of the standard library and of nothing in the lock are left
            out.

    Raises:
        DataError: the lock cannot be read.
    """
    path = Path(lock)
    try:
        status = path.stat()
        versions = _read(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}), expected the lock of the environment. "
            f"Restore it."
        ) from error
    names = {_DISTRIBUTIONS.get(name, _normal(name)) for name in imports}
    for name in sorted(names):
        names.update(_COMPANIONS.get(name, ()))
    for name in sorted(names):
        names.update(_COMPANIONS.get(name, ()))
    return {name: versions[name] for name in sorted(names - IMMATERIAL) if name in versions}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.lru_cache(maxsize=16)
def _read(path: Path, mtime_ns: int, size: int) -> dict[str, str]:
    """The lock's lines; `mtime_ns` and `size` make an edited file another entry of the cache."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", path.read_text(encoding="utf-8"), re.M)
    return {_normal(name): version for name, version in found}
