"""Processes that start others: nothing of them outlives the one that asked for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time

import psutil

_GRACE_S = 20


def end_session(process: subprocess.Popen) -> None:
    """End every process of the session that `process` leads, politely, then not, and wait."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        members = session_members(process.pid)
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        deadline = time.monotonic() + _GRACE_S
        while members and time.monotonic() < deadline:
            process.poll()
            members = session_members(process.pid)
            time.sleep(0.2)
    process.wait()


def session_members(session: int) -> list[int]:
    """Process ids of a session that are not yet ended, whatever their process group."""
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            ended = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
            if not ended and os.getsid(pid) == session:
                members.append(pid)
    return members


def end_with_parent() -> None:
    """End this whole session once standard input closes: whoever started it is gone, killed or not,
    and nobody would free the GPUs."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        others = [pid for pid in session_members(os.getsid(0)) if pid != os.getpid()]
        for pid in [*others, os.getpid()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
