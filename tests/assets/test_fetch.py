from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from glimmer.assets import (
    fetch_checkpoint,
    fetch_corpus,
    fetch_questions,
    read_corpus,
    source_files,
    source_state,
    verify_manifest,
)
from glimmer.errors import ConfigError, DataError, GlimmerError, IntegrityError

from .conftest import checkpoint_files, corpus_bytes, question_bytes

Folder = Callable[..., Path]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def left(folder: Path) -> list[str]:
    """Everything below a folder, hidden files too, but for the list of names beside an output."""
    files = (p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".names.json"))
    return sorted(p.relative_to(folder).as_posix() for p in files)


@pytest.fixture
def resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "resources"
    path.mkdir()
    monkeypatch.setattr("glimmer.assets.sources.RESOURCES", path)
    return path


def test_checkpoint_from_a_folder(folder: Folder, tmp_path: Path) -> None:
    files = checkpoint_files()
    out = tmp_path / "run" / "checkpoint"
    manifest = fetch_checkpoint(str(folder(files)), out)
    assert left(out) == sorted([*set(files) - {"README.md"}, "manifest.json"])
    for name, data in files.items():
        if name != "README.md":
            assert manifest["files"][name]["sha256"] == sha256(data)
            assert (out / name).read_bytes() == data
    assert verify_manifest(out) == manifest
    assert manifest["kind"] == "checkpoint" and manifest["revision"] is None
    assert {name.split("/")[0] for name in left(out.parent)} == {"checkpoint"}


