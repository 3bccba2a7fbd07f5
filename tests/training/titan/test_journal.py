"""Where a resumed run goes on: each question once, whatever order groups were done in."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimmer.errors import GlimmerError
from glimmer.files import read_jsonl
from glimmer.training.titan.journal import Journal, RecordingBatcher, RecordingBuilder


def group(number: int, *, rollouts: int = 2, trainable: bool = True) -> SimpleNamespace:
    return SimpleNamespace(group_id=number, rollouts=[None] * rollouts, trainable=trainable)


class Loop:
    """What TitanRL's batcher loop does with groups: a batch once `size` are trainable."""

    def __init__(self, journal: Journal, size: int) -> None:
        self.journal, self.size, self.held = journal, size, []
        self.builder = RecordingBuilder(self, journal)
        self.batcher = RecordingBatcher(self, journal)

    def build_from_group(self, *, rollout_group):
        return rollout_group

    def add_training_samples(self, *, training_sample_group):
        self.held.append(training_sample_group)
        if sum(g.trainable for g in self.held) < self.size:
            return None
        batch, self.held = self.held, []
        return batch

    def give(self, one: SimpleNamespace):
        self.journal.questions.setdefault(one.group_id, f"question {one.group_id}")
        built = self.builder.build_from_group(rollout_group=one)
        return self.batcher.add_training_samples(training_sample_group=built)


def ids(groups) -> list[int]:
    return [g.group_id for g in groups]


def test_a_step_is_the_batch_that_was_packed_for_it(tmp_path):
    """A group whose rollouts gave nothing to learn from does not count, and is behind the run."""
    journal = Journal(tmp_path / "groups.jsonl")
    journal.resume(0)
    loop = Loop(journal, 2)
    given = [group(0), group(1, trainable=False), group(2, trainable=False), group(3)]
    given += [group(4), group(5)]
    packed = [batch for one in given if (batch := loop.give(one))]
    assert list(map(ids, packed)) == [[0, 1, 2, 3], [4, 5]], "the second waits behind the first"
    groups, questions = journal.close_step(1)
    assert ids(groups) == [0, 1, 2, 3]
    assert questions == [f"question {i}" for i in range(4)]
    assert journal.consumed == 4
    assert ids(journal.close_step(2)[0]) == [4, 5]
    assert journal.questions == {}


def test_a_group_that_failed_as_a_whole_stops_the_run(tmp_path):
    """TitanRL logs what was raised and goes on without the group: its question would be skipped."""
    journal = Journal(tmp_path / "groups.jsonl")
    journal.resume(0)
    with pytest.raises(GlimmerError, match=r"rollouts of group 3 failed as a whole.*titan\.log"):
        Loop(journal, 2).give(group(3, rollouts=0))


def test_out_of_order_groups_are_neither_repeated_nor_left_out(tmp_path):
    path = tmp_path / "groups.jsonl"
    journal = Journal(path)
    journal.resume(0)
    loop = Loop(journal, 2)
    for number in (1, 4, 0, 2):  # 3 was under way all the time
        loop.give(group(number))
    journal.close_step(1)
    journal.close_step(2)
    later = Journal(path)
    later.resume(2)
    assert (later.position, later.ahead, later.consumed) == (3, {4}, 4)
    assert list(itertools.islice(later.left(), 3)) == [3, 5, 6]
    # Back at an earlier checkpoint: the step after it is made again, with its groups.
    earlier = Journal(path)
    earlier.resume(1)
    assert list(itertools.islice(earlier.left(), 4)) == [0, 2, 3, 5]
    assert [row["step"] for _, row in read_jsonl(path)] == [1]


def test_a_line_that_a_kill_cut_is_of_a_step_that_is_not_finished(tmp_path):
    path = tmp_path / "groups.jsonl"
    path.write_text('{"step": 1, "groups": [0, 1]}\n{"step": 2, "gro')
    journal = Journal(path)
    journal.resume(1)
    assert journal.position == 2
    assert path.read_text() == '{"step": 1, "groups": [0, 1]}\n'


@pytest.mark.parametrize("text", [None, '{"step": 2, "groups": [2]}\n'])
def test_a_file_without_a_finished_step_is_refused(tmp_path, text):
    path = tmp_path / "groups.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(GlimmerError, match=r"groups\.jsonl: found \d steps up to step 2.*Delete"):
        Journal(path).resume(2)


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.integers(0, 5))
def test_every_question_once_over_any_kills(tmp_path_factory, seed, size, window, kills):
    """Whatever order a window allows and wherever a run is killed, no step repeats a question, and
    what is left out below the last one is what was waiting or in a batch not yet whole."""
    path = tmp_path_factory.mktemp("journal") / "groups.jsonl"
    draw = random.Random(seed)
    done, trained = 0, []
    for _ in range(kills + 1):
        journal = Journal(path)
        journal.resume(done)
        loop, left = Loop(journal, size), journal.left()
        waiting = [next(left) for _ in range(window)]
        for _ in range(draw.randrange(12)):
            one = draw.choice(waiting)
            waiting.remove(one)
            waiting.append(next(left))
            if loop.give(group(one)):
                done += 1
                trained += ids(journal.close_step(done)[0])
    assert len(set(trained)) == len(trained) == done * size
    assert journal.consumed == len(trained)
    assert not trained or max(trained) < len(trained) + window + size
