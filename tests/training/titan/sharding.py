"""torchtitan's model, built without memory and sharded as its trainer does it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torchtitan.models.muse_glimmer as muse_glimmer
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.distributed.parallel_dims import ParallelDims


def degrees(fsdp: int, tp: int) -> ParallelismConfig:
    return ParallelismConfig(
        data_parallel_shard_degree=fsdp,
        tensor_parallel_degree=tp,
        enable_sequence_parallel=False,
        spmd_backend="spmd_types",
    )


def on_meta(
    config: muse_glimmer.MuseGlimmerModel.Config,
    parallelism: ParallelismConfig,
    training: TrainingConfig,
) -> muse_glimmer.MuseGlimmerModel:
    """The model with its sharding declared and not yet done; changes `config`."""
    config.update_from_config(
        config=SimpleNamespace(parallelism=parallelism, training=training, debug=None)
    )
    with torch.device("meta"):
        return config.build()


def shard(
    model: muse_glimmer.MuseGlimmerModel,
    dims: ParallelDims,
    parallelism: ParallelismConfig,
    training: TrainingConfig,
) -> None:
    """Tensor parallelism, full activation checkpointing, FSDP."""
    muse_glimmer.parallelize_muse_glimmer(
        model,
        parallel_dims=dims,
        training=training,
        parallelism=parallelism,
        compile_config=CompileConfig(enable=False),
        ac_config=FullAC.Config(),
        dump_folder="",
    )
