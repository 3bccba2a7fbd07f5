"""Where an asset comes from: `bundled:<name>`, `hub:<owner>/<repo>` or a local folder; a corpus
also from `wordnet:<folder>` (`glimmer.assets.wordnet`)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glimmer.assets.manifest import MANIFEST, check_file, check_name, read_manifest
from glimmer.assets.wordnet import DATA_FILES
from glimmer.errors import ConfigError, DataError, IntegrityError
from glimmer.files import atomic_path, disk_errors, sha256_file

RESOURCES = Path(__file__).resolve().parents[2] / "resources"
_HASHED_AT_START = 64 << 20
_FORMS = "bundled:<name>, hub:<owner>/<repo> or a folder"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed `source` setting.

    Attributes:
        text: the setting as written.
        kind: bundled, folder, hub or wordnet.
        folder: where the files lie; None for a hub.
        repo: owner/name; None unless a hub.
        revision: full commit; None unless a hub.
    """

    text: str
    kind: Literal["bundled", "folder", "hub", "wordnet"]
    folder: Path | None = None
    repo: str | None = None
    revision: str | None = None


def parse_source(
    source: str, revision: str | None, setting: str, *, resources: Path | None = None
) -> Source:
    """Understand a `source` and its `revision`.

    Args:
        source: bundled:<name>, hub:<owner>/<repo> or a local folder; of a corpus wordnet:<folder>.
        revision: full 40-hex commit of a hub repository, else None.
        setting: config section, for messages.
        resources: folder of the bundled assets; that of the project if None.

    Raises:
        ConfigError: unknown form, no such folder, a hub source without full commit, or a
            revision without hub source.
    """
    if not isinstance(source, str) or not source.strip():
        raise ConfigError(f"{setting}.source: found {source!r}, expected {_FORMS}.")
    scheme, colon, rest = source.partition(":")
    if colon and scheme == "hub":
        return _hub(source, rest, revision, setting)
    if revision is not None:
        raise ConfigError(
            f"{setting}.revision: found {revision!r} with the source {source!r}, expected null: "
            f"only hub:<owner>/<repo> has revisions. Set it to null."
        )
    if colon and scheme == "bundled":
        return _bundled(source, rest, setting, resources or RESOURCES)
    if colon and scheme == "wordnet":
        if setting == "corpus" and Path(rest).expanduser().is_dir():
            return Source(source, "wordnet", folder=Path(rest).expanduser())
        raise ConfigError(
            f"{setting}.source: found {source!r}, expected "
            + (
                "wordnet:<folder> with WordNet's data.noun and the like. Install Debian's package "
                "wordnet-base and set it to wordnet:/usr/share/wordnet."
                if setting == "corpus"
                else f"{_FORMS}; WordNet is a corpus only. Set corpus.source to it."
            )
        )
    # "file:" and "https:" look like a scheme; "C:" or "a folder: with colon" do not.
    if colon and re.fullmatch(r"[a-z]{2,}", scheme) and not Path(source).exists():
        raise ConfigError(
            f"{setting}.source: found {source!r}, expected {_FORMS}. Correct the part before ':'."
        )
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"{setting}.source: found no folder {folder}, expected {_FORMS}. Correct the path "
            f"(a relative one starts at {Path.cwd()})."
        )
    return Source(source, "folder", folder=folder)


def source_files(source: str, names: Sequence[str] | None = None) -> list[Path]:
    """Files of a bundled or local source, for a rule to name as its inputs; none for a hub.

    Args:
        source: as in the config.
        names: file names in the source's folder; None: all its files, hidden ones apart.

    Raises:
        ConfigError: unknown form, or no such folder.
    """
    if source.startswith("hub:"):
        return []
    folder = parse_source(source, None, "source").folder
    assert folder is not None
    chosen = list(names) if names is not None else list_folder(folder)
    if (folder / MANIFEST).is_file() and MANIFEST not in chosen:
        chosen.append(MANIFEST)
    return [folder / name for name in chosen]


