"""TitanRL's own launcher finds the recipe by module and function."""

from __future__ import annotations

import json

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
    assert config.trainer.comm.init_timeout_seconds == 60  # titan.step_timeout_s, not NCCL's 300
    assert type(config).__qualname__ == "Controller.Config"


def test_a_knob_that_is_null_is_the_templates_own(tmp_path, monkeypatch):
    path = make_job(tmp_path)
    job = json.loads(path.read_text())
    job["renderer"] |= {"knowledge_cutoff": None, "reasoning_strength": None}
    path.write_text(json.dumps(job))
    monkeypatch.setenv("GLIMMER_JOB", str(path))
    fields = ConfigManager().parse_args(ARGUMENTS).renderer.fields
    assert fields["current_date"] == job["renderer"]["current_date"]
    assert not {"knowledge_cutoff", "reasoning_strength"} & set(fields)


def test_without_a_job_it_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("GLIMMER_JOB", raising=False)
    with pytest.raises(ConfigError, match=r"GLIMMER_JOB: found None, expected the path"):
        ConfigManager().parse_args(ARGUMENTS)
