"""What a training run is, in plain values: for either engine, and as a JSON file between the
workflow's process and the GPU stack's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glimmer.files import read_json, write_json


@dataclass(frozen=True)
class Job:
    """One training run.

    Attributes:
        checkpoint: start, a folder in the released layout.
        work: folder of this run's checkpoints, metrics and logs (`checkpoints/<key>`).
        tensorboard: folder of its events.
        train_questions, heldout_questions: JSONL files.
        search_url: retrieval service, up to and including `/retrieve`.
        training, search, renderer, titan: config sections.
        search_token_env: environment variable that holds the service's token.
    """

    checkpoint: str
    work: str
    tensorboard: str
    train_questions: str
    heldout_questions: str
    search_url: str
    training: dict[str, Any]
    search: dict[str, Any]
    renderer: dict[str, Any]
    titan: dict[str, Any]
    search_token_env: str | None = None

    def write(self, path: Path) -> None:
        """Write the job file."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read a job file that `write` made."""
        return cls(**read_json(path))
