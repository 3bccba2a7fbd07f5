"""The audit without a network, against records whose answers stand in OSV's own rules."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("audit", ROOT / "envs/audit.py")
audit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(audit)

RANGE = [{"introduced": "2.0.0"}, {"fixed": "2.0.7"}, {"introduced": "0"}, {"fixed": "1.26.18"}]


def record(name="Some_Package", **affected):
    return {
        "id": "PYSEC-1",
        "aliases": ["CVE-1"],
        "affected": [{"package": {"ecosystem": "PyPI", "name": name}, **affected}],
    }


def ranged(events):
    return record(ranges=[{"type": "GIT", "events": []}, {"type": "ECOSYSTEM", "events": events}])


@pytest.mark.parametrize(
    ("version", "hurt"),
    [
        ("0.1", True),
        ("1.26.17", True),
        ("1.26.18", False),
        ("1.27", False),
        ("2.0.0", True),
        ("2.0.6.post1", True),
        ("2.0.7rc1", True),
        ("2.0.7", False),
    ],
)
def test_ranges_in_any_order(version, hurt):
    assert audit.affects(ranged(RANGE), "some-package", Version(version)) is hurt
    assert not audit.affects(ranged(RANGE), "another", Version(version))


@pytest.mark.parametrize(("version", "hurt"), [("1.5", True), ("1.6", True), ("1.6.1", False)])
def test_a_last_affected_version_is_itself_affected(version, hurt):
    found = audit.affects(
        ranged([{"introduced": "1.5"}, {"last_affected": "1.6"}]), "some-package", Version(version)
    )
    assert found is hurt


def test_versions_named_one_by_one():
    named = record(versions=["0.9", "1.0", "not a version"])
    assert audit.affects(named, "some-package", Version("1.0.0"))
    assert not audit.affects(named, "some-package", Version("1.1"))


def test_as_a_command(tmp_path, capsys):
    lock = tmp_path / "lock.txt"
    lock.write_text("# a lock\nsome.package==1.0 \\\n    --hash=sha256:00\nother==2.0 ; x\n")
    folder = tmp_path / "vulns/some-package"
    folder.mkdir(parents=True)
    assert audit.main(["--advisories", str(tmp_path), str(lock)]) == 2
    withdrawn = record(versions=["1.0"]) | {"withdrawn": "2024-01-01T00:00:00Z"}
    (folder / "PYSEC-2.yaml").write_text(yaml.safe_dump(withdrawn | {"id": "PYSEC-2"}))
    (folder / "PYSEC-3.yaml").write_text(yaml.safe_dump(record("other", versions=["1.0"])))
    assert audit.main(["--advisories", str(tmp_path), str(lock)]) == 0
    (folder / "PYSEC-1.yaml").write_text(yaml.safe_dump(record(versions=["1.0"])))
    capsys.readouterr()
    assert audit.main(["--advisories", str(tmp_path), str(lock)]) == 1
    said = capsys.readouterr().out
    assert "some-package==1.0: PYSEC-1, CVE-1" in said and "PYSEC-2" not in said


@pytest.mark.parametrize("name", ["workflow", "train"])
def test_the_locks_can_be_read(name):
    """As many packages as the lock has lines with a version."""
    path = ROOT / f"envs/{name}.txt"
    lines = [line for line in path.read_text().splitlines() if "==" in line and line[0] not in "# "]
    assert len(audit.locked(path)) == len(lines) > 150


def test_the_command_finds_what_is_planted_in_every_lock(tmp_path, capsys):
    """An advisory for the first and one for the last package of each lock, and none for others."""
    locks = [ROOT / "envs/workflow.txt", ROOT / "envs/train.txt"]
    assert set(locks) == {p for p in (ROOT / "envs").glob("*.txt") if p.name != "train.git.txt"}
    planted = set()
    for lock in locks:
        packages = list(audit.locked(lock).items())
        for name, version in (packages[0], packages[-1]):
            planted.add((lock, name, version))
            text = yaml.safe_dump(record(name, versions=[str(version)]))
            (tmp_path / f"{lock.stem}-{name}.yaml").write_text(text)
    assert audit.main(["--advisories", str(tmp_path), *map(str, locks)]) == 1
    said = capsys.readouterr().out
    for lock, name, version in planted:
        assert f"{lock}: {name}=={version}: PYSEC-1, CVE-1\n" in said
    for line in (ROOT / "envs/train.git.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"\S+ @ git\+https://\S+@[0-9a-f]{40}", line)


def test_the_conda_environment_is_the_lock():
    (listed,) = (
        part["pip"]
        for part in yaml.safe_load((ROOT / "envs/workflow.yaml").read_text())["dependencies"]
        if isinstance(part, dict)
    )
    lines = (ROOT / "envs/workflow.txt").read_text().splitlines()
    assert listed == [line for line in lines if "==" in line and not line.startswith("#")]
