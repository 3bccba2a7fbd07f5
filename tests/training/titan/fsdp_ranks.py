"""`python fsdp_ranks.py CHECKPOINT OUT FSDPxTP[h] ...`: trains two steps on that many gloo ranks.

Everything a trainer does with sharded weights, by torchtitan's own parts: load from the released
layout, forward and backward through the chunked loss, clip, step, save, resume, save in the
released layout. The whole model does the same in one process. With `h` Adam's moments wait in host
memory between the steps. Writes `OUT/FSDPxTP[h].json`.

The ranks are forked, so that the libraries are imported once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchtitan.distributed.parallel_dims as parallel_dims
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from glimmer.titanrl import ensure_importable

ensure_importable()

from sharding import degrees, on_meta, shard  # noqa: E402  beside this script
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.loss import ChunkedLossWrapper  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.config import TrainingConfig  # noqa: E402
from torchtitan.distributed.utils import (  # noqa: E402
    clip_grad_norm_,
    get_spmd_context,
    set_spmd_backend,
)
from torchtitan.experiments.rl.losses import DAPOLoss  # noqa: E402
from torchtitan.models.muse_glimmer.state_dict_adapter import (  # noqa: E402
    MuseGlimmerStateDictAdapter,
)

from glimmer.training.local.model import (  # noqa: E402
    load_model,
    model_config,
    read_text_config,
    to_hf,
)
from glimmer.training.titan import fsdp as patch  # noqa: E402
from glimmer.training.titan.digest import digest  # noqa: E402
from glimmer.training.titan.export import WEIGHTS, save_text_only  # noqa: E402
from glimmer.training.titan.host_adam import HostAdam  # noqa: E402

STEPS, TOKENS, RATE = 2, 48, 1e-3
LOSS = ChunkedLossWrapper.Config(
    num_chunks=2, loss_fn=DAPOLoss.Config(ratio_clip_low=0.2, ratio_clip_high=0.28)
)
WRAPPED = "_checkpoint_wrapped_module."


def batch(rows: int, vocab: int) -> dict[str, torch.Tensor]:
    """One batch of random sequences with advantages; the same in every process."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocab, (rows, TOKENS), generator=draw)
    return {
        "ids": ids,
        "labels": torch.randint(0, vocab, (rows, TOKENS), generator=draw),
        "advantages": torch.randn(rows, TOKENS, generator=draw),
        "generator_logprobs": -10 - torch.rand(rows, TOKENS, generator=draw),
        "loss_mask": torch.rand(rows, TOKENS, generator=draw) > 0.3,
        "positions": torch.arange(TOKENS).expand(rows, TOKENS).contiguous(),
    }


def backward(model, loss_fn, data, rows, context) -> float:
    """Loss of `rows` over all valid tokens of the batch; leaves gradients."""
    own = {name: value[rows] for name, value in data.items()}
    with context():
        hidden = model(own.pop("ids"), positions=own.pop("positions"))
        loss, _ = loss_fn(hidden, own.pop("labels"), int(data["loss_mask"].sum()), **own)
        loss.backward()
    return float(loss.detach())


def whole(checkpoint: Path, rows: int) -> dict:
    """The two steps in one process, without any of FSDP."""
    model = load_model(checkpoint)
    set_spmd_backend("default")
    loss_fn = LOSS.build()
    loss_fn.set_lm_head(model.lm_head)
    model._skip_lm_head = True
    optimizer = default_adamw(lr=RATE, betas=(0.9, 0.99), weight_decay=0.0).build(
        model_parts=[model]
    )
    data = batch(rows, model.lm_head.weight.shape[0])
    start = digest({name: p for name, p in model.named_parameters()})
    steps = []
    for _ in range(STEPS):
        loss = backward(model, loss_fn, data, slice(None), nullcontext)
        norm = clip_grad_norm_(list(model.parameters()), 1.0)
        steps.append({"loss": loss, "norm": float(norm), "grads": gradients(model)})
        optimizer.step()
        optimizer.zero_grad()
    return {"start": start, "steps": steps, "tensors": to_hf(model, torch.float32)}


def gradients(model) -> dict[str, torch.Tensor]:
    """The whole gradient of each parameter, on every rank."""
    return {name.replace(WRAPPED, ""): full(p.grad).clone() for name, p in model.named_parameters()}


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def build(text, dims, parallelism, training):
    model = on_meta(model_config(text), parallelism, training)
    shard(model, dims, parallelism, training)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    return model


def moments(optimizer) -> int:
    """Bytes of Adam's moments of this rank."""
    return sum(
        value.to_local().untyped_storage().size()
        for state in optimizer.optimizers[0].state.values()
        for name, value in state.items()
        if name != "step"
    )


