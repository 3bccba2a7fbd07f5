"""One process of the bitwise gate: `python -m glimmer.parity.bitwise_gpu REQUEST.json`.

The trainer's model and the generator's engine stand side by side on one GPU, built by TitanRL's own
code from the recipe that trains; the generator gets the trainer's weights.
"""

from __future__ import annotations

import math
import os
import socket
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from glimmer.files import read_json, write_json
from glimmer.logs import get_logger, setup
from glimmer.training.job import Job
from glimmer.training.titan import compat

compat.apply()

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torchtitan.experiments.rl.actors.generator as generators  # noqa: E402
from torch.distributed.tensor import DTensor, distribute_tensor  # noqa: E402
from torchtitan.components.loss import compute_logprobs  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed import utils as dist_utils  # noqa: E402
from torchtitan.distributed.spmd_types import (  # noqa: E402
    dtensor_to_plain_tensor_state_dict,
    plain_tensor_to_dtensor_state_dict,
)
from torchtitan.distributed.utils import set_batch_invariance  # noqa: E402
from torchtitan.experiments.rl.actors.trainer import PolicyTrainer  # noqa: E402
from torchtitan.tools import utils  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402

from glimmer.parity.logprobs import largest_difference  # noqa: E402
from glimmer.training.local.model import max_entropy, read_text_config  # noqa: E402
from glimmer.training.titan.controller import SearchController  # noqa: E402
from glimmer.training.titan.recipe import controller_config, model_spec  # noqa: E402

compat.use_vllm_attention()
logger = get_logger("glimmer.parity.bitwise_gpu")
# The final norm of random weights. At the initial 0 every logit is 0; at 4 the logits spread by
# about 4, and the entropy is a fraction of ln(vocabulary).
_NORM = 4.0
_ALONE = 6  # prompts that are decoded again, one at a time


def alone_on_this_gpu() -> None:
    """The environment of a distributed run of one process."""
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(key, value)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.setdefault("MASTER_PORT", str(free.getsockname()[1]))


class Trainer:
    """The trainer's model, by `PolicyTrainer`'s own code, without its actor."""

    def __init__(self, config: Any, *, from_checkpoint: bool) -> None:
        part = config.trainer
        self.device = utils.get_local_device()
        utils.device_module.set_device(self.device)
        set_batch_invariance(part.debug.batch_invariant)
        world = dist_utils.init_distributed(part.comm, base_folder=config.dump_folder)
        dims = ParallelDims.from_config(part.parallelism, world)
        dist_utils.set_spmd_backend(part.parallelism.spmd_backend)
        self.context = dist_utils.get_spmd_context(parallel_dims=dims, spmd_typechecking=False)
        dist_utils.set_determinism(dims, self.device, part.debug, distinct_seed_mesh_dims=["pp"])
        torch.manual_seed(0)
        builder = SimpleNamespace(parallel_dims=dims, compile_config=config.compile)
        spec = config.model_spec
        self.model = PolicyTrainer._build_model(builder, spec, part, utils.device_type)
        self.model.eval()
        if from_checkpoint:
            adapter = spec.state_dict_adapter(spec.model, config.hf_assets_path)
            stored = adapter.to_hf(self.model.state_dict())
            dcp.load(stored, storage_reader=adapter.get_hf_storage_reader(config.hf_assets_path))
            self.model.load_state_dict(adapter.from_hf(stored), strict=False)

    @torch.no_grad()
    def logprobs(
        self, rows: list[list[list[int]]], *, length: int | None, at_a_time: int
    ) -> tuple[list[list[float]], float]:
        """Log-probability of every token but the first of each sequence, and the mean entropy.

        Args:
            rows: packed rows of sequences.
            length: tokens that a row is padded to; None: its own.
            at_a_time: rows of one forward pass.
        """
        found: list[list[float]] = []
        entropy, count = 0.0, 0
        for start in range(0, len(rows), at_a_time):
            part = rows[start : start + at_a_time]
            width = length or max(sum(map(len, row)) for row in part)
            tokens = torch.zeros(len(part), width, dtype=torch.long)
            labels = torch.zeros_like(tokens)
            positions = torch.zeros_like(tokens)
            for r, row in enumerate(part):
                at = 0
                for sequence in [*row, [0] * (width - sum(map(len, row)))]:
                    ids, end = torch.tensor(sequence, dtype=torch.long), at + len(sequence)
                    tokens[r, at:end] = ids
                    labels[r, at : end - 1] = ids[1:]
                    positions[r, at:end] = torch.arange(len(sequence))
                    at = end
            tokens, labels, positions = (x.to(self.device) for x in (tokens, labels, positions))
            masks = self.model.get_attention_masks(positions)
            with self.context():
                logits = self.model(tokens, attention_masks=masks, positions=positions)
            logprobs, entropies = compute_logprobs(logits, labels, return_entropy=True)
            for r, row in enumerate(part):
                at = 0
                for sequence in row:
                    span = slice(at, at + len(sequence) - 1)
                    found.append(logprobs[r, span].float().tolist())
                    entropy += float(entropies[r, span].sum())
                    count += len(sequence) - 1
                    at += len(sequence)
        return found, entropy / count

    def change_one_weight(self) -> None:
        """Add one unit in the last place of bfloat16 to the largest weight of the final norm."""
        weight = self.model.norm.weight
        local = getattr(weight, "_local_tensor", weight)
        with torch.no_grad():
            place = local.abs().argmax()
            bits = local.view(-1)[place].bfloat16().view(torch.int16) + 1
            local.view(-1)[place] = bits.view(torch.bfloat16).to(local.dtype)


