"""A result that is damaged unseen is refused; an edited, copied or unsealed one is not."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimmer.errors import IntegrityError
from glimmer.seal import check_seals, seal


def put(path, data, times):
    path.write_bytes(data)
    os.utime(path, ns=times)


@given(data=st.binary(min_size=1, max_size=200), bit=st.integers(0, 1599), cut=st.integers(0, 199))
def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path_factory, data, bit, cut):
    path = tmp_path_factory.mktemp("sealed") / "a b.json"
    path.write_bytes(data)
    seal(path)
    check_seals([path])
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    flipped = bytearray(data)
    flipped[bit // 8 % len(data)] ^= 1 << bit % 8
    for hurt in (bytes(flipped), data[: cut % len(data)]):
        put(path, hurt, times)
        with pytest.raises(IntegrityError, match=r"a b\.json: found sha256 .*damaged since"):
            check_seals([path])
    put(path, data, times)
    check_seals([str(path)])


def test_another_file_is_not_judged(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    check_seals([path, tmp_path / "absent"])  # no seal
    seal(path)
    made = path.stat().st_mtime_ns
    path.write_text("edited")
    for later, judged in ((0, True), (60, True), (61, False), (-1, False)):  # seconds
        os.utime(path, ns=(made, made + later * 10**9))
        with pytest.raises(IntegrityError) if judged else contextlib.nullcontext():
            check_seals([path])
    (tmp_path / ".x.json.seal").unlink()
    check_seals([path])
    seal(path)
    shutil.copyfile(path, tmp_path / "y.json")
    shutil.copyfile(tmp_path / ".x.json.seal", tmp_path / ".y.json.seal")
    (tmp_path / "y.json").write_text("other")
    os.utime(tmp_path / "y.json", (2e9, 2e9))
    check_seals([tmp_path / "y.json"])


@pytest.mark.parametrize(
    "hurt", [b"", b"{", b"[]", b"{}", b"\xff", b'{"mtime_ns": "x", "sha256": 1}']
)
def test_a_damaged_seal_says_nothing(tmp_path, hurt):
    path = tmp_path / "x.json"
    path.write_text("{}")
    seal(path)
    (tmp_path / ".x.json.seal").write_bytes(hurt)
    check_seals([path])


def test_every_stage_holds_its_inputs_against_their_seals():
    scripts = (Path(__file__).parents[1] / "workflow_scripts").glob("*.py")
    texts = {path.name: path.read_text() for path in scripts}
    reading = {name for name, text in texts.items() if "snakemake.input" in text}
    assert len(reading) >= 14
    assert {n for n in reading if "\ncheck_seals(snakemake.input)\n" not in texts[n]} == set()
