from __future__ import annotations

import logging

import pytest

from glimmer.progress import Progress


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(clock: Clock, seconds: float, steps: int, **more: object) -> Progress:
    with Progress(total=more.pop("total", 10), what="embed", clock=clock, **more) as progress:
        for _ in range(steps):
            clock.now += seconds
            progress.update()
    return progress


def test_lines_are_rare_and_the_last_one_comes(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="progress")
    run(clock, 1.0, 10, unit="passages")
    assert [line.split("%")[0].split()[-1] for line in caplog.messages] == ["50", "100"]


def test_rate_and_remaining_time(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="progress")
    run(clock, 5.0, 1, total=13, unit="passages")
    (line,) = caplog.messages
    # One in 5 s: twelve more take a minute.
    assert "embed" in line and "1/13" in line
    assert "00:05" in line and "ETA 01:00" in line and "passages" in line


def test_resumed_work_does_not_count_towards_the_rate(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="progress")
    run(clock, 10.0, 1, total=1002, done=1000)
    assert caplog.messages[0] == "embed: resuming after 1000 of 1002"
    assert "1001/1002" in caplog.messages[1] and "ETA 00:10" in caplog.messages[1]


def test_a_note_is_shown(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="progress")
    progress = Progress(total=2, what="train", clock=clock)
    clock.now += 6
    progress.update(note="reward 0.5")
    assert caplog.messages[0].endswith("reward 0.5")


def test_where_it_stopped(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="progress")
    with pytest.raises(ValueError), Progress(total=5, what="train", clock=clock) as progress:
        progress.update(2)
        raise ValueError
    assert caplog.messages[-1] == "train: stopped at 2 of 5"


def test_no_time_and_no_items(clock: Clock) -> None:
    assert "0/0" in Progress(total=0, what="x", clock=clock).line(clock.now)
    progress = Progress(total=3, what="x", clock=clock)
    progress.update(3)
    assert "100%" in progress.line(clock.now)
