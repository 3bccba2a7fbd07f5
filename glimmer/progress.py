"""Progress of long stages as log lines with rate and ETA; readable in a terminal and in a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from tqdm import tqdm

from glimmer.logs import get_logger

logger = get_logger("progress")


class Progress:
    """Counts finished items and logs a line at most every `every_s` seconds, and a last one.

    A line a while suits several jobs in one terminal, where a redrawn bar would be torn.

    Args:
        total: items in all.
        what: what is being done, as the line's first words.
        unit: name of an item, for the rate.
        done: items finished by an earlier, interrupted run; they do not count towards the rate.
        every_s: seconds between two lines.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        total: int,
        what: str,
        *,
        unit: str = "it",
        done: int = 0,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.what, self.unit, self.done = total, what, unit, done
        self._initial, self._every_s, self._clock = done, every_s, clock
        self._start = self._last = clock()

    def __enter__(self) -> Progress:
        if self._initial:
            logger.info("%s: resuming after %d of %d", self.what, self._initial, self.total)
        return self

    def update(self, n: int = 1, note: str = "") -> None:
        """Count `n` more finished items; `note` is appended to the line if one is due."""
        self.done += n
        now = self._clock()
        if now - self._last >= self._every_s or self.done >= self.total:
            self._last = now
            logger.info("%s", self.line(now, note))

    def line(self, now: float, note: str = "") -> str:
        """The text of one line: count, percentage, elapsed and remaining time, rate."""
        meter = tqdm.format_meter(
            self.done,
            self.total,
            max(now - self._start, 1e-9),
            initial=self._initial,
            unit=self.unit,
            prefix=self.what,
            bar_format="{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} "
            "[{elapsed}, ETA {remaining}, {rate_fmt}]",
        )
        return f"{meter} {note}" if note else meter

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            logger.info("%s: stopped at %d of %d", self.what, self.done, self.total)
