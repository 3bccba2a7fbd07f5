"""`python -m glimmer.preflight.stack`, by the GPU stack's own Python: is it the locked one?

Compares the installed versions with `envs/train.in` and the git revisions with
`envs/train.git.txt`, and imports every module that the GPU engine reaches. No GPU is needed. Prints
one line for each problem; exits 1 if one of them is more than a warning. With --versions nothing is
imported, and the problems come as JSON: [[level, text], ...]. Levels: `refuse` and `warn`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ENVS = Path(__file__).resolve().parents[2] / "envs"
PYTHON = (3, 12)
# What the engine reaches, outermost last, so that the first name told is the cause.
MODULES = (
    "torch",
    "triton",
    "transformers",
    "renderers",
    "datasets",
    "monarch.actor",
    "batch_invariant_ops",
    "torchstore",
    "vllm",
    "vllm.model_executor.layers.batch_invariant",
    "torchtitan.models.muse_glimmer",
    "torchtitan.experiments.rl.actors.trainer",
    "torchtitan.experiments.rl.actors.generator",
    "torchtitan.experiments.rl.controller",
    "glimmer.training.titan.recipe",
    "glimmer.training.titan.actors",
    "glimmer.training.titan.controller",
)
_GIT = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+) @ git\+\S+@(?P<commit>[0-9a-f]{40})$")


def pinned(envs: Path = ENVS) -> dict[str, str]:
    """Distribution -> version, of the lines with == in `train.in`."""
    lines = (envs / "train.in").read_text(encoding="utf-8").splitlines()
    return dict(line.strip().split("==") for line in lines if "==" in line and line[:1] != "#")


def pinned_commits(envs: Path = ENVS) -> dict[str, str]:
    """Distribution -> commit, of `train.git.txt`."""
    lines = (envs / "train.git.txt").read_text(encoding="utf-8").splitlines()
    return {m["name"]: m["commit"] for m in map(_GIT.match, lines) if m}


def wrong_versions(
    wanted: dict[str, str], version: Callable[[str], str] = importlib.metadata.version
) -> Iterator[tuple[str, str]]:
    """A line for each distribution that is missing or of another version (+cpu does not count)."""
    for name, expected in wanted.items():
        try:
            found = version(name)
        except importlib.metadata.PackageNotFoundError:
            yield "refuse", f"{name}: not installed, expected {expected}"
            continue
        if found.partition("+")[0] != expected:
            yield "refuse", f"{name}: found {found}, expected {expected}"


def wrong_commits(
    wanted: dict[str, str], record: Callable[[str], dict | None]
) -> Iterator[tuple[str, str]]:
    """A line for each distribution that pip did not install from the pinned commit.

    A copy without a record of git (from a folder or a package index) may be the right one, so it
    is a warning.
    """
    for name, commit in wanted.items():
        try:
            found = record(name)
        except importlib.metadata.PackageNotFoundError:
            yield "refuse", f"{name}: not installed, expected git commit {commit}"
            continue
        installed = ((found or {}).get("vcs_info") or {}).get("commit_id")
        if installed is None:
            yield "warn", f"{name}: found no git commit on record, expected {commit}"
        elif installed != commit:
            yield "refuse", f"{name}: found commit {installed}, expected {commit}"


def direct_url(name: str) -> dict | None:
    """pip's record of where a distribution came from (PEP 610)."""
    text = importlib.metadata.distribution(name).read_text("direct_url.json")
    return json.loads(text) if text else None


def failed_imports(modules: tuple[str, ...] = MODULES) -> Iterator[tuple[str, str]]:
    """A line for each module that cannot be imported; what imports print is swallowed."""
    for name in modules:
        noise = io.StringIO()
        try:
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                importlib.import_module(name)
        except BaseException as error:  # a module may call sys.exit or fail in any other way
            told = f"{type(error).__name__}: {_first_line(error)}"
            yield "refuse", f"{name}: cannot be imported ({told})"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0][:200]


def problems(*, imports: bool) -> list[tuple[str, str]]:
    """(level, text) of everything that is wrong with the running Python's environment."""
    found = []
    if sys.version_info[:2] != PYTHON:
        here, wanted = (".".join(map(str, v)) for v in (sys.version_info[:2], PYTHON))
        found.append(("refuse", f"Python: found {here}, expected {wanted}"))
    found += wrong_versions(pinned())
    found += wrong_commits(pinned_commits(), direct_url)
    if imports:
        found += failed_imports()
    return found


def main(argv: list[str]) -> int:
    """Print the problems; 1 if one is more than a warning."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    versions_only = "--versions" in argv
    found = problems(imports=not versions_only)
    if versions_only:
        print(json.dumps(found))
    else:
        for level, text in found:
            print(f"{level}: {text}")
        print(f"{len(MODULES)} modules, {len(found)} problems")
    return int(any(level == "refuse" for level, _ in found))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # some of these libraries hang or abort at a plain exit
