"""The record that goes with a result: commit, lock, versions, seeds, file hashes, machine.

No environment variable, user, host or home folder is recorded, so that it can be published.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from glimmer.errors import DataError
from glimmer.files import sha256_file

PACKAGES = (
    "torch",
    "torchtitan",
    "transformers",
    "tokenizers",
    "renderers",
    "safetensors",
    "sentence-transformers",
    "faiss-cpu",
    "faiss-gpu-cuvs",
    "vllm",
    "torchmonarch",
    "torchstore",
    "huggingface-hub",
    "datasets",
    "numpy",
    "scipy",
    "aiohttp",
    "snakemake",
)


def collect(
    *,
    repository: Path | str,
    lock: Path | str | None = None,
    seeds: Mapping[str, int] | None = None,
    files: Mapping[str, Path | str] | None = None,
    packages: Sequence[str] = PACKAGES,
) -> dict[str, Any]:
    """Everything that tells a reader what made a result.

    Args:
        repository: folder of the project; without git or commits, commit and dirty are None.
        lock: file of locked versions.
        seeds: name -> seed.
        files: name in the record -> file whose sha256 and size are recorded.
        packages: distributions whose versions are recorded; None stands for "not installed".

    Returns:
        {"glimmer", "commit", "dirty", "changed", "lock": {"name", "sha256"} or None, "python",
        "packages", "seeds", "files": {name: {"sha256", "bytes"}}, "machine"}. `changed` counts the
        files that differ from the commit.

    Raises:
        DataError: a file to be recorded, or the lock, is not there.
    """
    from glimmer import __version__

    lock_record = None
    if lock is not None:
        lock_record = {"name": Path(lock).name, "sha256": _file(Path(lock), "lock")["sha256"]}
    return {
        "glimmer": __version__,
        **git_state(Path(repository)),
        "lock": lock_record,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "seeds": dict(sorted((seeds or {}).items())),
        "files": {name: _file(Path(p), name) for name, p in sorted((files or {}).items())},
        "machine": machine(),
    }


def git_state(repository: Path) -> dict[str, Any]:
    """{"commit": 40 hex digits or None, "dirty": bool or None, "changed": files that differ}."""
    commit = _run("git", "-C", str(repository), "rev-parse", "HEAD")
    status = _run("git", "-C", str(repository), "status", "--porcelain", "--", ".")
    if commit is None or status is None:
        return {"commit": None, "dirty": None, "changed": None}
    changed = len(status.splitlines())
    return {"commit": commit.strip(), "dirty": changed > 0, "changed": changed}


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory (bytes), system, and GPUs if any."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = None
    return {
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "cpu": _cpu_model(),
        "cores": cores,
        "memory_bytes": memory,
        "gpus": _gpus(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _file(path: Path, name: str) -> dict[str, Any]:
    try:
        return {"sha256": sha256_file(path), "bytes": path.stat().st_size}
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}), expected a file to record as {name!r}. "
            f"Run the rule that makes it again."
        ) from error


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or None


def _gpus() -> list[str]:
    """'name, memory, driver' of each GPU."""
    if shutil.which("nvidia-smi") is None:
        return []
    text = _run(
        "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
    )
    return [line.strip() for line in (text or "").splitlines() if line.strip()]


def _run(*command: str) -> str | None:
    """Output of a command; None if it is not there or fails."""
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout
