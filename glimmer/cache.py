"""A cache that run folders share: what a stage made once for equal inputs is copied, not remade.

An entry is a folder `<key>/` with the stage's files and `entry.json` (stage, sha256 and size of
each file). The key is a hash of everything that the result depends on: the stage's parameters,
which hold settings, code and locked packages, and the content of its inputs. Entries are made under
another name and renamed, so that concurrent runs see a whole entry or none; each copy is checked by
sha256, and an entry that does not fit is dropped. The least recently used ones go when the cache
exceeds its size.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.errors import GlimmerError
from glimmer.files import read_json, sha256_file, sha256_json, write_json
from glimmer.logs import get_logger

logger = get_logger(__name__)

_ENTRY = "entry.json"
_GB = 10**9


def cached(
    settings: Mapping[str, Any],
    make: Callable[[], Any],
    *,
    stage: str,
    params: Mapping[str, Any],
    inputs: Sequence[Path | str] = (),
    out: Path | str,
    beside: Callable[[], Sequence[str]] = tuple,
) -> bool:
    """Have a stage's files, copied from the cache or made by `make`.

    A cache that cannot be read or written is passed over with a warning: it never stops a run.

    Args:
        settings: config section `cache`: `folder`, null for no cache, and `max_gb`.
        make: makes the files; called if the cache has none.
        stage: name of the rule.
        params: everything but the inputs that the result depends on, as JSON values.
        inputs: files whose content it depends on; of a large one the record that holds its sha256.
        out: the file that is written last.
        beside: names of the other files, in the folder of `out`; asked once they are made.

    Returns:
        Whether the files came from the cache.

    Raises:
        Whatever `make` raises; then nothing is kept.
    """
    if settings["folder"] is None:
        make()
        return False
    cache, out = Path(settings["folder"]), Path(out)
    digests = [sha256_file(path) for path in inputs]
    key = sha256_json({"stage": stage, "params": dict(params), "inputs": digests})[:32]
    try:
        if _fetch(cache / key, out.parent, out.name):
            logger.info("%s: copied from the cache %s (%s)", stage, cache, key)
            return True
    except OSError as error:
        logger.warning("%s: the cache %s cannot be read (%s)", stage, cache, error)
    make()
    try:
        names = [*beside(), out.name]
        _store(cache, key, stage, out.parent, names, limit=settings["max_gb"] * _GB)
    except OSError as error:
        logger.warning("%s: not kept in the cache %s (%s)", stage, cache, error)
    return False


def _fetch(entry: Path, folder: Path, record: str) -> bool:
    """Copy an entry's files to `folder`, `record` last; False if there is no whole entry."""
    try:
        files = read_json(entry / _ENTRY)["files"]
    except FileNotFoundError:
        return False
    except (GlimmerError, KeyError, TypeError):
        files = {}
    folder.mkdir(parents=True, exist_ok=True)
    copies: dict[str, Path] = {}
    try:
        for name, expected in files.items():
            copies[name] = folder / f".{name}.{uuid.uuid4().hex}.part"
            _copy(entry / name, copies[name])
            if sha256_file(copies[name]) != expected["sha256"]:
                raise FileNotFoundError(name)
        if record not in copies:
            raise FileNotFoundError(record)
        for name in sorted(copies, key=lambda name: name == record):
            os.replace(copies[name], folder / name)
    except FileNotFoundError as error:
        # Damaged, or evicted by another run at this moment.
        logger.warning("the cache's entry %s does not fit (%s); made anew", entry, error)
        _remove(entry)
        return False
    finally:
        for copy in copies.values():
            copy.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.utime(entry / _ENTRY)  # last used now
    return True


def _store(
    cache: Path, key: str, stage: str, folder: Path, names: Sequence[str], *, limit: float
) -> None:
    size = sum((folder / name).stat().st_size for name in names)
    if size > limit:
        logger.info("%s: %.1f GB are more than cache.max_gb; not kept", stage, size / _GB)
        return
    making = cache / f".{key}.{uuid.uuid4().hex}"
    making.mkdir(parents=True)
    try:
        files = {}
        for name in names:
            _copy(folder / name, making / name)
            path = making / name
            files[name] = {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        write_json(making / _ENTRY, {"stage": stage, "files": files})
        with contextlib.suppress(OSError):  # another run was faster: its entry is as good
            os.rename(making, cache / key)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    _evict(cache, limit, keep=key)


def _evict(cache: Path, limit: float, *, keep: str) -> None:
    """Remove the least recently used entries until the rest fit into `limit` bytes."""
    entries = []
    for path in cache.glob(f"*/{_ENTRY}"):
        with contextlib.suppress(OSError, GlimmerError, KeyError, TypeError):
            size = sum(file["bytes"] for file in read_json(path)["files"].values())
            entries.append((path.stat().st_mtime_ns, path.parent, size))
    total = sum(size for _, _, size in entries)
    for _, entry, size in sorted(entries):
        if total <= limit:
            break
        if entry.name != keep and not entry.name.startswith("."):
            logger.info("cache: %s goes, %.2f GB used last of all", entry, size / _GB)
            _remove(entry)
            total -= size


def _remove(entry: Path) -> None:
    """Take an entry away in one step, then delete it."""
    gone = entry.with_name(f".{entry.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        os.rename(entry, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    """Copy bytes; on file systems that can, without using space (copy_file_range)."""
    with open(source, "rb") as old, open(target, "wb") as new:
        left = os.fstat(old.fileno()).st_size
        try:
            while left and (done := os.copy_file_range(old.fileno(), new.fileno(), left)):
                left -= done
        except OSError:  # another file system, or an old kernel
            old.seek(0)
            new.seek(0)
            new.truncate()
            shutil.copyfileobj(old, new, 1 << 20)
