from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from glimmer.assets import verify_manifest, write_manifest
from glimmer.assets.manifest import check_name, check_pins
from glimmer.errors import ConfigError, DataError, IntegrityError
from glimmer.files import sha256_file


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(b"abc")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_bytes(b"")
    (tmp_path / ".hidden").write_bytes(b"x")
    write_manifest(tmp_path, kind="corpus", source="bundled:x")
    return tmp_path


def test_lists_size_and_sha256(whole: Path) -> None:
    manifest = verify_manifest(whole)
    # The digest of "abc" is the standard's own example.
    assert manifest["files"]["a.txt"] == {
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "bytes": 3,
    }
    assert sorted(manifest["files"]) == ["a.txt", "sub/b.txt"]


def test_equal_folders_have_equal_manifests(whole: Path) -> None:
    first = (whole / "manifest.json").read_bytes()
    os.utime(whole / "a.txt", (1, 1))
    write_manifest(whole, kind="corpus", source="bundled:x")
    assert (whole / "manifest.json").read_bytes() == first


def test_a_changed_byte_is_refused(whole: Path) -> None:
    (whole / "a.txt").write_bytes(b"abd")
    with pytest.raises(IntegrityError) as caught:
        verify_manifest(whole)
    text = str(caught.value)
    assert str(whole / "a.txt") in text
    assert f"found sha256 {sha256_file(whole / 'a.txt')}" in text
    assert "expected ba7816bf" in text and "manifest.json and run again" in text


def test_a_cut_or_missing_file_is_refused(whole: Path) -> None:
    (whole / "a.txt").write_bytes(b"ab")
    with pytest.raises(IntegrityError, match="found 2 bytes, expected 3"):
        verify_manifest(whole)
    (whole / "a.txt").unlink()
    with pytest.raises(IntegrityError, match="found no such file, expected 3 bytes"):
        verify_manifest(whole)


def test_a_folder_without_manifest_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"manifest\.json: found no manifest"):
        verify_manifest(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"files": []}',
        '{"files": {"a": {"sha256": "00", "bytes": 3}}}',
        '{"files": {"a": {"sha256": "%s"}}}' % ("0" * 64),
    ],
)
def test_a_broken_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json.*Delete it"):
        verify_manifest(tmp_path)


def test_a_manifest_cannot_reach_outside(tmp_path: Path) -> None:
    entry = {"sha256": "0" * 64, "bytes": 1}
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {"../x": entry}}))
    with pytest.raises(ConfigError, match=r"'\.\./x'"):
        verify_manifest(tmp_path)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../a", "a/../b", "a\\b", "a\0", "./a", "a/"])
def test_names_stay_inside(name: str) -> None:
    with pytest.raises(ConfigError, match="found the file name"):
        check_name(name, "corpus")


def test_harmless_odd_names_pass() -> None:
    for name in ("a b", "; touch x", "$(x)", "ü/ß.jsonl", "a\nb", "'\""):
        assert check_name(name, "corpus") == name


def test_pins() -> None:
    assert check_pins({"a": "AB" * 32}, ["a"], "corpus") == {"a": "ab" * 32}
    assert check_pins(None, ["a"], "corpus") == {}
    with pytest.raises(ConfigError, match=r"corpus\.sha256\.a: found 'xyz', expected 64 hex"):
        check_pins({"a": "xyz"}, ["a"], "corpus")
    with pytest.raises(ConfigError, match=r"corpus\.sha256\.b.*expected one of a"):
        check_pins({"b": "0" * 64}, ["a"], "corpus")
