"""Fetch checkpoint, corpus and questions: one way for bundled, local and hub sources.

Files are brought into a hidden folder beside `out`, checked there, renamed into place, and
manifest.json is written last. A fetch that is cut, killed or refused leaves no manifest; what a
download has received stays in the hidden folder, which outlives a workflow engine's clearing of
`out`, and is not fetched again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glimmer.assets.checkpoint import check_checkpoint, select_files
from glimmer.assets.corpus import validate_corpus
from glimmer.assets.hub import HubFile, download, list_hub
from glimmer.assets.layouts import to_own_layout
from glimmer.assets.manifest import (
    MANIFEST,
    check_name,
    check_pins,
    read_manifest,
    write_manifest,
)
from glimmer.assets.questions import validate_questions
from glimmer.assets.sources import Source, copy_file, list_folder, parse_source, promised
from glimmer.assets.unpack import join, unpack
from glimmer.assets.wordnet import DATA_FILES, write_corpus
from glimmer.errors import ConfigError, DataError, IntegrityError
from glimmer.files import disk_errors, read_json, write_json
from glimmer.logs import get_logger

logger = get_logger(__name__)

_PACKED = (".gz", ".parquet")


def fetch_checkpoint(
    source: str,
    out: Path | str,
    *,
    revision: str | None = None,
    sha256: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Fetch a checkpoint in Hugging Face layout and check it.

    Args:
        source: bundled:<name>, hub:<owner>/<repo> or a local folder.
        out: folder for config.json, weights, tokenizer, chat template and manifest.json.
        revision: full 40-hex commit; needed for a hub source, else None.
        sha256: file name -> digest that the file must have.

    Returns:
        The manifest.

    Raises:
        ConfigError: the source, the revision or a pinned name is not a valid one.
        DataError: a file is missing, weights are a pickle, another model type, the disk is full,
            no permission, or the hub cannot be reached.
        IntegrityError: a sha256 differs, or a weight file is cut.
    """
    parsed = parse_source(source, revision, "checkpoint")
    listing = list_hub(parsed, "model") if parsed.kind == "hub" else None
    available = list(listing) if listing is not None else list_folder(_folder(parsed))
    names = select_files(available, _label(parsed))

    def check(stage: Path) -> None:
        found = check_checkpoint(stage, label=_label(parsed))
        logger.info(
            "checkpoint %s: %d tensors, %d parameters",
            parsed.text,
            found["tensors"],
            found["parameters"],
        )

    return _fetch(
        parsed,
        {name: name for name in names},
        Path(out),
        kind="checkpoint",
        setting="checkpoint",
        repo_type="model",
        listing=listing,
        sha256=sha256,
        check=check,
    )


