"""The guards that stop a run, and rows that survive a kill."""

import pytest

from glimmer.errors import GlimmerError
from glimmer.training.metrics import MetricsFile, check_step

GOOD = {
    "step": 3,
    "grad_norm": 0.5,
    "searches": 1.0,
    "failed_searches": 0.0,
    "calls_written": 8.0,
    "crashed": 0.0,
}


def check(may_collapse=False, **changes):
    check_step({**GOOD, **changes}, rollouts=8, max_failed_fraction=0.25, may_collapse=may_collapse)


def test_a_good_step_passes():
    check()
    check(failed_searches=2.0)
    check(searches=0.0, calls_written=0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grad_norm": float("nan")}, "step 3: the gradient norm is nan.*learning_rate"),
        ({"failed_searches": 3.0}, "step 3: 3 of 8 searches failed.*max_failed_fraction"),
        ({"searches": 0.0}, "step 3: the model wrote 8 tool calls and none could be executed"),
        ({"crashed": 1.0}, "step 3: 1 of 8 rollouts crashed"),
    ],
)
def test_a_step_that_trains_on_something_else_stops_the_run(changes, message):
    with pytest.raises(GlimmerError, match=message):
        check(**changes)


def test_a_control_may_unlearn_its_calls():
    check(may_collapse=True, searches=0.0)


def test_rows_behind_the_checkpoint_and_half_a_line_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path, tmp_path / "board", steps_done=0)
    for step in (1, 2, 3):
        metrics.add({"step": step, "time": 0.0, "reward": step / 4})
    metrics.close()
    path.write_text(path.read_text() + '{"step": 4, "rew')
    again = MetricsFile(path, tmp_path / "board", steps_done=2)
    assert [row["step"] for row in again.rows] == [1, 2]
    again.add({"step": 3, "time": 0.0, "reward": 0.5})
    again.close()
    assert path.read_text().count("\n") == 3
