"""The bitwise gate of the GPU engine: trainer and vLLM generator give the same log-probabilities.

For the checkpoint, and for a wider model with random weights of the same architecture, each in a
process of its own on one GPU, in batch-invariant mode. A checkpoint of more than 2 billion
parameters does not fit beside its generator: four layers of its shape, random, stand for it.
1. trainer, packed rows against each sequence alone: the trainer does not depend on the batch;
2. trainer against the generator's decode: what was noted while sampling is what learns;
3. decode against prefill: the generator reading the finished sequence in one piece;
4. decode together against alone: tokens and log-probabilities do not depend on the batch.
The largest difference must be exactly 0.

What shows that the comparisons can see: one weight of the trainer changed by one unit in the last
place of bfloat16, on both models, and the wider model without batch-invariant mode. A model of a
few million parameters can agree without that mode by luck; at 0.8 billion it does not. At least two
of the three must show a difference. And the entropy stays well under ln(vocabulary): a fresh model
of this architecture has all logits 0 and would pass anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimmer.errors import GlimmerError
from glimmer.files import read_json, write_json
from glimmer.logs import last_lines
from glimmer.parity.conversations import gate_prompts
from glimmer.parity.large import LARGEST, LAYERS
from glimmer.renderer import load_renderer
from glimmer.search_r1.prompt import SEARCH_TOOL
from glimmer.training.job import Job
from glimmer.training.local.model import parameter_count, read_text_config
from glimmer.training.titan.launch import interpreter, run_process
from glimmer.verdict import settle

COMPARISONS = (
    "trainer_packed_vs_alone",
    "trainer_vs_decode",
    "decode_vs_prefill",
    "decode_together_vs_alone",
)
CONTROLS_NEEDED = 2
# Hidden size, layers, heads: 0.8 billion parameters beside embedding and head.
WIDE = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
}

RANDOM_ENTROPY = 0.75
"""Largest entropy of random weights, as a share of ln(vocabulary). Under the soft cap of 20 they
reach 0.47 (4,096 tokens) to 0.65 (202,048), by drawing; logits that are all 0 give 1."""
SLICE = {"num_hidden_layers": LAYERS}  # three layers with a window and rope, one without
ONE_GPU = {
    "trainer_fsdp": 1,
    "trainer_tp": 1,
    "generator_tp": 1,
    "share_gpu": True,
    # Beside the trainer's float32 weights and their copy, 37 GB for four layers of the 30B's shape;
    # the run's own fraction is of a card that the generator has to itself.
    "generator_memory_fraction": 0.3,
    # Graphs start the same kernels; in batch-invariant mode they cannot be (preflight says why).
    "cudagraph": "off",
}


def check_bitwise(
    *,
    checkpoint: Path,
    questions: Path,
    corpus: Path,
    out: Path,
    settings: Mapping[str, Any],
    training: Mapping[str, Any],
    search: Mapping[str, Any],
    renderer: Mapping[str, Any],
    titan: Mapping[str, Any],
    work: Path,
    log: Path,
) -> dict[str, Any]:
    """Measure on the GPU, write the verdict to `out`, and return it.

    Args:
        settings: config section `parity`.
        training, search, renderer, titan: config sections.
        work: folder for what the processes exchange.
        log: their output.

    Raises:
        GateFailed: a figure is outside its threshold; the verdict has been written.
        GlimmerError: a process of the gate failed.
    """
    native = load_renderer(checkpoint, renderer, tools=[SEARCH_TOOL])
    prompts = gate_prompts(native, questions, corpus, count=settings["prompts"])
    work.mkdir(parents=True, exist_ok=True)
    job = Job(
        checkpoint=str(checkpoint.resolve()),
        work=str(work.resolve()),
        tensorboard=str(work.resolve()),
        train_questions=str(questions),
        heldout_questions=str(questions),
        search_url="http://127.0.0.1/retrieve",  # never asked: the gate searches nothing
        training=dict(training),
        search=dict(search),
        renderer=dict(renderer),
        titan=dict(titan),
    )
    shapes = models(read_text_config(checkpoint))
    found = {
        name: _measure(job, name, shape, prompts, batch_invariant=True, log=log)
        for name, shape in shapes.items()
    }
    loose = _measure(job, "wide", WIDE, prompts, batch_invariant=False, log=log)
    verdict = judge(found, loose, settings=settings)
    settle(
        verdict,
        out,
        meaning="Training would learn from other probabilities than it sampled with.",
    )
    return verdict


def models(text: Mapping[str, Any]) -> dict[str, dict[str, int] | None]:
    """What is measured for a checkpoint's `text_config`: by name, None for the checkpoint itself,
    or what of its shape is changed for a model with random weights."""
    whole = parameter_count(text) <= LARGEST
    return {"checkpoint": None, "wide": WIDE} if whole else {"slice": SLICE, "wide": WIDE}


def _measure(
    job: Job,
    model: str,
    shape: Mapping[str, int] | None,
    prompts: list[list[int]],
    *,
    batch_invariant: bool,
    log: Path,
) -> dict[str, Any]:
    """Run one process of the gate and return what it measured."""
    name = f"{model}-{'invariant' if batch_invariant else 'plain'}"
    request, result = (Path(job.work) / f"{name}.{kind}.json" for kind in ("request", "result"))
    result.unlink(missing_ok=True)
    titan = job.titan | ONE_GPU | {"batch_invariant": batch_invariant}
    write_json(
        request,
        {
            "job": dataclasses.asdict(dataclasses.replace(job, titan=titan)),
            "shape": shape,
            "prompts": prompts,
            "result": str(result),
        },
    )
    status = run_process(
        [interpreter(job.titan), "-m", "glimmer.parity.bitwise_gpu", str(request)],
        log=log,
        alive=result,
        setup_timeout_s=job.titan["setup_timeout_s"],
        step_timeout_s=job.titan["step_timeout_s"],
    )
    if not result.exists():
        raise GlimmerError(
            f"the bitwise gate's process for {name} ended with status {status} and left no figures."
            f" Its log, {log}, ends:\n{last_lines(log)}"
        )
    return read_json(result)


def judge(
    found: Mapping[str, Mapping[str, Any]],
    loose: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The verdict on what the processes measured.

    Args:
        found: by model (see `models`), in batch-invariant mode.
        loose: the wider model without batch-invariant mode.
        settings: config section `parity`.
    """
    limit = 0.0
    controls = {
        **{f"one_weight_{model}": run["one_weight_changed"] for model, run in found.items()},
        "without_batch_invariance": max(loose["max_delta"][key] for key in COMPARISONS),
    }
    seen = sum(delta > limit for delta in controls.values())
    deltas = {model: dict(run["max_delta"]) for model, run in found.items()}
    tokens = sum(run["tokens_differing"] for run in found.values())
    entropy = {model: run["entropy"] for model, run in found.items()}
    allowed = {
        model: run["max_entropy"]
        * (settings["max_entropy_fraction"] if model == "checkpoint" else RANDOM_ENTROPY)
        for model, run in found.items()
    }
    passed = (
        all(delta <= limit for run in deltas.values() for delta in run.values())
        and tokens == 0
        and all(entropy[model] <= allowed[model] for model in found)
        and seen >= CONTROLS_NEEDED
    )
    return {
        "gate": "bitwise_parity",
        "passed": passed,
        "measured": {
            "max_delta": deltas,
            "tokens_differing": tokens,
            "entropy": entropy,
            "controls": controls,
            "controls_that_differ": seen,
        },
        "threshold": {
            "max_delta": limit,
            "tokens_differing": 0,
            "max_entropy": allowed,
            "controls_that_differ": CONTROLS_NEEDED,
        },
        "measured_on": {model: run["measured_on"] for model, run in found.items()},
        "details": [],
    }