def manager(model, config, folder: Path, checkpoint: Path, on_host: bool):
    """Model, optimiser and checkpoint manager as TitanRL's trainer makes them."""
    adamw = default_adamw(lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)
    if on_host:
        adamw = HostAdam.Config(param_groups=adamw.param_groups)
    optimizer = adamw.build(model_parts=[model])
    scheduler = LRSchedulersContainer.Config(
        warmup_steps=0, decay_type="linear", min_lr_factor=1.0
    ).build(optimizers=optimizer, training_steps=STEPS)
    adapter = MuseGlimmerStateDictAdapter(config, str(checkpoint))
    save_text_only(adapter)
    saver = CheckpointManager.Config(
        enable=True,
        folder="checkpoint",
        initial_load_in_hf=True,
        initial_load_path=str(checkpoint),
        interval=1,
        last_save_in_hf=True,
        last_save_model_only=True,
        export_dtype="float32",
    ).build(
        dataloader=None,
        model_parts=[model],
        optimizers=optimizer,
        lr_schedulers=scheduler,
        states={},
        sd_adapter=adapter,
        base_folder=str(folder),
    )
    saver.load()
    if on_host:
        optimizer.put_away_after(saver)
    return optimizer, scheduler, saver


def rank(index: int, port: int, shape: str, checkpoint: Path, out: Path, reference) -> None:
    torch.set_num_threads(1)
    fsdp, tp = sizes(shape)
    on_host = shape.endswith("h")
    ranks = fsdp * tp
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(index),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(index),
    }
    parallel_dims.device_type = "cpu"
    patch.apply()
    dist.init_process_group("gloo", rank=index, world_size=ranks)
    set_spmd_backend("spmd_types")
    text = read_text_config(checkpoint)
    parallelism = degrees(fsdp, tp)
    training = TrainingConfig(seq_len=TOKENS, mixed_precision_param="float32")
    dims = parallel_dims.ParallelDims.from_config(parallelism, ranks)
    config = model_config(text)
    model = build(text, dims, parallelism, training)
    loss_fn = LOSS.build()
    loss_fn.set_lm_head(model.lm_head)
    model._skip_lm_head = True
    folder = out / shape
    optimizer, scheduler, saver = manager(model, config, folder, checkpoint, on_host)
    mesh = dims.get_optional_mesh("batch")
    row = mesh.get_local_rank() if mesh is not None else 0

    def context():
        return get_spmd_context(parallel_dims=dims, spmd_typechecking=False)()

    data = batch(fsdp, text["vocab_size"])
    found = {"start": digest(model.state_dict()), "steps": [], "moments": []}
    for step in range(STEPS):
        loss = torch.tensor(backward(model, loss_fn, data, slice(row, row + 1), context))
        dist.all_reduce(loss)
        norm = clip_grad_norm_(list(model.parameters()), 1.0)
        own = gradients(model)
        theirs = reference["steps"][step]["grads"]
        found["steps"].append(
            {
                "loss": float(loss) / tp,
                "norm": float(norm),
                "gradient": max(
                    float((own[k] - theirs[k]).abs().max() / theirs[k].abs().max()) for k in own
                ),
                "gradients": len(own),
            }
        )
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        found["moments"].append(moments(optimizer))
        saver.save(step + 1, last_step=False)
        found["moments"].append(moments(optimizer))
    found["end"] = digest(model.state_dict())
    again = build(text, dims, parallelism, training)
    resumed, *_ = manager(again, config, folder, checkpoint, on_host)
    found["moments"].append(moments(resumed))
    found["resumed"] = digest(again.state_dict())
    found["resumed_state"] = digest(state(resumed)) == digest(state(optimizer))
    saver.save(STEPS + 1, last_step=True)
    dist.barrier()
    if index == 0:
        found |= compare_export(folder / "checkpoint" / f"step-{STEPS + 1}", reference["tensors"])
        found |= {"placements": sorted({str(p.placements) for p in model.parameters()})}
        (out / f"{shape}.json").write_text(json.dumps(found, indent=1))
    dist.barrier()
    dist.destroy_process_group()


def compare_export(saved: Path, reference: dict[str, torch.Tensor]) -> dict:
    """The save in the released layout against the whole model's tensors."""
    tensors = {}
    for path in saved.glob(WEIGHTS):
        tensors |= load_file(path)
    return {
        "exported": sorted(tensors) == sorted(reference),
        "weights": max(float((tensors[k] - reference[k]).abs().max()) for k in reference),
    }


def state(optimizer) -> dict[str, torch.Tensor]:
    """Adam's moments and counters, by name."""
    return {k: v for k, v in optimizer.state_dict().items() if k.startswith("state.")}


def sizes(shape: str) -> tuple[int, int]:
    """FSDP and tensor parallelism of `FSDPxTP[h]`."""
    fsdp, tp = map(int, shape.removesuffix("h").split("x"))
    return fsdp, tp


def main(checkpoint: str, out: str, *shapes: str) -> None:
    for pair in shapes:
        fsdp, tp = sizes(pair)
        with mp.get_context("fork").Pool(1) as alone:  # no threads in the process that forks
            reference = alone.apply(whole, (Path(checkpoint), fsdp))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.start_processes(
            rank,
            (port, pair, Path(checkpoint), Path(out), reference),
            nprocs=fsdp * tp,
            start_method="fork",
        )
        path = Path(out) / f"{pair}.json"
        path.write_text(
            json.dumps(
                json.loads(path.read_text())
                | {
                    "whole": {
                        "start": reference["start"],
                        "steps": [
                            {k: v for k, v in step.items() if k != "grads"}
                            for step in reference["steps"]
                        ],
                    }
                }
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
