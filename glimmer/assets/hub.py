"""Download from a hub (huggingface_hub, HF_ENDPOINT honoured), pinned by commit and resumed.

A file is written to `<name>.<content hash>.part`, continued by a Range request after a cut or a
kill, compared with the hash that the hub lists (sha256 of a large file, git's blob hash of a small
one), and only then renamed. huggingface_hub's own download restarts a file after a kill.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glimmer.assets.manifest import check_file
from glimmer.assets.sources import Source
from glimmer.errors import DataError, IntegrityError
from glimmer.files import disk_errors, sha256_file
from glimmer.logs import get_logger
from glimmer.progress import Progress

logger = get_logger(__name__)
_TIMEOUT_S = 30.0
# Before a download that brings nothing more is given up; what arrives in between starts them anew.
_PAUSES_S = (5, 15, 30, 60, 120, 240)


class HubLost(DataError):
    """The hub or the way to it failed for now; to go on later may help."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub lists it.

    Attributes:
        name: path in the repository.
        size: bytes.
        sha256: of its content, for a large file; else None.
        blob: git's blob hash (of a pointer for a large file).
    """

    name: str
    size: int
    sha256: str | None
    blob: str

    @property
    def content(self) -> str:
        """A name of the content that no other content has."""
        return self.sha256 or self.blob


def list_hub(source: Source, repo_type: str) -> dict[str, HubFile]:
    """The files of a repository at its pinned commit.

    Raises:
        DataError: no such repository or commit, no access, or the hub cannot be reached.
        IntegrityError: the hub answers for another commit.
    """
    from huggingface_hub import HfApi

    assert source.repo is not None and source.revision is not None
    with _hub_errors(source, None):
        info = HfApi(endpoint=_endpoint()).repo_info(
            source.repo,
            repo_type=repo_type,
            revision=source.revision,
            files_metadata=True,
            timeout=_TIMEOUT_S,
        )
    if info.sha != source.revision:
        raise IntegrityError(
            f"{source.text}: the hub answered for commit {info.sha}, expected {source.revision}. "
            f"Check HF_ENDPOINT ({_shown_endpoint()})."
        )
    files = {}
    for entry in info.siblings or []:
        sha256 = entry.lfs.sha256 if entry.lfs is not None else None
        if entry.size is None or entry.blob_id is None:
            raise DataError(
                f"{source.text}: the hub lists {entry.rfilename!r} without size or hash, expected "
                f"both. Check HF_ENDPOINT ({_shown_endpoint()})."
            )
        files[entry.rfilename] = HubFile(entry.rfilename, entry.size, sha256, entry.blob_id)
    return files


def download(
    source: Source,
    repo_type: str,
    wanted: Mapping[str, HubFile],
    stage: Path,
    *,
    have: Path,
    pins: Mapping[str, str],
    setting: str,
) -> None:
    """Bring files into `stage`; those that are whole there or in `have` are not fetched again.

    Args:
        source: a hub source.
        repo_type: model or dataset.
        wanted: name in `stage` -> file of the hub.
        stage: folder on the disk of the final one; kept if this fails, to be resumed.
        have: folder of an earlier fetch; its files are moved from there.
        pins: name at the hub -> sha256 that the config demands.
        setting: config section, for messages.

    Raises:
        DataError: the connection was cut for good, the file is not there, the disk is full, or
            another process downloads into the same folder.
        IntegrityError: the bytes received are not those that the hub lists or the config pins.
    """
    with disk_errors(stage, "making the folder"):
        stage.mkdir(parents=True, exist_ok=True)
    total = sum(file.size for file in wanted.values())
    with (
        _only_one(stage),
        Progress(total, f"downloading {source.repo}", unit="B") as progress,
    ):
        for name, file in wanted.items():
            target = stage / name
            way_out = (
                f"Nothing of it was kept. Run again; if it stays so, check HF_ENDPOINT "
                f"({_shown_endpoint()})."
            )
            if not target.is_file() and (have / name).is_file() and _whole(have / name, file):
                os.replace(have / name, target)
            if target.is_file() and _whole(target, file):
                progress.update(file.size)
            else:
                with disk_errors(target, "writing the download"):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    part = target.with_name(f"{target.name}.{file.content[:40]}.part")
                    _fetch(source, repo_type, file, part, progress)
                    if not _whole(part, file):
                        found = (part.stat().st_size, _content_hash(part, file))
                        part.unlink()
                        raise IntegrityError(
                            f"{source.text}/{file.name}: found {found[0]} bytes of hash "
                            f"{found[1]}, expected {file.size} of {file.content}. {way_out}"
                        )
                    os.replace(part, target)
            if file.name in pins:
                try:
                    check_file(
                        target,
                        pins[file.name],
                        None,
                        label=f"{source.text}/{file.name} at {source.revision}",
                        way_out=f"Correct {setting}.sha256, or {setting}.revision.",
                    )
                except IntegrityError:
                    target.unlink()
                    raise


def _fetch(source: Source, repo_type: str, file: HubFile, part: Path, progress: Progress) -> None:
    """Bring the rest of a file into `part`, waiting for a network that is away for minutes."""
    have = part.stat().st_size if part.is_file() else 0
    if have > file.size:
        part.unlink()
        have = 0
    if have:
        logger.info("%s: resuming at byte %d of %d", file.name, have, file.size)
        progress.update(have)
    pauses = iter(_PAUSES_S)
    while True:
        try:
            return _go_on(source, repo_type, file, part, have, progress)
        except HubLost as error:
            before, have = have, part.stat().st_size
            if have > before:
                pauses = iter(_PAUSES_S)
            pause = next(pauses, None)
            if pause is None or have > file.size:
                raise
            logger.warning("%s Trying again in %d s.", error, pause)
            time.sleep(pause)


def _go_on(
    source: Source, repo_type: str, file: HubFile, part: Path, have: int, progress: Progress
) -> None:
    """One try, from byte `have` on."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(
        source.repo,
        file.name,
        repo_type=repo_type,
        revision=source.revision,
        endpoint=_endpoint(),
    )
    # A compressed body has other offsets than the file, so a Range would not fit.
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    with open(part, "ab") as handle, _hub_errors(source, file.name):
        http_get(
            url,
            handle,
            resume_size=have,
            headers=headers,
            expected_size=file.size,
            displayed_filename=file.name,
            tqdm_class=_bar(progress),
        )
        handle.flush()
        os.fsync(handle.fileno())


