"""For TitanRL's own launcher, which finds a recipe by the name of a function in a module:

    GLIMMER_JOB=results/<run>/training/checkpoints/<key>/job.json \\
        python -m torchtitan.experiments.rl.train --module glimmer.training.titan --config search_r1

The job file is what `rule grpo` writes; its `search_url` must be that of a running retrieval
service. Launched so, the stock controller trains by the same numbers, without this project's
guards, weight digests, per-request seeds and log.
"""

from __future__ import annotations

import os
from pathlib import Path

from glimmer.errors import ConfigError
from glimmer.training.job import Job
from glimmer.training.titan import compat

compat.apply()

from torchtitan.experiments.rl.controller import Controller  # noqa: E402

from glimmer.training.titan.recipe import controller_config  # noqa: E402

JOB = "GLIMMER_JOB"


def search_r1() -> Controller.Config:
    """The controller's config of the job file that GLIMMER_JOB names.

    Raises:
        ConfigError: the variable is not set, or names no file.
    """
    path = os.environ.get(JOB)
    if not path or not Path(path).is_file():
        raise ConfigError(
            f"{JOB}: found {path!r}, expected the path of a job file, as rule grpo writes it to "
            "results/<run>/training/checkpoints/<key>/job.json."
        )
    return controller_config(Job.read(Path(path)), config_class=Controller.Config)
