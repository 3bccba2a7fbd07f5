"""The check of the GPU stack's environment, and the files that make it."""

from __future__ import annotations

import importlib.metadata
import re
import sys

import pytest
import yaml

from glimmer.preflight import stack

LOCK = (stack.ENVS / "train.txt").read_text()


def test_the_lock_has_every_pin_and_a_hash_for_each_package():
    locked = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", LOCK, re.M))
    for name, version in stack.pinned().items():
        assert locked[name] == version
    blocks = re.split(r"^(?=[A-Za-z0-9])", re.sub(r"^#.*\n", "", LOCK, flags=re.M), flags=re.M)
    assert len([b for b in blocks if b]) == len(locked) > 200
    for block in filter(None, blocks):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]


def test_no_address_of_an_index_is_in_the_lock():
    assert "://" not in LOCK and "index" not in LOCK.replace("# ", "").split("\n")[0]


def test_the_pins_are_the_designs():
    wanted = {
        "torch": "2.13.0",
        "vllm": "0.28.0",
        "torchtitan": "0.3.0",
        "torchmonarch": "0.7.0",
        "renderers": "0.1.12",
    }
    assert stack.pinned().items() >= wanted.items()
    assert stack.pinned_commits() == {
        "torchstore": "5a4d5d3f4d653f2ed7cc913a66e49f822dfd6c1d",
        "batch_invariant_ops": "f22b1fbe534b1fe045080f44a970a441caaf3c4f",
    }


def test_conda_installs_the_same_lock():
    lock = LOCK.replace(" \\\n    ", " ").splitlines()
    conda = yaml.safe_load((stack.ENVS / "train.yaml").read_text())
    assert conda["dependencies"][-1]["pip"] == [line for line in lock if line[0] != "#"]


def test_conda_installs_the_same_commits():
    script = (stack.ENVS / "train.post-deploy.sh").read_text()
    lines = (stack.ENVS / "train.git.txt").read_text().splitlines()
    for line in lines:
        assert line.startswith("#") or f'"{line}"' in script


def test_wrong_and_missing_versions_are_named():
    def version(name: str) -> str:
        if name == "vllm":
            raise importlib.metadata.PackageNotFoundError(name)
        return {"torch": "2.13.0+cpu", "torchtitan": "0.3.1"}[name]

    wanted = {"torch": "2.13.0", "torchtitan": "0.3.0", "vllm": "0.28.0"}
    assert list(stack.wrong_versions(wanted, version)) == [
        ("refuse", "torchtitan: found 0.3.1, expected 0.3.0"),
        ("refuse", "vllm: not installed, expected 0.28.0"),
    ]


@pytest.mark.parametrize(
    ("record", "level", "told"),
    [
        ({"vcs_info": {"commit_id": "a" * 40}}, "refuse", f"found commit {'a' * 40}"),
        ({"dir_info": {}, "url": "file:///x"}, "warn", "no git commit on record"),
        (None, "warn", "no git commit on record"),
    ],
)
def test_another_commit_is_refused_and_an_unknown_one_warned_of(record, level, told):
    ((found, text),) = stack.wrong_commits({"torchstore": "b" * 40}, lambda _: record)
    assert found == level and told in text


def test_the_right_commit_passes():
    record = {"vcs_info": {"commit_id": "b" * 40}}
    assert list(stack.wrong_commits({"torchstore": "b" * 40}, lambda _: record)) == []


def test_a_module_that_fails_is_named_with_its_cause(tmp_path, monkeypatch):
    (tmp_path / "broken_one.py").write_text("print('noise')\nimport not_there\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = list(stack.failed_imports(("json", "broken_one", "leaving")))
    assert [level for level, _ in found] == ["refuse", "refuse"]
    assert (
        "broken_one: cannot be imported (ModuleNotFoundError: No module named 'not_there')"
        in (found[0][1])
    )
    assert "leaving: cannot be imported (SystemExit: 3)" in found[1][1]


def test_this_python_is_not_the_stack(capsys):
    if sys.version_info[:2] == stack.PYTHON:
        pytest.skip("this Python has the stack's version, so it cannot show a refusal of it")
    assert stack.main(["--versions"]) == 1
    assert "Python: found 3." in capsys.readouterr().out
