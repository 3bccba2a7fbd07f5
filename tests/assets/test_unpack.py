"""One packed file, as gzip or as a gzipped tar; corpora in parts."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimmer.assets import fetch_corpus
from glimmer.assets.unpack import join, unpack
from glimmer.errors import ConfigError, DataError, IntegrityError
from glimmer.files import read_json

from .conftest import corpus_bytes

Folder = Callable[..., Path]


def tar(*members: tuple[str, bytes | None], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A gzipped archive; a member without content is a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=form) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            entry.size = len(content or b"")
            archive.addfile(entry, io.BytesIO(content or b""))
    return out.getvalue()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("name", ["wiki-18.jsonl", "data00/wiki-18.jsonl", "../../up", "/root/abs"])
def test_a_tar_of_one_file_is_its_content_whatever_its_name(
    folder: Folder, tmp_path: Path, form: int, name: str
) -> None:
    source = folder({"wiki-18.jsonl.gz": tar((name, corpus_bytes(40)), form=form)})
    fetch_corpus(str(source), tmp_path / "a/b/out", filename="wiki-18.jsonl.gz")
    assert (tmp_path / "a/b/out/corpus.jsonl").read_bytes() == corpus_bytes(40)
    written = {path.name for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert written == {"corpus.jsonl", "manifest.json", ".out.names.json"}


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("a", b"1\n"), ("b", b"2\n")], "'b' as its second file"),
        ([("a", None)], "'a' which is no plain file"),
        ([], None),
    ],
)
def test_other_archives_are_refused(tmp_path: Path, members: list, says: str | None) -> None:
    packed = tmp_path / "c.gz"
    packed.write_bytes(tar(*members))
    if says is None:  # an empty archive is zeros: not text, which the corpus' own check refuses
        unpack(packed, tmp_path / "c", "c.gz")
        assert set((tmp_path / "c").read_bytes()) == {0}
        return
    with pytest.raises(DataError, match=f"c.gz: found an archive with {says}"):
        unpack(packed, tmp_path / "c", "c.gz")
    assert not (tmp_path / "c").exists()


@given(st.binary(max_size=3000), st.data())
def test_any_content_comes_back_and_no_cut_is_taken_for_whole(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    base = tmp_path_factory.mktemp("unpack")
    for packed in (gzip.compress(content), tar(("x", content))):
        if content[257:262] == b"ustar":
            continue
        path = base / "c.gz"
        path.write_bytes(packed)
        unpack(path, base / "c", "c.gz")
        assert (base / "c").read_bytes() == content
        (base / "c").unlink()
        path.write_bytes(packed[: data.draw(st.integers(0, len(packed) - 1))])
        if path.stat().st_size:
            with pytest.raises((IntegrityError, DataError)):
                unpack(path, base / "c", "c.gz")
        assert not (base / "c").exists()


def test_a_corpus_in_parts(folder: Folder, tmp_path: Path) -> None:
    """Known fault 8: one too many, one missing, one twice, one of other bytes."""
    lines = corpus_bytes(9).splitlines(keepends=True)
    parts = {
        "p/a.jsonl": b"".join(lines[:3]).rstrip(b"\n"),
        "p/b.jsonl.gz": gzip.compress(b"".join(lines[3:5])),
        "p/c.jsonl.gz": tar(("c", b"".join(lines[5:]))),
    }
    source, out = folder(parts), tmp_path / "out"
    fetch_corpus(str(source), out, filename=list(parts))
    assert (out / "corpus.jsonl").read_bytes() == corpus_bytes(9)
    entry = read_json(out / "manifest.json")["files"]["corpus.jsonl"]
    assert entry["source_file"] == "p/a.jsonl, p/b.jsonl.gz, p/c.jsonl.gz"
    with pytest.raises(DataError, match="second time"):  # another order is another corpus
        fetch_corpus(str(folder({**parts, "p/d.jsonl": lines[0]})), out,
                     filename=[*parts, "p/d.jsonl"])  # fmt: skip
    with pytest.raises(DataError, match=r"p/e\.jsonl: found no such file"):
        fetch_corpus(str(source), out, filename=[*parts, "p/e.jsonl"])
    with pytest.raises(ConfigError, match="expected each part once"):
        fetch_corpus(str(source), out, filename=["p/a.jsonl", "p/a.jsonl"])
    with pytest.raises(IntegrityError, match="sha256"):
        fetch_corpus(str(source), out, filename=list(parts), sha256={"p/a.jsonl": "0" * 64})


def test_an_empty_part_adds_no_line(tmp_path: Path) -> None:
    for name, content in (("a", b""), ("b", b"x"), ("c", b"")):
        (tmp_path / name).write_bytes(content)
    join([tmp_path / name for name in "abc"], tmp_path / "all", "parts")
    assert (tmp_path / "all").read_bytes() == b"x\n"
