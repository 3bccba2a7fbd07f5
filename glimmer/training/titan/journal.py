"""Which groups each step trained on, kept beside the checkpoints: where a resumed run goes on.

Off-policy a group that is done early is trained on before an older one, so a count of groups says
not which are left. `groups.jsonl` has a line a step: {"step", "groups": [group ids]}, group k being
question k of the data order. A resumed run asks what no finished step trained on, in order.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glimmer.errors import GlimmerError
from glimmer.files import whole_lines, write_jsonl


class Journal:
    """What the controller's loops tell each other about groups.

    Attributes:
        questions: by group id, of groups under way.
        position: every group before it is in a finished step.
        ahead: groups from `position` on that are in a finished step.
    """

    def __init__(self, path: Path) -> None:
        """`path`: of groups.jsonl."""
        self._path = path
        self._held: list[Any] = []
        self._batches: deque[list[Any]] = deque()
        self.questions: dict[int, Any] = {}
        self.position = 0
        self.ahead: set[int] = set()

    @property
    def consumed(self) -> int:
        """Groups in finished steps."""
        return self.position + len(self.ahead)

    def resume(self, done: int) -> None:
        """Go on after step `done`; lines of later steps are dropped.

        Raises:
            GlimmerError: the file lacks one of the steps 1 to `done`.
        """
        rows = [row for row in whole_lines(self._path) if row["step"] <= done]
        if [row["step"] for row in rows] != list(range(1, done + 1)):
            raise GlimmerError(
                f"{self._path}: found {len(rows)} steps up to step {done}, expected one line for "
                f"each, to know which questions are left. Delete {self._path.parent} to start this "
                "run anew."
            )
        write_jsonl(self._path, rows)
        for row in rows:
            self._trained(row["groups"])

    def left(self) -> Iterator[int]:
        """Ids of the groups that no finished step trained on, as of now, without end."""
        known = frozenset(self.ahead)
        return (i for i in itertools.count(self.position) if i not in known)

    def take(self, group: Any) -> None:
        """The batcher is given this group."""
        self._held.append(group)

    def pack(self) -> None:
        """The batcher has made a batch of all groups that it held."""
        self._batches.append(self._held)
        self._held = []

    def close_step(self, step: int) -> tuple[list[Any], list[Any]]:
        """A step has trained on the oldest batch: noted on disk when this returns.

        Returns:
            its groups, and their questions.
        """
        groups = self._batches.popleft()
        ids = [group.group_id for group in groups]
        with open(self._path, "a", encoding="utf-8") as handle:
            handle.write(json.dumps({"step": step, "groups": ids}) + "\n")
        self._trained(ids)
        return groups, [self.questions.pop(i) for i in ids]

    def _trained(self, ids: list[int]) -> None:
        self.ahead.update(ids)
        while self.position in self.ahead:
            self.ahead.remove(self.position)
            self.position += 1


class RecordingBuilder:
    """A sample builder that shows the journal each group it is given."""

    def __init__(self, builder: Any, journal: Journal) -> None:
        self._builder, self._journal = builder, journal

    def build_from_group(self, *, rollout_group: Any) -> Any:
        if not rollout_group.rollouts:  # TitanRL goes on without a group that raised
            raise GlimmerError(
                f"the rollouts of group {rollout_group.group_id} failed as a whole; the traceback "
                "is in titan.log. Run again to resume from the last checkpoint."
            )
        self._journal.take(rollout_group)
        return self._builder.build_from_group(rollout_group=rollout_group)


class RecordingBatcher:
    """A batcher that tells the journal when it has made a batch, which holds all it was given."""

    def __init__(self, batcher: Any, journal: Journal) -> None:
        self._batcher, self._journal = batcher, journal

    def add_training_samples(self, *, training_sample_group: Any) -> Any:
        batch = self._batcher.add_training_samples(training_sample_group=training_sample_group)
        if batch is not None:
            self._journal.pack()
        return batch
