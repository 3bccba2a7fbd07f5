"""Monarch actors that stand in for the GPU's trainer and generator: the controller, Monarch,
torchstore, the router and the recipe around them are real.

The trainer's weights are one tensor that each optimiser step raises by 1; the generator answers
every prompt with a search call, then with an answer that is right or wrong by its request's seed.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import torch
import torchstore
from monarch.actor import Actor, concurrent_endpoint
from safetensors.torch import load_file, save_file
from torchtitan.experiments.rl.types import Completion, OptimStepOutput

from glimmer.training.titan.digest import SyncLog, digest

DIE_AT = "FAKE_TRAINER_DIES_AT_STEP"
HELD = "FAKE_GENERATOR_HOLDS_GROUP"
NORMS = "FAKE_TRAINER_NORMS"  # gradient norms of the first steps; 0 leaves the weights as they are


class FakeTrainer(Actor):
    """The endpoints that TitanRL's controller calls."""

    def __init__(self, config, *, hf_assets_path: str, output_dir: str, **kwargs) -> None:
        self.config, self.source, self.out = config, Path(hf_assets_path), Path(output_dir)
        self.folder = self.out / config.checkpoint.folder
        self.weights = torch.zeros(64)
        self.version = 0
        for step in sorted(int(p.parent.name[5:]) for p in self.folder.glob("step-*/.metadata")):
            self.version = step
            saved = json.loads((self.folder / f"step-{step}" / "state.json").read_text())
            self.weights = torch.full((64,), saved["value"])

    @concurrent_endpoint
    async def get_policy_version(self) -> int:
        return self.version

    @concurrent_endpoint
    async def sync_log_step(self, step: int, relative_step=None) -> None:
        pass

    @concurrent_endpoint
    async def close(self) -> None:
        pass

    @concurrent_endpoint
    async def forward_backward(self, training_data, num_global_valid_tokens) -> dict:
        tokens = sum(int(b.loss_mask.sum()) for b in training_data)
        share = tokens / num_global_valid_tokens
        return {
            "loss/mean": 0.1 * share,
            "loss/ratio_clipped_frac": 0.0,
            "trainer/entropy/mean": 0.5 * share,
            "bit_wise/logprob_diff/max": 0.0,
        }

    @concurrent_endpoint
    async def optim_step(self) -> OptimStepOutput:
        if self.version + 1 == int(os.environ.get(DIE_AT, "0")):
            os._exit(9)
        norms = [float(x) for x in os.environ.get(NORMS, "").split(",") if x]
        norm = norms[self.version] if self.version < len(norms) else 1.0
        self.weights += norm != 0
        self.version += 1
        return OptimStepOutput(
            policy_version=self.version,
            metrics={"trainer/grad_norm/mean": norm, "trainer/lr": 1e-4},
        )

    @concurrent_endpoint
    async def save_checkpoint(self, step: int, last_step: bool = False) -> bool:
        folder = self.folder / f"step-{step}"
        if last_step:
            tensors = load_file(self.source / "model.safetensors")
            text = {k: v for k, v in tensors.items() if "vision" not in k}
            folder.mkdir(parents=True)
            save_file(text, folder / "model-00001-of-00001.safetensors")
        elif step % self.config.checkpoint.interval == 0:
            folder.mkdir(parents=True)
            state = {"value": float(self.weights[0])}
            (folder / "state.json").write_text(json.dumps(state))
            (folder / ".metadata").touch()
        return True

    @concurrent_endpoint
    async def push_model_state_dict(self) -> None:
        state = {"w": self.weights.bfloat16()}
        await torchstore.put_state_dict(state, "model_state_dict", direct_rdma=False)
        facts = {"digest": digest(state), "seconds": 0.0}
        facts |= {"reserved_gib": 0.5, "allocated_gib": 0.25}
        SyncLog(self.out).note("trainer", self.version, **facts)


class FakeGenerator(Actor):
    """Answers with token ids that the test put into `completions.json` of the run's folder."""

    def __init__(self, config, *, output_dir: str, **kwargs) -> None:
        self.out = Path(output_dir)
        self.version = 0
        self.weights = torch.zeros(64, dtype=torch.bfloat16)
        self.completions = json.loads((self.out / "completions.json").read_text())

    @concurrent_endpoint
    async def sync_log_step(self, step: int, relative_step=None) -> None:
        pass

    @concurrent_endpoint
    async def start_engine_loop(self) -> None:
        pass

    @concurrent_endpoint
    async def close(self) -> None:
        pass

    @concurrent_endpoint
    async def pull_model_state_dict(self, version: int) -> None:
        state = {"w": self.weights}
        await torchstore.get_state_dict(
            "model_state_dict", user_state_dict=state, strict=False, direct_rdma=False
        )
        self.version = version
        SyncLog(self.out).note("generator", version, digest=digest(state), seconds=0.0)

    @concurrent_endpoint
    async def generate(
        self, prompt_token_ids, *, request_id, routing_session_id, sampling_config, metrics_prefix
    ) -> Completion:
        with open(self.out / "requests.jsonl", "a") as handle:
            handle.write(
                json.dumps([self.version, request_id, sampling_config.seed, prompt_token_ids])
                + "\n"
            )
        held = f"group={os.environ.get(HELD)}/"
        while request_id.startswith(held) and self.version < 2:
            await asyncio.sleep(0.05)
        turn = int(request_id.rpartition("turn=")[2])
        ids = self.completions["call" if turn == 0 else "answer"][sampling_config.seed % 2]
        return Completion(
            min_policy_version=self.version,
            max_policy_version=self.version,
            request_id=request_id,
            token_ids=ids,
            token_logprobs=[-0.5] * len(ids),
            finish_reason="stop",
        )
