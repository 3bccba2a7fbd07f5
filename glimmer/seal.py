"""Digests of small results, hidden beside them: damage that changes no time is noticed.

`.NAME.seal` holds {"mtime_ns", "sha256"} of the file as its stage left it. A file that is older, or
newer by more than a minute, is another one (edited, touched, copied without times, made by another
process) and is not judged by it: that is Snakemake's to do. The minute is for Snakemake itself,
which touches an output once it has noticed that its job is done. Folders with a manifest and large
files, whose record holds their digest, need no seal.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from glimmer.errors import GlimmerError, IntegrityError
from glimmer.files import read_json, sha256_file, write_json

_TOUCHED_NS = 60 * 10**9


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.seal")


def seal(*paths: Path | str) -> None:
    """Note what finished files hold, one hidden file beside each."""
    for path in map(Path, paths):
        mtime_ns = path.stat().st_mtime_ns
        write_json(_beside(path), {"mtime_ns": mtime_ns, "sha256": sha256_file(path)})


def check_seals(paths: Iterable[Path | str]) -> None:
    """Hold those of the files that have a seal against it.

    Raises:
        IntegrityError: a file of the sealed time holds something else than was sealed.
    """
    for path in map(Path, paths):
        try:
            sealed = read_json(_beside(path))
            later_ns = path.stat().st_mtime_ns - int(sealed["mtime_ns"])
            sha256 = str(sealed["sha256"])
        except (OSError, KeyError, TypeError, ValueError, GlimmerError):
            continue  # no seal, or a damaged one, says nothing of the file
        if 0 <= later_ns <= _TOUCHED_NS and (found := sha256_file(path)) != sha256:
            raise IntegrityError(
                f"{path}: found sha256 {found}, expected {sha256}, which it had when it was "
                "written: it was damaged since. Delete it and run again: it is made anew. If you "
                f"changed it yourself, delete {_beside(path)} instead."
            )
