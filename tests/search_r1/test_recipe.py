"""Advantages, the endless question iterator, and what a failed search does to them."""

import json

import pytest
from torchtitan.experiments.rl.rollout.types import (
    Rollout,
    RolloutGroup,
    RolloutStatus,
    RolloutTurn,
)
from torchtitan.experiments.rl.types import RolloutTurnID

from glimmer.errors import ConfigError
from glimmer.search_r1.recipe import QuestionDataset, SearchAdvantage


def group(rewards, failed=()):
    rollouts = []
    for i, reward in enumerate(rewards):
        turn = RolloutTurn(
            rollout_id=RolloutTurnID(group_id=0, rollout_id=i, turn_id=0),
            prompt_token_ids=[1],
            completion_token_ids=[2],
            completion_logprobs=[-1.0],
            env_rewards={"failed_searches": 1.0} if i in failed else {},
        )
        rollouts.append(
            Rollout(
                group_id=0,
                rollout_id=i,
                status=RolloutStatus.COMPLETED,
                turns=[turn],
                reward=reward,
            )
        )
    return RolloutGroup(group_id=0, rollouts=rollouts)


def test_advantages_are_centred_and_scaled_by_the_groups_spread():
    found = SearchAdvantage.Config(should_std_normalize=True).build()(group([1.0, 0.0, 0.0, 1.0]))
    assert found == pytest.approx([1.0, -1.0, -1.0, 1.0], abs=1e-5)
    plain = SearchAdvantage.Config(should_std_normalize=False).build()(group([1.0, 0.0]))
    assert plain == [0.5, -0.5]


def test_equal_rewards_teach_nothing():
    assert SearchAdvantage.Config(should_std_normalize=True).build()(group([1.0, 1.0])) == [0, 0]


def test_a_failed_search_counts_for_nothing():
    """Fault 2: a failing service must not be learnt from as if the answer had been wrong."""
    advantage = SearchAdvantage.Config(should_std_normalize=False).build()
    found = advantage(group([1.0, 0.0, 0.0], failed={2}))
    assert found == [0.5, -0.5, 0.0]
    assert advantage(group([0.0, 0.0], failed={0, 1})) == [0.0, 0.0]


def test_the_control_scales_every_advantage_to_zero():
    found = SearchAdvantage.Config(should_std_normalize=True, scale=0.0).build()(group([1.0, 0.0]))
    assert found == [0.0, 0.0]


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "q.jsonl"
    rows = [
        {"id": f"q{i}", "question": f"What is {i}?", "golden_answers": [str(i)]} for i in range(5)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def take(dataset, count):
    return [next(dataset).id for _ in range(count)]


def test_every_epoch_has_every_question_once_in_another_order(questions):
    found = take(QuestionDataset.Config(path=str(questions), seed=1).build(), 15)
    epochs = [found[:5], found[5:10], found[10:]]
    assert all(sorted(epoch) == [f"q{i}" for i in range(5)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_seeking_gives_the_order_of_an_undisturbed_run(questions):
    whole = take(QuestionDataset.Config(path=str(questions), seed=1).build(), 15)
    resumed = QuestionDataset.Config(path=str(questions), seed=1).build()
    resumed.seek(8)
    assert take(resumed, 7) == whole[8:]
    assert take(QuestionDataset.Config(path=str(questions), seed=2).build(), 15) != whole


def test_training_takes_the_named_data_sets_only(tmp_path):
    path = tmp_path / "q.jsonl"
    rows = [
        {"id": f"{name}/{i}", "question": f"{name} {i}?", "golden_answers": ["x"], "dataset": name}
        for name in ("nq", "hotpotqa")
        for i in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = QuestionDataset.Config(path=str(path), datasets=["hotpotqa"]).build()
    assert sorted(take(chosen, 3)) == ["hotpotqa/0", "hotpotqa/1", "hotpotqa/2"]
    assert len(QuestionDataset.Config(path=str(path)).build().questions) == 6
    with pytest.raises(ConfigError, match="training.datasets: found hotpot, expected among"):
        QuestionDataset.Config(path=str(path), datasets=["nq", "hotpot"]).build()
