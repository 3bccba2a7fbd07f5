from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from glimmer.errors import DataError, GlimmerError
from glimmer.files import (
    atomic_path,
    read_json,
    read_jsonl,
    sha256_file,
    sha256_json,
    sole_writer,
    whole_lines,
    write_json,
    write_jsonl,
    write_text,
)


def test_sha256_of_a_file_larger_than_a_block(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    (tmp_path / "a").write_bytes(data)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_sha256_of_a_value_does_not_depend_on_order() -> None:
    assert sha256_json({"a": 1, "b": "é"}) == sha256_json({"b": "é", "a": 1})
    assert sha256_json({"a": 1}) != sha256_json({"a": "1"})
    assert sha256_json({"a": "é"}) == hashlib.sha256('{"a":"é"}'.encode()).hexdigest()


def test_a_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    write_text(path, "one")
    write_text(path, "zwei ü")
    assert path.read_text(encoding="utf-8") == "zwei ü"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:
        temporary.write_text("half")
        assert temporary.parent == path.parent
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.txt"
    write_text(path, "old")
    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_data_reaches_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, r=real: (calls.append(n), r(*a))[1])
    write_text(tmp_path / "a.txt", "x")
    assert calls == ["fsync", "replace"]


def test_json(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None, True], "a": "é"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "é" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert (tmp_path / "a.json").read_text()[-1] == "\n"
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            write_json(tmp_path / "a.json", {"x": bad})
        with pytest.raises(ValueError, match="JSON compliant"):
            write_jsonl(tmp_path / "a.jsonl", [{"x": bad}])
    assert read_json(tmp_path / "a.json") == value
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("data", [b"{", b"", b"\xff\xfe"])
def test_json_that_is_none_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.json: expected JSON"):
        read_json(tmp_path / "a.json")


def test_jsonl_with_its_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, ({"i": i, "text": "a\nb\u2028c"} for i in range(3)))
    assert [number for number, _ in read_jsonl(path)] == [1, 2, 3]
    assert [row["i"] for _, row in read_jsonl(path)] == [0, 1, 2]
    path.write_text(json.dumps(1) + "\n\n" + json.dumps(2))
    assert list(read_jsonl(path)) == [(1, 1), (3, 2)]


@pytest.mark.parametrize("line", [b'{"a": 1', b"\xff", b"text", b'{"a": 1} {"b": 2}'])
def test_a_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n\n" + line + b"\n")
    rows = read_jsonl(path)
    assert next(rows) == (1, 1)
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: expected one JSON value"):
        next(rows)


def test_lines_of_a_file_cut_at_any_byte_are_whole_ones(tmp_path: Path) -> None:
    """A number is JSON however short it is cut: the line's end decides, not the parser."""
    path, data = tmp_path / "a.jsonl", b'{"a": 1}\n\n1234\n[5]\n'
    assert list(whole_lines(path)) == []
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        ends = (size >= 9) + (size >= 15) + (size >= 19)
        assert list(whole_lines(path)) == [{"a": 1}, 1234, [5]][:ends]
        assert path.stat().st_size == size, "it only reads"
    path.write_bytes(b"1\n{\n2\n3")
    rows = whole_lines(path)
    assert next(rows) == 1
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: expected one JSON value"):
        next(rows)


def test_one_writer_at_a_time(tmp_path):
    lock = tmp_path / "new" / ".x.lock"
    code = (
        "import sys, time; from glimmer.files import sole_writer\n"
        f"with sole_writer({str(lock)!r}):\n    print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(GlimmerError, match=f"process {other.pid} on .*is writing here already"):
            with sole_writer(lock):
                raise AssertionError
    finally:
        other.kill()  # as the kernel does it: nothing is cleaned up
        other.communicate()
    assert lock.exists()
    with sole_writer(lock):
        assert f"process {os.getpid()} on" in lock.read_text()
    assert not lock.exists()


def test_writers_in_turn_never_overlap(tmp_path):
    """Many processes that take and give up one lock: a counter that they share stays right."""
    code = (
        "import sys; from pathlib import Path; from glimmer.errors import GlimmerError\n"
        "from glimmer.files import sole_writer\n"
        "done, count = 0, Path(sys.argv[1]) / 'count'\n"
        "while done < 30:\n"
        "    try:\n"
        "        with sole_writer(Path(sys.argv[1]) / '.lock'):\n"
        "            count.write_text(str(int(count.read_text()) + 1)); done += 1\n"
        "    except GlimmerError:\n        pass\n"
    )
    (tmp_path / "count").write_text("0")
    workers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [worker.wait(120) for worker in workers] == [0] * 4
    assert (tmp_path / "count").read_text() == "120"
