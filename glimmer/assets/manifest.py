"""manifest.json: which files an asset folder holds, with size and sha256; written last.

    {"format": 1, "kind": "corpus", "source": "bundled:toy_world", "revision": null,
     "files": {"corpus.jsonl": {"sha256": "…", "bytes": 123, "source_file": "corpus.jsonl"}}}

A folder without manifest is not whole. It holds no time and no path of this machine, so that equal
assets have equal manifests. A folder that is copied from may carry one too (`files` is enough).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from glimmer.errors import ConfigError, DataError, IntegrityError
from glimmer.files import read_json, sha256_file, write_json

MANIFEST = "manifest.json"
FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


def write_manifest(
    folder: Path | str,
    *,
    kind: str,
    source: str,
    revision: str | None = None,
    source_files: Mapping[str, str] | None = None,
    names: list[str] | None = None,
) -> dict[str, Any]:
    """Hash the files of a folder and write its manifest.json, the mark that the folder is whole.

    Args:
        folder: holds the files.
        kind: what they are: checkpoint, corpus, questions.
        source: where they come from, as the config says it or as the making rule is called.
        revision: full commit of a hub source.
        source_files: name in the folder -> name at the source, where the two differ.
        names: which files count; None: every file of the folder, hidden ones apart.

    Returns:
        The manifest.
    """
    folder = Path(folder)
    if names is None:
        found = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
        relative = (path.relative_to(folder) for path in found)
        names = [p.as_posix() for p in relative if not any(s.startswith(".") for s in p.parts)]
    files = {}
    for name in sorted(names):
        path = folder / name
        files[name] = {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        if source_files is not None:
            files[name]["source_file"] = source_files.get(name, name)
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "source": source,
        "revision": revision,
        "files": files,
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_manifest(folder: Path | str) -> dict[str, Any]:
    """The manifest of a folder, its form checked.

    Raises:
        IntegrityError: there is none, so the folder is not whole.
        DataError: it is not JSON or not of the documented form.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = read_json(path)
    except FileNotFoundError as error:
        raise IntegrityError(
            f"{path}: found no manifest, expected one: it is written last, so the folder is not "
            f"whole. Run the rule that makes {folder} again."
        ) from error
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise DataError(
            f"{path}: expected an object with 'files', found {str(manifest)[:60]!r}. "
            f"Delete it and run again."
        )
    for name, entry in files.items():
        check_name(name, str(path))
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("bytes"), int)
            or not isinstance(entry.get("sha256"), str)
            or not _SHA256.fullmatch(entry["sha256"])
        ):
            raise DataError(
                f"{path}: found {entry!r} for {name!r}, expected "
                f'{{"sha256": 64 hex digits, "bytes": size}}. Delete it and run again.'
            )
    return manifest


def verify_manifest(folder: Path | str) -> dict[str, Any]:
    """Hash the files of a folder again and compare them with its manifest.

    Returns:
        The manifest.

    Raises:
        IntegrityError: no manifest, or a file is missing, of another size or of another sha256;
            the message names the file, what was found and what was expected.
        DataError: the manifest is not of the documented form.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for name, entry in manifest["files"].items():
        way_out = f"Delete {folder / MANIFEST} and run again: the folder is made anew."
        path = folder / name
        if not path.is_file():
            raise IntegrityError(
                f"{path}: found no such file, expected {entry['bytes']} bytes as {MANIFEST} says. "
                f"{way_out}"
            )
        check_file(path, entry["sha256"], entry["bytes"], label=str(path), way_out=way_out)
    return manifest


def verified_folder(manifest: Path | str) -> Path:
    """The folder of a manifest.json, once all of its files have been hashed and found right.

    Raises:
        IntegrityError, DataError: as `verify_manifest`.
    """
    folder = Path(manifest).parent
    verify_manifest(folder)
    return folder


def manifest_names(folder: Path | str) -> list[str]:
    """Names of a whole folder's files, the manifest apart."""
    return list(read_manifest(folder)["files"])


def check_file(
    path: Path, sha256: str, size: int | None, *, label: str, way_out: str, found: str | None = None
) -> None:
    """Compare one file with what was promised.

    Args:
        path: the file.
        sha256: expected hex digest.
        size: expected bytes; None if unknown.
        label: how the message names the file.
        way_out: last sentence of the message.
        found: digest of the file, if the caller has it already.

    Raises:
        IntegrityError: size or sha256 differ.
    """
    actual = path.stat().st_size
    if size is not None and actual != size:
        raise IntegrityError(
            f"{label}: found {actual} bytes, expected {size}: the file is cut or another one. "
            f"{way_out}"
        )
    digest = found or sha256_file(path)
    if digest != sha256:
        raise IntegrityError(f"{label}: found sha256 {digest}, expected {sha256}. {way_out}")


def check_name(name: str, where: str) -> str:
    """A relative file name that stays inside its folder.

    Raises:
        ConfigError: it is absolute, empty or climbs out.
    """
    path = PurePosixPath(name)
    if (
        not isinstance(name, str)
        or not name
        or path.is_absolute()
        or ".." in path.parts
        or "\0" in name
        or "\\" in name
        or str(path) != name
    ):
        raise ConfigError(
            f"{where}: found the file name {name!r}, expected one inside the folder, "
            f"such as data/train.jsonl. Correct the name."
        )
    return name


def check_pins(sha256: Mapping[str, str] | None, names: list[str], setting: str) -> dict[str, str]:
    """Pinned digests by source file name.

    Raises:
        ConfigError: a digest is not 64 hex digits, or pins a file that is not fetched.
    """
    pins = dict(sha256 or {})
    for name, digest in pins.items():
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest.lower()):
            raise ConfigError(
                f"{setting}.sha256.{name}: found {digest!r}, expected 64 hex digits. "
                f"Take the output of sha256sum."
            )
        if name not in names:
            raise ConfigError(
                f"{setting}.sha256.{name}: found a sha256 for a file that is not fetched, expected "
                f"one of {', '.join(sorted(names))}. Correct the name or remove the line."
            )
        pins[name] = digest.lower()
    return pins