def _whole(path: Path, file: HubFile) -> bool:
    return path.stat().st_size == file.size and _content_hash(path, file) == file.content


def _content_hash(path: Path, file: HubFile) -> str:
    """The file's hash, of the kind that the hub lists for it."""
    if file.sha256 is not None:
        return sha256_file(path)
    # git's name of a blob; it guards against damage, the commit's hash against a swap.
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _bar(progress: Progress) -> Any:
    """What http_get takes for a tqdm class, counting on `progress`."""

    class Bar:
        def __init__(self, **_: Any) -> None:
            pass

        def update(self, n: int) -> None:
            progress.update(n)

        def close(self) -> None:
            pass

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Bar


@contextmanager
def _only_one(stage: Path) -> Iterator[None]:
    """Hold the stage folder's lock; the kernel frees it when the process ends, however it ends."""
    path = stage / ".lock"
    with disk_errors(path, "writing the lock"):
        handle = open(path, "w")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                f"{stage}: another process downloads into this folder, expected none. "
                f"Wait until it ends, and run again."
            ) from error
        except OSError as error:
            # Some network file systems have no locks; the hashes still catch a mixture.
            logger.warning("%s: no file locks here (%s), going on without", path, error)
        yield


@contextmanager
def _hub_errors(source: Source, name: str | None) -> Iterator[None]:
    """Turn what huggingface_hub and httpx raise into `DataError`.

    The messages name no final URL: one of a content network carries a signature.
    """
    import httpx
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    what = source.text if name is None else f"{source.text}/{name}"
    endpoint = _shown_endpoint()
    kept = "" if name is None else " What was received is kept:"
    try:
        yield
    except GatedRepoError as error:
        raise DataError(
            f"{what}: access is restricted on {endpoint}. Accept its terms there and set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise DataError(
            f"{what}: found no commit {source.revision} on {endpoint}. Correct the revision."
        ) from error
    except RemoteEntryNotFoundError as error:
        raise DataError(
            f"{what}: found no such file at {source.revision} on {endpoint}. Correct the name."
        ) from error
    except RepositoryNotFoundError as error:
        raise DataError(
            f"{what}: found no such repository on {endpoint}, or it is private. Correct the "
            f"source, or set HF_TOKEN."
        ) from error
    except OfflineModeIsEnabled as error:
        raise DataError(
            f"{what}: HF_HUB_OFFLINE is set, expected a reachable hub. Unset it, or set the "
            f"source to a local folder."
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        refused = DataError(
            f"{what}: {endpoint} answered with status {status}, expected the file. Run again later."
        )
        if status in (429, 500, 502, 503, 504):
            refused = HubLost(*refused.args)
        raise refused from error
    except (httpx.HTTPError, ConnectionError, TimeoutError) as error:
        raise HubLost(
            f"{what}: the connection to {endpoint} failed ({type(error).__name__}).{kept} "
            f"Check the network and HF_ENDPOINT, and run again to go on."
        ) from error
    except OSError as error:
        # http_get's own report of a body that ended early has no errno.
        if error.errno is not None:
            raise
        raise HubLost(
            f"{what}: the connection to {endpoint} ended before the file did.{kept} "
            f"Run again to go on."
        ) from error


def _endpoint() -> str | None:
    """HF_ENDPOINT as it is now; huggingface_hub reads it once, at import."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _shown_endpoint() -> str:
    """The hub's address for messages, without user name and password."""
    endpoint = _endpoint()
    if endpoint is None:
        return "the hub"
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