def source_state(source: str, names: Sequence[str] | None = None) -> dict[str, Any]:
    """What a bundled or local source holds now, as a small value: equal if nothing changed.

    Touching a file changes nothing, a byte does. Files above 64 MiB, which would be hashed at every
    start of the workflow, are known by size and time of change instead. A source that is not there
    is `{}`, and a hub source too, since its commit fixes its content: fetching says what is wrong.

    Args:
        source: as in the config.
        names: files that matter; None: all of the folder, hidden ones, subfolders and *.md apart.

    Returns:
        File name -> its sha256 and what the folder's own manifest.json promises, if it has one.
    """
    if source.startswith("hub:"):
        return {}
    wordnet = source.startswith("wordnet:")
    try:
        folder = parse_source(source, None, "corpus" if wordnet else "source").folder
        assert folder is not None
        shipped = promised(folder) or {}
    except (ConfigError, DataError):
        return {}
    if wordnet:
        names = DATA_FILES
    if names is None:
        names = [n for n in list_folder(folder) if not n.endswith(".md") and n != MANIFEST]
    state: dict[str, Any] = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        status = path.stat()
        if status.st_size <= _HASHED_AT_START:
            found = sha256_file(path)
        else:
            found = f"{status.st_size} bytes, changed at {status.st_mtime_ns}"
        state[name] = {"found": found, "promised": shipped.get(name, {}).get("sha256")}
    return state


def list_folder(folder: Path) -> list[str]:
    """Names of a folder's files, without subfolders and hidden files."""
    with disk_errors(folder, "reading the folder"):
        return sorted(
            path.name
            for path in folder.iterdir()
            if path.is_file() and not path.name.startswith(".")
        )


def promised(folder: Path) -> dict[str, dict] | None:
    """What the source folder's own manifest.json says of its files; None if it has none."""
    return read_manifest(folder)["files"] if (folder / MANIFEST).is_file() else None


def copy_file(
    folder: Path, name: str, target: Path, *, pin: str | None, setting: str, shipped: dict | None
) -> None:
    """Copy one file of a local source, checked against its folder's manifest and the config's pin.

    Args:
        folder: the source.
        name: file name in it.
        target: where the copy goes.
        pin: sha256 that the config demands, or None.
        setting: config section, for messages.
        shipped: `promised(folder)`.

    Raises:
        DataError: no such file, unreadable, or the disk is full.
        IntegrityError: the bytes are not the promised ones.
    """
    path = folder / check_name(name, setting)
    if not path.is_file():
        near = ", ".join(list_folder(folder)[:10]) or "nothing"
        raise DataError(
            f"{path}: found no such file, expected one for {setting}. "
            f"The folder holds {near}. Correct {setting} in the config."
        )
    with disk_errors(target, f"copying {path}"):
        digest = hashlib.sha256()
        with open(path, "rb") as source, atomic_path(target) as temporary:
            with open(temporary, "wb") as copy:
                while block := source.read(1 << 20):
                    digest.update(block)
                    copy.write(block)
    found = digest.hexdigest()
    if shipped is not None:
        if name not in shipped:
            raise IntegrityError(
                f"{path}: found no entry for it in {folder / MANIFEST}, expected one. Add it to "
                f"that manifest, or delete the manifest."
            )
        check_file(
            target,
            shipped[name]["sha256"],
            shipped[name]["bytes"],
            label=str(path),
            way_out=f"Restore the file, or correct {folder / MANIFEST} if the change was meant.",
            found=found,
        )
    if pin is not None:
        check_file(
            target,
            pin,
            None,
            label=str(path),
            way_out=f"Restore the file, or correct {setting}.sha256 if the change was meant.",
            found=found,
        )


def _bundled(source: str, name: str, setting: str, resources: Path) -> Source:
    known = sorted(p.name for p in resources.iterdir() if p.is_dir()) if resources.is_dir() else []
    if name not in known:
        raise ConfigError(
            f"{setting}.source: found {source!r}, expected one of "
            f"{', '.join(f'bundled:{k}' for k in known) or f'a folder under {resources}'}. "
            f"Correct the name, or restore {resources / os.path.basename(name)}."
        )
    return Source(source, "bundled", folder=resources / name)


def _hub(source: str, repo: str, revision: str | None, setting: str) -> Source:
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        raise ConfigError(f"{setting}.source: found {source!r}, expected hub:<owner>/<repo>.")
    if not isinstance(revision, str) or not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"{setting}.revision: found {revision!r} with the source {source!r}, expected the full "
            f"commit of 40 hex digits: a branch or tag may change under a running project. Take "
            f"the commit from the repository's history page."
        )
    return Source(source, "hub", repo=repo, revision=revision)
