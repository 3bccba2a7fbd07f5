"""One logger for the whole project, to the terminal and to a rule's log file."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from pathlib import Path

from glimmer.errors import GlimmerError
from glimmer.files import disk_reason

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; `setup` decides where its lines go."""
    return logging.getLogger(name)


def setup(log: Path | str | None = None, *, level: int = logging.INFO) -> None:
    """Send log lines to stderr and, if given, to the file `log`; route uncaught exceptions there.

    A `GlimmerError` is shown on the terminal as its message alone, with the traceback only in the
    file: it is about the input, not about the code. So is a full disk or a missing permission.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    formatter = logging.Formatter(_FORMAT, datefmt="%H:%M:%S")
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(formatter)
    root.addHandler(terminal)
    if log is not None:
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        Path(log).write_bytes(b"")
        # vLLM's import configures logging anew, which closes every handler; one that appends opens
        # its file again.
        file_handler = logging.FileHandler(log, mode="a", encoding="utf-8")
        file_handler.setFormatter(formatter)
        root.addHandler(file_handler)
    root.setLevel(level)
    for chatty in (
        "httpx",
        "urllib3",
        "filelock",
        "sentence_transformers",
        "aiohttp.access",
        "faiss.loader",
    ):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    def report(kind, value, trace):
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, value, trace)
            return
        text = "".join(traceback.format_exception(kind, value, trace))
        if log is not None:
            with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as handle:
                handle.write(text)
        reason = disk_reason(value) if isinstance(value, OSError) else None
        if issubclass(kind, GlimmerError):
            print(f"{kind.__name__}: {value}", file=sys.stderr)
        elif reason is not None:
            print(
                f"{kind.__name__}: {value.filename or 'a file'}: {reason}, and run again; what is "
                "finished is kept.",
                file=sys.stderr,
            )
        else:
            sys.stderr.write(text)

    sys.excepthook = report


def last_lines(log: Path, count: int = 15) -> str:
    """What another process last wrote to its log, for an error's message. The frames of a crash in
    C++ are left out: they are many, and what went wrong stands above them."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line for line in lines if line.strip() and not line.startswith("frame #")]
    return "\n".join(told[-count:])
