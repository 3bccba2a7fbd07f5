"""Starts the GPU engine's process, passes its log on, and ends it and its children in any case."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import glimmer
from glimmer.errors import ConfigError, GlimmerError
from glimmer.files import read_json, write_jsonl
from glimmer.logs import get_logger, last_lines
from glimmer.processes import end_session
from glimmer.training.job import Job

logger = get_logger(__name__)

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
CLOSING_S = 120.0
"""Seconds that an engine whose work is done has to end: its processes, and W&B's copy."""


def interpreter(titan: Mapping[str, Any]) -> str:
    """The Python that holds the GPU stack: `titan.python`, or this one.

    Raises:
        ConfigError: there is no such program.
    """
    chosen = titan["python"] or sys.executable
    if shutil.which(chosen) is None:
        raise ConfigError(
            f"titan.python: {chosen} is not a program. Build the GPU stack's environment "
            "(`make env-train`) and set titan.python to its bin/python."
        )
    return chosen


def environment() -> dict[str, str]:
    """The child's environment: this checkout's `glimmer`, and what keeps vLLM quiet and offline."""
    env = dict(os.environ)
    checkout = str(Path(glimmer.__file__).resolve().parent.parent)
    paths = [checkout, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault(ALLOCATOR, "expandable_segments:True")
    # FlashInfer compiles its sampler at first use, which wants a compiler on the host.
    env.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env.setdefault("HF_HUB_OFFLINE", "1")
    return env


def run_process(
    command: list[str],
    *,
    log: Path,
    alive: Path,
    setup_timeout_s: float,
    step_timeout_s: float,
    done: Path | None = None,
) -> int:
    """Run `command` in a session of its own until it ends; its output goes to `log` and, line by
    line, to ours.

    Args:
        alive: file that grows with each finished step.
        setup_timeout_s, step_timeout_s: longest time until the first step, and between two.
        done: file that says that all work is done; `CLOSING_S` later the process is ended.

    Returns:
        The exit status.

    Raises:
        GlimmerError: no step in the time allowed; the process and its children have been ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as handle:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end tells the child that we are gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
        pump = threading.Thread(target=_pass_on, args=(process.stdout, handle), daemon=True)
        pump.start()
        try:
            return _wait(process, alive, setup_timeout_s, step_timeout_s, log, done)
        finally:
            end_session(process)
            pump.join(timeout=5)


def _pass_on(stream: Any, handle: Any) -> None:
    """Every line to the log file; our own process's progress and warnings to the terminal too."""
    for line in stream:
        handle.write(line)
        handle.flush()
        text = line.decode("utf-8", "replace").rstrip()
        if " progress: " in text or " glimmer." in text:
            # Monarch names the actor; the controller is the root.
            logger.info("%s", text.split(": ", 1)[-1].removeprefix("[actor=<root>] "))


def _wait(process, alive: Path, setup_s: float, step_s: float, log: Path, done: Path | None) -> int:
    size, since, limit, key = _size(alive), time.monotonic(), setup_s + step_s, "setup"
    closing = None
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            pass
        if done is not None and done.exists():
            closing = closing or time.monotonic()
            if time.monotonic() - closing > CLOSING_S:
                logger.warning("the GPU engine is done and does not end; it is ended. Log: %s", log)
                return 0
            continue
        now = _size(alive)
        if now != size:
            size, since, limit, key = now, time.monotonic(), step_s, "step"
        if time.monotonic() - since > limit:
            raise GlimmerError(
                f"no training step for {limit:.0f} s (titan.{key}_timeout_s): the GPU engine hangs."
                f" Its log is {log}; run again to resume from the last checkpoint, or raise the "
                "timeout if steps are really this long."
            )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def train(job: Job, *, out: Path, log: Path) -> None:
    """Train a job and write `out/final/` and `out/metrics.jsonl`.

    Raises:
        ConfigError: no such interpreter.
        GlimmerError: the engine's own message, a hang, or its death with the log's place.
        UnreadableSave: its last save is damaged; the next run makes it again.
    """
    work = Path(job.work)
    done, failure = work / "trained.json", work / "failure.json"
    failure.unlink(missing_ok=True)
    if not done.exists():
        path = work / "job.json"
        job.write(path)
        status = run_process(
            [interpreter(job.titan), "-m", "glimmer.training.titan", str(path)],
            log=log,
            alive=work / "metrics.jsonl",
            setup_timeout_s=job.titan["setup_timeout_s"],
            step_timeout_s=job.titan["step_timeout_s"],
            done=done,
        )
        if not done.exists():
            raise GlimmerError(_reason(failure, status, log))
    from glimmer.training.titan.export import UnreadableSave, export

    saved = work / "checkpoint" / f"step-{job.training['steps']}"
    try:
        export(saved, Path(job.checkpoint), out / "final")
    except UnreadableSave:
        done.unlink()  # so that the next start makes the last steps, and the save, again
        raise
    rows = [json.loads(x) for x in (work / "metrics.jsonl").read_text().splitlines()]
    write_jsonl(out / "metrics.jsonl", rows)


def _reason(failure: Path, status: int, log: Path) -> str:
    """Why the process ended, in one message."""
    if failure.exists():
        told = read_json(failure)
        if told["known"]:
            return str(told["message"])
        return f"the GPU engine failed with {told['kind']}: {told['message']}. Its log: {log}"
    return (
        f"the GPU engine ended with status {status} and gave no reason (killed, or out of memory). "
        f"Its log, {log}, ends:\n{last_lines(log)}"
    )
