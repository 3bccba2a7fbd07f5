"""TitanRL's `Controller.Config` from a job: every number is the config's, none stands here.

What is fixed, and why:
- bfloat16 in the generator and in the trainer's forward pass, float32 master weights: the two
  sides can then agree bit for bit.
- weight decay 0 and a constant rate after warm-up, as in the local engine.
- groups with equal rewards are kept: dropped, a step would wait for others, without end when all
  are equal.
- no seed for the engine as a whole: a fixed one gave every group the same completions. Each
  request gets its own (`controller.py`).
- TitanRL's own validation is off: its iterator goes on where it stopped, so that two passes score
  different questions. Ours is paired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glimmer.errors import ConfigError
from glimmer.renderer.config import MuseGlimmerRendererConfig
from glimmer.renderer.load import template_knobs
from glimmer.renderer.titan import titan_config
from glimmer.search_r1.prompt import SEARCH_TOOL
from glimmer.search_r1.recipe import job_rollouter
from glimmer.training.job import Job
from glimmer.training.local.model import architecture, read_text_config
from glimmer.training.titan import CHECKPOINT_FOLDER
from glimmer.training.titan.host_adam import HostAdam

import torchtitan.models.muse_glimmer as muse_glimmer  # isort: skip
from torchtitan.components.checkpoint import CheckpointManager  # isort: skip
from torchtitan.components.loss import ChunkedLossWrapper  # isort: skip
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # isort: skip
from torchtitan.config import (  # isort: skip
    CommConfig,
    CompileConfig,
    DebugConfig,
    ParallelismConfig,
    TrainingConfig,
)
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # isort: skip
from torchtitan.experiments.rl.actors.generator import (  # isort: skip
    SamplingConfig,
    VLLMCudagraphConfig,
    VLLMGenerator,
)
from torchtitan.experiments.rl.actors.trainer import PolicyTrainer  # isort: skip
from torchtitan.experiments.rl.components.batcher import BatchConfig, Batcher  # isort: skip
from torchtitan.experiments.rl.components.training_sample_builder import (  # isort: skip
    TrainingSampleBuilder,
)
from torchtitan.experiments.rl.controller import (  # isort: skip
    AsyncLoopConfig,
    ValidationConfig,
)
from torchtitan.experiments.rl.losses import DAPOLoss  # isort: skip
from torchtitan.experiments.rl.models.vllm_registry import (  # isort: skip
    InferenceParallelismConfig,
)
from torchtitan.experiments.rl.observability.metrics import MetricsProcessor  # isort: skip

_RECOMPUTE = {"full": FullAC.Config, "selective": SelectiveAC.Config}


def model_spec(text: Mapping[str, Any], *, attention: str, context: int) -> Any:
    """torchtitan's `ModelSpec` for a `text_config`.

    Args:
        attention: `varlen` or `flex`.
        context: longest sequence of prompt and completion, in tokens.

    Raises:
        ConfigError: `context` is more than the model was made for.
    """
    if context > text["max_position_embeddings"]:
        raise ConfigError(
            f"titan.context: {context}, but the checkpoint's config.json allows at most "
            f"{text['max_position_embeddings']} positions. Lower it."
        )
    config = architecture(text, attention=attention, max_seq_len=context)
    base = muse_glimmer.model_registry("debugmodel", attn_backend=attention)
    return replace(base, flavor="checkpoint", model=config)


def controller_config(job: Job, *, config_class: type) -> Any:
    """The controller's config for a job.

    Args:
        config_class: `Controller.Config` or that of a subclass.

    Raises:
        DataError: the checkpoint's architecture is not one that torchtitan 0.3.0 builds.
    """
    training, search, titan = job.training, job.search, job.titan
    debug = DebugConfig(
        batch_invariant=titan["batch_invariant"],
        deterministic=titan["batch_invariant"],
        enable_structured_logging=False,
    )
    checkpoint = str(Path(job.checkpoint).resolve())
    recompute = _RECOMPUTE.get(titan["activation_checkpoint"])
    graphs = titan["cudagraph"] != "off"
    offpolicy = titan["offpolicy_steps"]
    optimizer = default_adamw(
        lr=training["learning_rate"], betas=(0.9, training["adam_beta2"]), weight_decay=0.0
    )
    if titan["adam_on_host"]:
        optimizer = HostAdam.Config(param_groups=optimizer.param_groups)
    return config_class(
        model_spec=model_spec(
            read_text_config(Path(job.checkpoint)),
            attention=titan["attention"],
            context=titan["context"],
        ),
        hf_assets_path=checkpoint,
        dump_folder=job.work,
        async_loop=AsyncLoopConfig(
            num_training_steps=training["steps"],
            num_prompts_per_train_step=training["prompts_per_step"],
            num_samples_per_prompt=training["samples_per_prompt"],
            target_offpolicy_steps=offpolicy,
            window_fraction=None if offpolicy == 0 else 0.3,
            validation=ValidationConfig(num_samples=0),
            batcher=Batcher.Config(
                batch=BatchConfig(
                    local_batch_size=titan["rows_per_batch"], seq_len=titan["context"]
                )
            ),
            training_sample_builder=TrainingSampleBuilder.Config(drop_zero_std_reward_groups=False),
        ),
        compile=CompileConfig(enable=False),
        rollouter=job_rollouter(job),
        renderer=titan_config(
            MuseGlimmerRendererConfig(**template_knobs(job.renderer), media="refused").with_tools(
                [SEARCH_TOOL]
            )
        ),
        metrics=MetricsProcessor.Config(console_log_keys_train=[], console_log_keys_validation=[]),
        trainer=PolicyTrainer.Config(
            optimizer=optimizer,
            lr_scheduler=LRSchedulersContainer.Config(
                warmup_steps=training["warmup_steps"], decay_type="linear", min_lr_factor=1.0
            ),
            training=TrainingConfig(steps=training["steps"], max_norm=training["max_grad_norm"]),
            parallelism=ParallelismConfig(
                data_parallel_shard_degree=titan["trainer_fsdp"],
                tensor_parallel_degree=titan["trainer_tp"],
                enable_sequence_parallel=False,
                spmd_backend="spmd_types",
            ),
            ac_config=recompute() if recompute else None,
            checkpoint=CheckpointManager.Config(
                enable=True,
                folder=CHECKPOINT_FOLDER,
                initial_load_in_hf=True,
                initial_load_path=checkpoint,
                interval=training["checkpoint_every"],
                keep_latest_k=max(2, training["keep_checkpoints"]),
                last_save_in_hf=True,
                last_save_model_only=True,
                export_dtype="bfloat16",
            ),
            # NCCL's own limit counts while ranks wait for the slowest one's part of a save.
            comm=CommConfig(
                init_timeout_seconds=titan["step_timeout_s"],
                train_timeout_seconds=titan["step_timeout_s"],
            ),
            debug=debug,
            loss=ChunkedLossWrapper.Config(
                num_chunks=titan["loss_chunks"],
                loss_fn=DAPOLoss.Config(
                    ratio_clip_low=training["ratio_clip_low"],
                    ratio_clip_high=training["ratio_clip_high"],
                ),
            ),
        ),
        generator=VLLMGenerator.Config(
            model_dtype="bfloat16",
            parallelism=InferenceParallelismConfig(
                data_parallel_degree=1, tensor_parallel_degree=titan["generator_tp"]
            ),
            checkpoint=CheckpointManager.Config(enable=False),
            gpu_memory_limit=titan["generator_memory_fraction"],
            max_num_batched_tokens=titan["generator_tokens_per_step"],
            cudagraph=VLLMCudagraphConfig(
                enable=graphs, mode=titan["cudagraph"] if graphs else "FULL"
            ),
            sampling=SamplingConfig(
                temperature=training["temperature"],
                top_p=1.0,
                max_tokens=search["max_new_tokens"],
            ),
            debug=debug,
        ),
    )
