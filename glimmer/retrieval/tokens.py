"""Passages -> token ids, ahead of the one who embeds them, in this process or in others.

    python -m glimmer.retrieval.tokens     a worker process; see `TokeniserPool`

A worker's streams carry frames: 8 bytes with the payload's length, little-endian, then the payload.
    in    1st: JSON {"tokenizer", "max_length", "prefix", "corpus"}; then one a request:
          int64 [m + 2], the row of the first passage and the m + 1 offsets of the passages
    out   one a request: b"T", int64 [2] (passages, passages cut), int32 lengths, int32 ids;
          or b"E" and a message: a line is no passage
A worker ends when its standard input does, so also when the process that started it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

import glimmer
from glimmer.errors import DataError, GlimmerError
from glimmer.retrieval.passages import read_contents


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of n texts, one behind the other.

    Attributes:
        ids: int32 [sum of lengths], special tokens included.
        lengths: int32 [n].
        truncated: texts that were cut.
    """

    ids: np.ndarray
    lengths: np.ndarray
    truncated: int

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """int64 [n]: text i is ids[starts[i] : starts[i] + lengths[i]]."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @staticmethod
    def joined(parts: Sequence[Tokens]) -> Tokens:
        return Tokens(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            sum(part.truncated for part in parts),
        )


class Tokeniser:
    """A fast tokenizer (of the package tokenizers) with a maximum length.

    Args:
        definition: tokenizer.json as text.
        max_length: tokens after which a text is cut, special tokens included.
    """

    def __init__(self, definition: str, *, max_length: int) -> None:
        from tokenizers import Tokenizer

        self.definition, self.max_length = definition, max_length
        self._tokenizer = Tokenizer.from_str(definition)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)

    def __call__(self, texts: Sequence[str], *, prefix: str = "") -> Tokens:
        """Tokens of `prefix` + text, for each text."""
        encodings = self._tokenizer.encode_batch_fast([prefix + text for text in texts])
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        return Tokens(
            np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())),
            lengths,
            sum(bool(encoding.overflowing) for encoding in encodings),
        )


class TokeniserPool:
    """Tokenises passages of a corpus ahead of their use; a context manager.

    Args:
        corpus: the JSONL file.
        tokeniser: what it is tokenised by.
        prefix: put before every passage.
        workers: processes; 0 uses a thread of this one.
    """

    def __init__(
        self, corpus: Path, tokeniser: Tokeniser, *, prefix: str = "", workers: int = 0
    ) -> None:
        self._corpus, self._tokeniser, self._prefix = Path(corpus), tokeniser, prefix
        self._file: IO[bytes] = open(corpus, "rb")
        self._threads = ThreadPoolExecutor(max(1, workers), thread_name_prefix="tokenise")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        if workers:
            self._start_workers(workers)

    def submit(self, first: int, offsets: np.ndarray) -> Future[Tokens]:
        """Begin with the passages that lie at `offsets` (int64 [m + 1]) and start at row `first`.

        The future raises `DataError` if a line is no passage.
        """
        ask = self._ask if self._processes else self._here
        return self._threads.submit(ask, first, offsets)

    def _here(self, first: int, offsets: np.ndarray) -> Tokens:
        return self._tokeniser(read_contents(self._file, offsets, first), prefix=self._prefix)

    def _ask(self, first: int, offsets: np.ndarray) -> Tokens:
        process = self._idle.get()
        try:
            _send(process.stdin, np.int64(first).tobytes(), offsets.astype("<i8").tobytes())
            answer = _receive(process.stdout)
        except OSError:
            answer = None
        self._idle.put(process)
        if not answer:
            raise GlimmerError(
                f"a tokeniser process (id {process.pid}) ended with status {process.wait()}, "
                f"expected an answer. Was it killed for memory? Run again with fewer "
                f"embedding.threads; what is finished is kept."
            )
        if answer[:1] == b"E":
            raise DataError(answer[1:].decode())
        count, truncated = np.frombuffer(answer, "<i8", 2, 1).tolist()
        lengths = np.frombuffer(answer, "<i4", count, 17)
        return Tokens(np.frombuffer(answer, "<i4", -1, 17 + 4 * count), lengths, truncated)

    def _start_workers(self, count: int) -> None:
        setup = {
            "tokenizer": self._tokeniser.definition,
            "max_length": self._tokeniser.max_length,
            "prefix": self._prefix,
            "corpus": str(self._corpus),
        }
        paths = [str(Path(glimmer.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            # One core a worker: threads of its own would fight for those of the others.
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
        }
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-m", "glimmer.retrieval.tokens"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            self._processes.append(process)
            _send(process.stdin, json.dumps(setup).encode())
            self._idle.put(process)

    def __enter__(self) -> TokeniserPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A worker that is at work would keep its thread waiting, and with it this process.
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True)
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            process.wait()
        self._file.close()


def _send(stream: IO[bytes], *parts: bytes) -> None:
    stream.write(struct.pack("<q", sum(map(len, parts))))
    for part in parts:
        stream.write(part)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """The next frame's payload; None if the stream ended before it did."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (length,) = struct.unpack("<q", head)
    payload = stream.read(length)
    return payload if len(payload) == length else None


def work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more; see the module."""
    setup = json.loads(_receive(requests) or b"null")
    if setup is None:
        return
    tokeniser = Tokeniser(setup["tokenizer"], max_length=setup["max_length"])
    with open(setup["corpus"], "rb") as corpus:
        while request := _receive(requests):
            numbers = np.frombuffer(request, "<i8")
            try:
                texts = read_contents(corpus, numbers[1:], int(numbers[0]))
            except DataError as error:
                _send(answers, b"E", str(error).encode())
                continue
            tokens = tokeniser(texts, prefix=setup["prefix"])
            counts = np.array([len(tokens), tokens.truncated], "<i8")
            _send(
                answers,
                b"T",
                counts.tobytes(),
                tokens.lengths.astype("<i4").tobytes(),
                tokens.ids.astype("<i4").tobytes(),
            )


if __name__ == "__main__":
    # Ctrl-C reaches the whole group; the one who asked ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)