def test_bundled_is_found_from_anywhere(
    resources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (resources / "world").mkdir()
    (resources / "world" / "corpus.jsonl").write_bytes(corpus_bytes())
    monkeypatch.chdir("/")
    manifest = fetch_corpus("bundled:world", tmp_path / "out")
    assert manifest["source"] == "bundled:world"
    assert len(list(read_corpus(tmp_path / "out" / "corpus.jsonl"))) == 3


def test_an_unknown_bundled_name_lists_the_known(resources: Path, tmp_path: Path) -> None:
    (resources / "toy_world").mkdir()
    for name in ("toy_wrld", "../resources/toy_world", "", ".", ".."):
        with pytest.raises(ConfigError, match="expected one of bundled:toy_world"):
            fetch_corpus(f"bundled:{name}", tmp_path / "out")


def test_questions_under_other_names(folder: Folder, tmp_path: Path) -> None:
    files = {
        "nq/tr.jsonl": question_bytes("t"),
        "nq/te.jsonl.gz": gzip.compress(question_bytes("h")),
    }
    out = tmp_path / "out"
    manifest = fetch_questions(
        str(folder(files)), out, train="nq/tr.jsonl", heldout="nq/te.jsonl.gz"
    )
    assert (out / "train.jsonl").read_bytes() == question_bytes("t")
    assert (out / "heldout.jsonl").read_bytes() == question_bytes("h")
    assert manifest["files"]["heldout.jsonl"]["source_file"] == "nq/te.jsonl.gz"
    assert left(out) == ["heldout.jsonl", "manifest.json", "train.jsonl"]


def test_two_fetches_give_the_same_bytes(folder: Folder, tmp_path: Path) -> None:
    source = str(folder(checkpoint_files()))
    fetch_checkpoint(source, tmp_path / "a")
    fetch_checkpoint(source, tmp_path / "b")
    for name in left(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_shipped_manifest_guards_every_byte(folder: Folder, tmp_path: Path) -> None:
    data = corpus_bytes()
    promise = {"files": {"corpus.jsonl": {"sha256": sha256(data), "bytes": len(data)}}}
    source = folder({"corpus.jsonl": data, "manifest.json": json.dumps(promise).encode()})
    fetch_corpus(str(source), tmp_path / "out")
    changed = data.replace(b"Text 1", b"Text 9")
    (source / "corpus.jsonl").write_bytes(changed)
    with pytest.raises(IntegrityError) as caught:
        fetch_corpus(str(source), tmp_path / "out")
    text = str(caught.value)
    assert f"{source / 'corpus.jsonl'}: found sha256 {sha256(changed)}" in text
    assert f"expected {sha256(data)}" in text and "Restore the file" in text
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert [n for n in left(tmp_path) if n.startswith(".")] == []


def test_a_file_that_the_shipped_manifest_does_not_know(folder: Folder, tmp_path: Path) -> None:
    source = folder({"corpus.jsonl": corpus_bytes(), "manifest.json": b'{"files": {}}'})
    with pytest.raises(IntegrityError, match="found no entry"):
        fetch_corpus(str(source), tmp_path / "out")


def test_a_pin_in_the_config(folder: Folder, tmp_path: Path) -> None:
    source = str(folder({"corpus.jsonl": corpus_bytes()}))
    fetch_corpus(source, tmp_path / "out", sha256={"corpus.jsonl": sha256(corpus_bytes())})
    with pytest.raises(IntegrityError, match=f"expected {'0' * 64}.*corpus.sha256"):
        fetch_corpus(source, tmp_path / "out", sha256={"corpus.jsonl": "0" * 64})
    with pytest.raises(ConfigError, match=r"corpus\.sha256\.corpus\.json: "):
        fetch_corpus(source, tmp_path / "out", sha256={"corpus.json": "0" * 64})


@pytest.mark.parametrize(
    ("source", "revision", "words"),
    [
        ("hub:owner/name", None, "revision: found None"),
        ("hub:owner/name", "main", "revision: found 'main'.*40 hex"),
        ("hub:owner/name", "0123456", "40 hex"),
        ("hub:name", "0" * 40, "expected hub:<owner>/<repo>"),
        ("hub:../etc", "0" * 40, "expected hub:<owner>/<repo>"),
        ("hub:a/b/c", "0" * 40, "expected hub:<owner>/<repo>"),
        ("https://example.org/x", None, "expected bundled:<name>, hub:<owner>/<repo> or a folder"),
        ("bundle:x", None, "expected bundled:"),
        ("", None, "source: found ''"),
        ("no/such/folder", None, "found no folder no/such/folder"),
        (".", "0" * 40, "only hub:<owner>/<repo> has revisions"),
    ],
)
def test_a_bad_source_is_explained(
    tmp_path: Path, source: str, revision: str | None, words: str
) -> None:
    for fetch in (fetch_checkpoint, fetch_corpus, fetch_questions):
        with pytest.raises(ConfigError, match=words):
            fetch(source, tmp_path / "out", revision=revision)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_lists_what_is_there(folder: Folder, tmp_path: Path) -> None:
    source = folder({"wiki.jsonl": corpus_bytes()})
    with pytest.raises(DataError, match=r"corpus\.jsonl: found no such file.*holds wiki\.jsonl"):
        fetch_corpus(str(source), tmp_path / "out")


def test_a_name_cannot_leave_the_folder(folder: Folder, tmp_path: Path) -> None:
    source = folder({"corpus.jsonl": corpus_bytes()})
    (tmp_path / "secret.jsonl").write_bytes(corpus_bytes())
    for name in ("../secret.jsonl", str(tmp_path / "secret.jsonl")):
        with pytest.raises(ConfigError, match="inside the folder"):
            fetch_corpus(str(source), tmp_path / "out", filename=name)


def test_odd_names_are_only_names(folder: Folder, tmp_path: Path) -> None:
    name = "; touch x $(touch y) 'q' \"d\"\n.jsonl"
    source = folder({name: corpus_bytes()}, name="a folder: $(touch z)")
    fetch_corpus(str(source), tmp_path / "out; $(x)", filename=name)
    assert verify_manifest(tmp_path / "out; $(x)")["files"]["corpus.jsonl"]["source_file"] == name


def test_bad_content_names_the_source_and_leaves_nothing(folder: Folder, tmp_path: Path) -> None:
    source = folder({"corpus.jsonl": corpus_bytes() + b'{"id": "0", "contents": "x"}\n'})
    out = tmp_path / "out"
    with pytest.raises(DataError, match=f"{source / 'corpus.jsonl'}, line 4"):
        fetch_corpus(str(source), out)
    assert left(out) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


def test_a_leaked_question_is_refused(folder: Folder, tmp_path: Path) -> None:
    source = folder({"train.jsonl": question_bytes("a"), "heldout.jsonl": question_bytes("a")})
    with pytest.raises(DataError, match=r"found 3 held-out questions.*'a-0' is 'a-0'"):
        fetch_questions(str(source), tmp_path / "out")
    with pytest.raises(ConfigError, match="the same file"):
        fetch_questions(str(source), tmp_path / "out", heldout="train.jsonl")


def test_a_second_source_replaces_the_first(folder: Folder, tmp_path: Path) -> None:
    files = checkpoint_files()
    fetch_checkpoint(str(folder(files)), tmp_path / "out")
    (tmp_path / "out" / "mine.txt").write_text("kept")
    del files["chat_template.jinja"]
    fetch_checkpoint(str(folder(files, name="second")), tmp_path / "out")
    # A chat template of the other model would be used with this one.
    assert "chat_template.jinja" not in left(tmp_path / "out")
    assert "mine.txt" in left(tmp_path / "out")


def test_a_second_source_replaces_the_first_whose_manifest_is_gone(
    folder: Folder, tmp_path: Path
) -> None:
    """The workflow engine removes a job's outputs before it starts the job again."""
    files = checkpoint_files()
    fetch_checkpoint(str(folder(files)), tmp_path / "out")
    (tmp_path / "out" / "mine.txt").write_text("kept")
    (tmp_path / "out" / "manifest.json").unlink()
    del files["chat_template.jinja"]
    fetch_checkpoint(str(folder(files, name="second")), tmp_path / "out")
    assert "chat_template.jinja" not in left(tmp_path / "out")
    assert "mine.txt" in left(tmp_path / "out")


def test_a_failed_fetch_takes_back_an_older_manifest(folder: Folder, tmp_path: Path) -> None:
    source = folder({"corpus.jsonl": corpus_bytes()})
    fetch_corpus(str(source), tmp_path / "out")
    (source / "corpus.jsonl").write_bytes(b"{")
    with pytest.raises(DataError):
        fetch_corpus(str(source), tmp_path / "out")
    with pytest.raises(IntegrityError, match="not whole"):
        verify_manifest(tmp_path / "out")


def test_a_cut_gzip_is_refused(folder: Folder, tmp_path: Path) -> None:
    packed = gzip.compress(corpus_bytes(50))
    for data in (packed[:-20], b"plain text", packed[:40] + b"\0" * 20 + packed[60:]):
        source = folder({"corpus.jsonl.gz": data})
        with pytest.raises(IntegrityError, match=r"corpus\.jsonl\.gz: found a cut or damaged"):
            fetch_corpus(str(source), tmp_path / "out", filename="corpus.jsonl.gz")


def test_symlinks_of_a_hub_cache_are_followed(folder: Folder, tmp_path: Path) -> None:
    blobs = folder({f"blob-{name}": data for name, data in checkpoint_files().items()})
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for name in checkpoint_files():
        (snapshot / name).symlink_to(blobs / f"blob-{name}")
    fetch_checkpoint(str(snapshot), tmp_path / "out")
    assert not any((tmp_path / "out" / name).is_symlink() for name in left(tmp_path / "out"))


def test_source_files_for_a_rule(folder: Folder) -> None:
    source = folder({"corpus.jsonl": b"x", "manifest.json": b"{}", ".hidden": b"x"})
    assert [p.name for p in source_files(str(source))] == ["corpus.jsonl", "manifest.json"]
    assert source_files(str(source), ["corpus.jsonl"])[0] == source / "corpus.jsonl"
    assert source_files("hub:a/b") == []


def test_source_state_sees_bytes_and_not_times(folder: Folder) -> None:
    source = folder({"corpus.jsonl": b"x", "train.jsonl": b"y", "README.md": b"z"})
    whole, corpus = source_state(str(source)), source_state(str(source), ["corpus.jsonl"])
    os.utime(source / "corpus.jsonl", (1, 1))
    (source / "README.md").write_text("other words")
    assert source_state(str(source)) == whole
    (source / "train.jsonl").write_bytes(b"Y")
    assert source_state(str(source)) != whole
    assert source_state(str(source), ["corpus.jsonl"]) == corpus
    (source / "corpus.jsonl").write_bytes(b"X")
    assert source_state(str(source), ["corpus.jsonl"]) != corpus


def test_source_state_leaves_complaints_to_the_fetch(folder: Folder, tmp_path: Path) -> None:
    assert source_state("hub:a/b") == {}
    assert source_state("bundled:absent") == {}
    assert source_state(str(tmp_path / "absent")) == {}
    assert source_state(str(folder({"manifest.json": b"{"}))) == {}


def test_source_state_does_not_hash_large_files(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder({"model.safetensors": b"12345"})
    monkeypatch.setattr("glimmer.assets.sources._HASHED_AT_START", 4)
    before = source_state(str(source))
    assert "5 bytes" in before["model.safetensors"]["found"]
    os.utime(source / "model.safetensors", (1, 1))
    assert source_state(str(source)) != before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its rights away")
def test_no_permission_as_another_user() -> None:
    # Not below tmp_path, which another user may not enter.
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    source = place / "source"
    source.mkdir()
    (source / "corpus.jsonl").write_bytes(corpus_bytes())
    place.chmod(0o755)
    try:
        os.seteuid(65534)
        with pytest.raises(DataError, match=f"{place}.*no permission"):
            fetch_corpus(str(source), place / "out")
        os.seteuid(0)
        (source / "corpus.jsonl").chmod(0o600)
        (place / "out").mkdir()
        place.chmod(0o777)
        (place / "out").chmod(0o777)
        os.seteuid(65534)
        with pytest.raises(DataError, match=r"source/corpus\.jsonl.*no permission"):
            fetch_corpus(str(source), place / "out")
    finally:
        os.seteuid(0)
        shutil.rmtree(place)


def test_no_write_permission(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "out"))

    source = str(folder({"corpus.jsonl": corpus_bytes()}))
    monkeypatch.setattr("glimmer.assets.fetch.Path.mkdir", refuse)
    with pytest.raises(DataError, match=f"{tmp_path / 'out'}.*no permission"):
        fetch_corpus(source, tmp_path / "out")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_disk_full(folder: Folder, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no right to mount a small disk here")
    try:
        source = folder({"corpus.jsonl": corpus_bytes(5000)})
        with pytest.raises(DataError) as caught:
            fetch_corpus(str(source), disk / "out")
        assert str(disk) in str(caught.value) and "disk is full" in str(caught.value)
        assert left(disk) == []
        # With a smaller source the same folder works.
        (source / "corpus.jsonl").write_bytes(corpus_bytes(5))
        fetch_corpus(str(source), disk / "out")
        verify_manifest(disk / "out")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_disk_full_everywhere(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of the renames, writes and flushes: an error that says so, and no manifest."""
    source = str(folder({"corpus.jsonl": corpus_bytes()}))
    for name in ("os.replace", "os.fsync", "os.chmod"):
        for call in range(3):
            countdown = iter(range(call, -1, -1))
            module, _, function = name.partition(".")
            real = getattr(os, function)

            def full(*arguments: object, real=real, countdown=countdown, **more: object) -> object:
                if next(countdown, 1) == 0:
                    raise OSError(28, "No space left on device")
                return real(*arguments, **more)

            out = tmp_path / f"{module}-{function}-{call}"
            with monkeypatch.context() as patch:
                patch.setattr(name, full)
                try:
                    fetch_corpus(source, out)
                except GlimmerError as error:
                    assert "disk is full" in str(error)
                    assert not (out / "manifest.json").exists()
            fetch_corpus(source, out)
            verify_manifest(out)