def fetch_corpus(
    source: str,
    out: Path | str,
    *,
    filename: str | Sequence[str] = "corpus.jsonl",
    revision: str | None = None,
    sha256: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Fetch a corpus and check every line; it is called corpus.jsonl in `out`.

    Args:
        source: bundled:<name>, hub:<owner>/<repo> (a data set) or a local folder; or
            wordnet:<folder>, whose data files become the corpus (`glimmer.assets.wordnet`).
        out: folder for corpus.jsonl and manifest.json.
        filename: name at the source, or those of its parts in their order; what ends in .gz is
            unpacked, a gzipped tar of one file too. WordNet has its own names.
        revision: full 40-hex commit; needed for a hub source, else None.
        sha256: name at the source -> digest that the file must have, before unpacking.

    Returns:
        The manifest.

    Raises:
        ConfigError, DataError, IntegrityError: as `fetch_checkpoint`; `DataError` also for a line
            that `read_corpus` refuses.
    """
    parsed = parse_source(source, revision, "corpus")
    wordnet = parsed.kind == "wordnet"
    parts = DATA_FILES if wordnet else None if isinstance(filename, str) else tuple(filename)
    if parts is not None and len({*parts}) < max(1, len(parts)):
        raise ConfigError(
            f"corpus.filename: found {list(parts)}, expected each part once. Correct the list."
        )
    told = filename if parts is None else ", ".join(parts)

    def check(stage: Path) -> None:
        if wordnet:
            write_corpus(stage, stage / "corpus.jsonl")
        elif parts is not None:
            join([stage / name for name in parts], stage / "corpus.jsonl", _label(parsed))
        stats = validate_corpus(stage / "corpus.jsonl", label=f"{_label(parsed)}/{told}")
        logger.info("corpus %s: %d passages", parsed.text, stats.passages)

    return _fetch(
        parsed,
        {"corpus.jsonl": told},
        Path(out),
        kind="corpus",
        setting="corpus",
        repo_type="dataset",
        sha256=sha256,
        check=check,
        parts=parts,
    )


def fetch_questions(
    source: str,
    out: Path | str,
    *,
    train: str = "train.jsonl",
    heldout: str = "heldout.jsonl",
    revision: str | None = None,
    sha256: Mapping[str, str] | None = None,
    overlap: str = "refuse",
) -> dict[str, Any]:
    """Fetch both question files and check them; train.jsonl and heldout.jsonl in `out`.

    Args:
        source: bundled:<name>, hub:<owner>/<repo> (a data set) or a local folder.
        out: folder for the two files and manifest.json.
        train: name of the training questions at the source; .gz is unpacked, and .parquet or
            another layout than `read_questions`' own is rewritten (`glimmer.assets.layouts`).
        heldout: name of the held-out questions at the source; likewise.
        revision: full 40-hex commit; needed for a hub source, else None.
        sha256: name at the source -> digest that the file must have, before unpacking.
        overlap: "refuse" a held-out question that is in training too, or "keep" it.

    Returns:
        The manifest.

    Raises:
        ConfigError, DataError, IntegrityError: as `fetch_checkpoint`; `DataError` also for a line
            that `read_questions` refuses, and for a held-out question that is in training too.
    """
    parsed = parse_source(source, revision, "questions")
    if train == heldout:
        raise ConfigError(
            f"questions.heldout: found {heldout!r}, the same file as questions.train; expected "
            f"another one. Correct one of the two."
        )

    def check(stage: Path) -> None:
        labels = (f"{_label(parsed)}/{train}", f"{_label(parsed)}/{heldout}")
        for name, label in zip(("train.jsonl", "heldout.jsonl"), labels, strict=True):
            to_own_layout(stage / name, label)
        stats = validate_questions(
            stage / "train.jsonl", stage / "heldout.jsonl", labels=labels, overlap=overlap
        )
        logger.info(
            "questions %s: %d to train, %d held out, %d of these in training too",
            parsed.text,
            stats.train,
            stats.heldout,
            stats.overlap,
        )

    return _fetch(
        parsed,
        {"train.jsonl": train, "heldout.jsonl": heldout},
        Path(out),
        kind="questions",
        setting="questions",
        repo_type="dataset",
        sha256=sha256,
        check=check,
    )


def _fetch(
    source: Source,
    names: Mapping[str, str],
    out: Path,
    *,
    kind: str,
    setting: str,
    repo_type: str,
    sha256: Mapping[str, str] | None,
    check: Callable[[Path], None],
    listing: Mapping[str, HubFile] | None = None,
    parts: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Bring the files of `names` (name in `out` -> name at the source), check, rename, list.

    With `parts`, these files of the source are brought instead, and `check` makes those of `names`.
    """
    # name in the stage folder -> name at the source; what will be rewritten keeps a name of its own
    # there, so that it need not be fetched again.
    staged = {n + next((e for e in _PACKED if s.endswith(e)), ""): s for n, s in names.items()}
    if parts is not None:
        staged = {name: name for name in parts}
    for name in staged.values():
        check_name(name, setting)
    pins = check_pins(sha256, list(staged.values()), setting)
    stage = out.parent / f".{out.name}.incoming"
    with disk_errors(out, "making the folder"):
        before = _forget(out)
        out.mkdir(parents=True, exist_ok=True)
        for name in staged:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
    try:
        if source.kind == "hub":
            listing = list_hub(source, repo_type) if listing is None else listing
            wanted = {name: _listed(listing, s, source, setting) for name, s in staged.items()}
            download(source, repo_type, wanted, stage, have=out, pins=pins, setting=setting)
        else:
            _copy(_folder(source), staged, stage, pins=pins, setting=setting)
        for name in set(staged) - set(names) if parts is None else ():
            label = f"{_label(source)}/{staged[name]}"
            packed = stage / name
            if packed.suffix == ".gz":
                unpack(packed, packed.with_suffix(""), label)
            else:
                shutil.copyfile(packed, packed.with_suffix(""))
        check(stage)
        with disk_errors(out, "writing the files"):
            for name in names:
                os.replace(stage / name, out / name)
            for name in before - set(names):
                (out / name).unlink(missing_ok=True)
            write_json(_names(out), sorted(names))
            manifest = write_manifest(
                out,
                kind=kind,
                source=source.text,
                revision=source.revision,
                source_files=names,
                names=list(names),
            )
    except BaseException:
        # A copy is quickly made again; what came over a network is kept.
        if source.kind != "hub":
            shutil.rmtree(stage, ignore_errors=True)
        raise
    shutil.rmtree(stage, ignore_errors=True)
    return manifest


def _copy(
    folder: Path,
    staged: Mapping[str, str],
    stage: Path,
    *,
    pins: Mapping[str, str],
    setting: str,
) -> None:
    """Copy files of a local source (name in `stage` -> name in `folder`), checked on the way."""
    shipped = promised(folder)
    for name, at_source in staged.items():
        copy_file(
            folder,
            at_source,
            stage / name,
            pin=pins.get(at_source),
            setting=setting,
            shipped=shipped,
        )


def _names(out: Path) -> Path:
    """Beside the folder: the names of the files that it was last given."""
    return out.with_name(f".{out.name}.names.json")


def _forget(out: Path) -> set[str]:
    """Remove an older manifest, since the folder is not whole from now on; the names it listed.

    The workflow engine may have removed it already; a hidden file has the names too.
    """
    names: set[str] = set()
    with contextlib.suppress(OSError, DataError):
        names.update(map(str, read_json(_names(out))))
    with contextlib.suppress(DataError, IntegrityError):
        names.update(read_manifest(out)["files"])
    (out / MANIFEST).unlink(missing_ok=True)
    return {name for name in names if not Path(name).is_absolute() and ".." not in name}


def _listed(listing: Mapping[str, HubFile], name: str, source: Source, setting: str) -> HubFile:
    if name not in listing:
        raise DataError(
            f"{source.text}/{name}: found no such file at {source.revision}, expected one of "
            f"{', '.join(sorted(listing)[:20])}. Correct {setting} in the config."
        )
    return listing[name]


def _folder(source: Source) -> Path:
    assert source.folder is not None
    return source.folder


def _label(source: Source) -> str:
    return str(source.folder) if source.folder is not None else source.text


__all__ = ["fetch_checkpoint", "fetch_corpus", "fetch_questions"]
