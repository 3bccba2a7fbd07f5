"""Real DAGs: a copy of the tracked files, run by Snakemake in processes of their own."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "run": "t",
    "cache": {"folder": None},  # most tests want work to be done
    "corpus": {"source": "world"},
    "questions": {"source": "world"},
    "embedding": {"batch_size": 8},
    "recall": {"queries": 20, "choose": "smallest"},
    "ceiling": {"questions": 20},
    "training": {
        "steps": 2,
        "prompts_per_step": 4,
        "samples_per_prompt": 4,
        "checkpoint_every": 1,
    },
    "parity": {"prompts": 4},
    "evaluation": {"questions": 12, "batch": 6, "repeat_questions": 4},
    "leakage": {"min_similarity": None},
    "report": {"resamples": 200},
    "retrieval": {"token_env": "SEARCH_TOKEN"},
}
SECRETS = {"HF_TOKEN": "hf_NobodyMaySeeThis", "SEARCH_TOKEN": "NorThisOne"}


def small_world(folder: Path) -> None:
    """A fifth of the toy world, with the questions that it answers."""
    source = ROOT / "resources/toy_world"
    folder.mkdir()
    passages = (source / "corpus.jsonl").read_text().splitlines(keepends=True)[::5]
    text = "".join(passages)
    (folder / "corpus.jsonl").write_text(text)
    for name, count in (("train", 300), ("heldout", 80)):
        lines = (source / f"{name}.jsonl").read_text().splitlines(keepends=True)
        answered = [line for line in lines if json.loads(line)["golden_answers"][0] in text]
        (folder / f"{name}.jsonl").write_text("".join(answered[:count]))


def _files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    left_out = ("tests/", "docs/results")
    return [n for n in listed if n and not n.startswith(left_out) and (ROOT / n).is_file()]


class Workflow:
    """One copy of the project with its own results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def copy(cls, folder: Path, settings: dict, results: Path | None = None) -> "Workflow":
        """The project's tracked and new files; or all of another copy's, its results included."""
        if results is not None:
            shutil.copytree(results, folder, symlinks=True, dirs_exist_ok=True)
        else:
            for name in _files():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
            small_world(folder / "world")
        (folder / "mine.yaml").write_text(yaml.safe_dump(settings))
        return cls(folder)

    def command(self, *arguments: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "snakemake",
            "--configfile",
            "mine.yaml",
            "--nocolor",
            *arguments,
        ]

    @property
    def environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": str(self.folder), "HF_HUB_OFFLINE": "1"}
        return {**os.environ, **own, **SECRETS}

    def start(self, *arguments: str) -> subprocess.Popen:
        """Snakemake in a process group of its own, for tests that kill it."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run Snakemake to its end; its output. Asserts the exit status."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
        text = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, text[-4000:]
        return text

    def stale(self, *arguments: str) -> set[str]:
        """Names of the rules that a run would execute now, targets without work apart."""
        text = self.run("-n", *arguments)
        table = re.search(r"^job +count\n-+ .*\n((?:.+\n)+?)total ", text, re.M)
        names = {line.split()[0] for line in table.group(1).splitlines()} if table else set()
        return names - {"all", "train", "heldout_report"}

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new, 1))

    def configure(self, **sections) -> None:
        path = self.folder / "mine.yaml"
        settings = yaml.safe_load(path.read_text())
        for name, value in sections.items():
            if isinstance(value, dict):
                settings.setdefault(name, {}).update(value)
            else:
                settings[name] = value
        path.write_text(yaml.safe_dump(settings))


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Workflow:
    """A run of the whole pipeline; tests must leave it as it is and copy it instead.

    The first worker that needs one makes it, the others copy that.
    """
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    made = common / "finished-run"
    with open(common / "finished-run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (common / "finished-run.whole").exists():
            shutil.rmtree(made, ignore_errors=True)
            (made / "said.txt").write_text(Workflow.copy(made, SETTINGS).run())
            (common / "finished-run.whole").touch()
    return Workflow.copy(tmp_path_factory.mktemp("finished"), SETTINGS, results=made)


@pytest.fixture
def workflow(finished, tmp_path) -> Workflow:
    """A copy of the finished run, results included, to edit."""
    return Workflow.copy(tmp_path, SETTINGS, results=finished.folder)
