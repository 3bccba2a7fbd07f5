"""The guards that stop a run, and rows that survive a kill."""

import pytest

from glimmer.errors import GlimmerError
from glimmer.operational import decisive
from glimmer.training.metrics import MetricsFile, best_step, check_step, check_trend

NO_COPY = {"wandb_project": None}
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
    metrics = MetricsFile(path, tmp_path / "board", steps_done=0, settings=NO_COPY)
    for step in (1, 2, 3):
        metrics.add({"step": step, "time": 0.0, "reward": step / 4})
    metrics.close()
    path.write_text(path.read_text() + '{"step": 4, "rew')
    again = MetricsFile(path, tmp_path / "board", steps_done=2, settings=NO_COPY)
    assert [row["step"] for row in again.rows] == [1, 2]
    again.add({"step": 3, "time": 0.0, "reward": 0.5})
    again.close()
    assert path.read_text().count("\n") == 3


TREND = {
    "control": "none",
    "max_zero_variance_steps": 3,
    "max_reward_drop": 0.3,
    "reward_window": 2,
}


def rows(rewards, zero=()):
    """One row a reward; steps in `zero` have no group with two different rewards."""
    return [
        {"step": i, "reward": reward, "group_zero_std_frac": 1.0 if i in zero else 0.5}
        for i, reward in enumerate(rewards, 1)
    ]


def test_a_run_that_learns_passes_after_every_step():
    good = rows([0.1, 0.3, 0.2, 0.6, 0.5, 0.4, 0.45], zero=(1, 2, 4, 6))
    for end in range(len(good) + 1):
        check_trend(good[:end], TREND)


def test_no_variance_for_some_steps_stops_the_run():
    bad = rows([0.0] * 5, zero=(2, 3, 4, 5))
    check_trend(bad[:3], TREND)
    with pytest.raises(GlimmerError, match="step 4: in the last 3 steps.*max_zero_variance_steps"):
        check_trend(bad[:4], TREND)
    check_trend(bad, TREND | {"max_zero_variance_steps": None})
    check_trend(bad, TREND | {"control": "zero_advantages"})


def test_a_collapse_against_the_best_stops_the_run_and_names_it():
    bad = rows([0.2, 0.6, 0.7, 0.65, 0.1, 0.2])
    # Means of two steps: 0.4, 0.65, 0.675, 0.375, 0.15.
    check_trend(bad[:5], TREND | {"max_reward_drop": 0.31})
    with pytest.raises(GlimmerError, match=r"step 6: .*fallen to 0\.15, from 0\.68 at step 4"):
        check_trend(bad, TREND)
    check_trend(bad, TREND | {"max_reward_drop": None})
    check_trend(bad, TREND | {"control": "shuffled_rewards"})


def test_the_best_step_is_the_first_of_equal_ones():
    assert best_step(rows([0.1]), 2) is None
    assert best_step(rows([0.1, 0.5, 0.5, 0.5, 0.2]), 2) == 3
    assert best_step(rows([0.9, 0.1]), 1) == 1


def test_the_guards_make_no_stage_stale():
    assert decisive(TREND) == {"control": "none"}
