"""TitanRL's own launcher finds the recipe by module and function."""

from __future__ import annotations

import pytest

pytest.importorskip("monarch", reason="the GPU stack (envs/train) is not installed here")
pytest.importorskip("vllm", reason="the GPU stack (envs/train) is not installed here")

from test_titan_controller import STEPS, make_job  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402

from glimmer.errors import ConfigError  # noqa: E402

ARGUMENTS = ["--module", "glimmer.training.titan", "--config", "search_r1"]


def test_the_launcher_builds_the_jobs_config(tmp_path, monkeypatch):
    monkeypatch.setenv("GLIMMER_JOB", str(make_job(tmp_path, trainer_fsdp=3, trainer_tp=2)))
    config = ConfigManager().parse_args([*ARGUMENTS, "--async_loop.num_prompts_per_train_step=7"])
    assert config.async_loop.num_training_steps == STEPS
    assert config.async_loop.num_prompts_per_train_step == 7
    assert config.trainer.parallelism.data_parallel_shard_degree == 3
    assert config.trainer.parallelism.tensor_parallel_degree == 2
    assert type(config).__qualname__ == "Controller.Config"


def test_without_a_job_it_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("GLIMMER_JOB", raising=False)
    with pytest.raises(ConfigError, match=r"GLIMMER_JOB: found None, expected the path"):
        ConfigManager().parse_args(ARGUMENTS)
