"""The batches of an evaluation, and the outputs that grow by them.

In: the chosen questions. Out: a JSON Lines file, one row a question, put in its place when it is
whole; and what a clock said of each question in a file of its own, since rows are reproducible and
times are not. Batches have a fixed composition, so a record does not depend on what ran beside it
or on where an interrupted run went on; the repeated passes have another order and smaller batches,
so that they show what composition does.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimmer.assets import Question
from glimmer.errors import DataError
from glimmer.files import atomic_path, whole_lines, write_jsonl
from glimmer.progress import Progress


@dataclass(frozen=True)
class Batch:
    """Questions that are answered together.

    Attributes:
        number: of the pass; 0 is the one that is compared.
        group: TitanRL's group id of the first question; the others follow.
        questions: at least one.
        samples: rollouts of each question.
        seed: of the sampling.
    """

    number: int
    group: int
    questions: list[Question]
    samples: int
    seed: int


@dataclass(frozen=True)
class Answered:
    """What became of a question: TitanRL's rollouts, and seconds from the start of its batch until
    the last of them ended."""

    rollouts: list[Any]
    seconds: float


def first_pass(questions: Sequence[Question], settings: Mapping[str, Any]) -> list[Batch]:
    """The pass that is compared: all questions in their order, `evaluation.samples` of each."""
    return _batches(
        questions, settings["batch"], number=0, samples=settings["samples"], seed=settings["seed"]
    )


def repeated_passes(questions: Sequence[Question], settings: Mapping[str, Any]) -> list[Batch]:
    """The further passes of `evaluation.repeats`, each over the same seeded subset of
    `evaluation.repeat_questions` in an order and with batches of its own, one sample a question."""
    count = settings["repeat_questions"]
    subset = list(questions)
    if count is not None and count < len(subset):
        places = random.Random(f"{settings['seed']}/repeats").sample(range(len(subset)), count)
        subset = [subset[place] for place in sorted(places)]
    batches: list[Batch] = []
    for number in range(1, settings["repeats"]):
        order = subset[:]
        random.Random(f"{settings['seed']}/repeats/{number}").shuffle(order)
        size = max(1, min(settings["batch"], len(order)) // (number + 1))
        seed = settings["seed"] + settings["samples"] * number
        batches += _batches(order, size, number=number, samples=1, seed=seed)
    return batches


def _batches(
    questions: Sequence[Question], size: int, *, number: int, samples: int, seed: int
) -> list[Batch]:
    return [
        Batch(number, start, list(questions[start : start + size]), samples, seed)
        for start in range(0, len(questions), size)
    ]


class Kept:
    """An output that grows batch by batch in a hidden file beside it and survives a kill.

    Args:
        out: the output; it appears whole, by `finish`.
        identity: of all that decides its rows; what another one left is not gone on with.
        batches: all of them, in order.
        timings: where what rows hold as "timing" goes, with their "id"; None drops it.

    Attributes:
        rows: of the batches that are there, in order.
    """

    def __init__(
        self, out: Path, identity: str, batches: Sequence[Batch], *, timings: Path | None = None
    ) -> None:
        self.out, self.timings = out, timings
        self.part = out.with_name(f".{out.name}.part")
        self.batches = list(batches)
        sizes = [len(batch.questions) for batch in self.batches]
        self.rows = finished(self.part, identity, sizes=sizes)
        self._total = sum(sizes)

    @property
    def missing(self) -> bool:
        return len(self.rows) < self._total

    def waiting(self) -> Iterator[Batch]:
        """The batches that are not there yet."""
        done = 0
        for batch in self.batches:
            done += len(batch.questions)
            if done > len(self.rows):
                yield batch

    async def fill(
        self,
        answer: Callable[[Batch], Awaitable[Sequence[Answered]]],
        to_row: Callable[[Question, Answered], tuple[dict, int, int]],
        allowed: float,
        *,
        what: str,
    ) -> None:
        """Answer the batches that are missing; `to_row` gives a question's line, its failed
        searches and its searches.

        Raises:
            GlimmerError: more failed searches in a batch than `allowed`.
        """
        from glimmer.search_r1.outcome import check_failed_searches

        if not self.missing:
            return
        with (
            open(self.part, "a", encoding="utf-8") as handle,
            Progress(self._total, what, unit="q", done=len(self.rows)) as progress,
        ):
            for batch in list(self.waiting()):
                answered = await answer(batch)
                fresh = [to_row(q, a) for q, a in zip(batch.questions, answered, strict=True)]
                check_failed_searches(
                    sum(failed for _, failed, _ in fresh),
                    sum(searches for _, _, searches in fresh),
                    allowed=allowed,
                    where=f"questions {batch.group + 1} to {batch.group + len(fresh)}"
                    + (f" of repeated pass {batch.number}" if batch.number else ""),
                )
                rows = [row | {"pass": batch.number} if batch.number else row for row, *_ in fresh]
                handle.write("".join(map(_line, rows)))
                handle.flush()
                os.fsync(handle.fileno())
                self.rows += rows
                progress.update(len(rows))

    def finish(self) -> None:
        """Put the whole output in its place, the timings before it."""
        if self.timings is not None:
            times = [{"id": row["id"]} | row.get("timing", {}) for row in self.rows]
            write_jsonl(self.timings, times)
        with atomic_path(self.out) as whole, open(whole, "w", encoding="utf-8") as handle:
            handle.writelines(
                _line({key: value for key, value in row.items() if key != "timing"})
                for row in self.rows
            )
        self.part.unlink()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def finished(part: Path, identity: str, *, sizes: Sequence[int]) -> list[Any]:
    """Records of the whole batches (of these sizes, in this order) that an interrupted run with
    this identity left; cuts the file back to them, or starts it anew."""
    header = json.dumps({"identity": identity}) + "\n"
    rows: list[Any] = []
    lines: list[Any] = []
    with contextlib.suppress(DataError):  # what stands before a damaged line counts
        lines.extend(whole_lines(part))
    if lines and lines[0] == {"identity": identity}:
        whole = 0
        for size in sizes:
            if whole + size > len(lines) - 1:
                break
            whole += size
        rows = lines[1 : 1 + whole]
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(header + "".join(map(_line, rows)), encoding="utf-8")
    return rows