class Generator:
    """The generator's engine, by `VLLMGenerator`'s own code, without its actor."""

    def __init__(self, config: Any, *, sequences: int) -> None:
        generators.current_rank = lambda: SimpleNamespace(rank=0)
        self.actor = object.__new__(generators.VLLMGenerator)
        generators.VLLMGenerator.__init__(
            self.actor,
            config.generator,
            model_spec=config.model_spec,
            model_path=config.hf_assets_path,
            compile_config=config.compile,
            max_num_seqs=sequences,
            output_dir=config.dump_folder,
        )
        self.engine = self.actor._engine

    def take_weights(self, trainer: Trainer) -> None:
        """Copy the trainer's weights, as a weight sync does."""
        with torch.no_grad():  # the trainer's parameters are no inference tensors, vLLM's are
            sent = {
                name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                for name, tensor in trainer.model.state_dict().items()
            }
        with torch.inference_mode():
            self._load(sent)

    def _load(self, sent: dict[str, torch.Tensor]) -> None:
        wrapper = self.actor._get_model()
        plain = dict(wrapper.model.state_dict())
        own = plain_tensor_to_dtensor_state_dict(
            plain,
            state_dict_layouts=wrapper.get_state_dict_layouts(),
            parallel_dims=wrapper.parallel_dims,
        )
        for name, tensor in own.items():
            if name not in sent:
                continue
            whole = sent[name].to(tensor.dtype)
            if isinstance(tensor, DTensor):
                whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
            tensor.copy_(whole)
        plain.update(dtensor_to_plain_tensor_state_dict(own))
        wrapper.model.load_state_dict(plain, strict=False)

    def _run(self, name: str, prompts: list[list[int]], params: list[Any]) -> list[Any]:
        for i, (ids, given) in enumerate(zip(prompts, params, strict=True)):
            self.engine.add_request(f"{name}-{i:05d}", {"prompt_token_ids": ids}, given)
        outputs = []
        while self.engine.has_unfinished_requests():
            outputs += [o for o in self.engine.step() if o.finished]
        return sorted(outputs, key=lambda output: output.request_id)

    def decode(
        self, name: str, prompts: list[list[int]], *, seeds: list[int], max_tokens: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """(token ids, their log-probabilities) sampled for each prompt, all at once."""
        params = [
            self.actor._build_sampling_params(
                generators.SamplingConfig(
                    temperature=1.0, top_p=1.0, max_tokens=max_tokens, seed=seed
                )
            )
            for seed in seeds
        ]
        samples = [output.outputs[0] for output in self._run(name, prompts, params)]
        ids = [list(sample.token_ids) for sample in samples]
        logprobs = [
            [step[token].logprob for step, token in zip(s.logprobs, i, strict=True)]
            for s, i in zip(samples, ids, strict=True)
        ]
        return ids, logprobs

    def prefill(self, prompts: list[list[int]], completions: list[list[int]]) -> list[list[float]]:
        """Log-probabilities of the completions, read in one piece behind their prompts."""
        whole = [p + c for p, c in zip(prompts, completions, strict=True)]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=1,
            prompt_logprobs=1,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        outputs = self._run("prefill", whole, [params] * len(whole))
        return [
            [output.prompt_logprobs[i][ids[i]].logprob for i in range(len(prompt), len(ids))]
            for output, ids, prompt in zip(outputs, whole, prompts, strict=True)
        ]


def pack(sequences: list[list[int]], length: int) -> list[list[list[int]]]:
    """Sequences in order, into rows of at most `length` tokens."""
    rows: list[list[list[int]]] = [[]]
    for sequence in sequences:
        if sum(map(len, rows[-1])) + len(sequence) > length:
            rows.append([])
        rows[-1].append(sequence)
    return rows


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """All comparisons of one model in one mode."""
    job, shape = Job(**request["job"]), request["shape"]
    config = controller_config(job, config_class=SearchController.Config)
    text = read_text_config(Path(job.checkpoint))
    if shape:
        text = text | shape
        config.model_spec = model_spec(
            text, attention=job.titan["attention"], context=job.titan["context"]
        )
        config.model_spec.model.norm.param_init = {
            "weight": partial(torch.nn.init.constant_, val=_NORM)
        }
    prompts, context = request["prompts"], job.titan["context"]
    max_tokens = job.search["max_new_tokens"]
    trainer = Trainer(config, from_checkpoint=not shape)
    generator = Generator(config, sequences=len(prompts))
    generator.take_weights(trainer)

    seeds = list(range(len(prompts)))
    completions, decoded = generator.decode("together", prompts, seeds=seeds, max_tokens=max_tokens)
    single = [
        generator.decode(f"alone{i}", [prompts[i]], seeds=[i], max_tokens=max_tokens)
        for i in range(min(_ALONE, len(prompts)))
    ]
    alone_ids, alone = [s[0][0] for s in single], [s[1][0] for s in single]
    read = generator.prefill(prompts, completions)
    sequences = [p + c for p, c in zip(prompts, completions, strict=True)]

    def trained(rows, **how) -> tuple[list[list[float]], float]:
        logprobs, entropy = trainer.logprobs(rows, **how)
        tails = [x[len(p) - 1 :] for x, p in zip(logprobs, prompts, strict=True)]
        return tails, entropy

    packed = {"length": context, "at_a_time": job.titan["rows_per_batch"]}
    rows = pack(sequences, context)
    together, entropy = trained(rows, **packed)
    apart, _ = trained([[s] for s in sequences], length=None, at_a_time=1)
    trainer.change_one_weight()
    changed, _ = trained(rows, **packed)
    return {
        "max_delta": {
            "trainer_packed_vs_alone": largest_difference(together, apart),
            "trainer_vs_decode": largest_difference(together, decoded),
            "decode_vs_prefill": largest_difference(decoded, read),
            "decode_together_vs_alone": largest_difference(decoded[: len(alone)], alone),
        },
        "tokens_differing": sum(
            a != b for a, b in zip(alone_ids, completions[: len(alone_ids)], strict=True)
        ),
        "one_weight_changed": largest_difference(changed, decoded),
        "entropy": entropy,
        "max_entropy": max_entropy(text),
        "measured_on": {
            "prompts": len(prompts),
            "prompt_tokens": sum(map(len, prompts)),
            "completion_tokens": sum(map(len, completions)),
            "rows": len(rows),
            "context": context,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "layers": text["num_hidden_layers"],
            "hidden_size": text["hidden_size"],
            "attention": job.titan["attention"],
            "batch_invariant": job.titan["batch_invariant"],
            "gpu": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
    }


def main() -> None:
    setup()
    request = read_json(sys.argv[1])
    alone_on_this_gpu()
    found = measure(request)
    assert math.isfinite(found["entropy"])
    write_json(request["result"], found)
    logger.info("%s", {k: found[k] for k in ("max_delta", "one_weight_changed", "entropy")})


if __name__ == "__main__":
    from glimmer.processes import end_with_parent

    end_with_parent()
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # vLLM's own teardown waits for process groups that are already gone
