"""Where a step's time goes on one GPU: the whole loop at the slice's width, random weights.

    snakemake --cores all gate_recall      first: questions and index of the embedded world
    python benchmarks/gpu_loop.py          by the GPU stack's Python, on one GPU of 140 GB; 3 min

TitanRL's controller, trainer, vLLM generator and weight sync by `python -m glimmer.training.titan`,
as `rule grpo` starts it: six of the 30B's layers (5.6 B parameters; with eight, trainer, generator
and what a sync holds need 158 GB by preflight's arithmetic), the paper run's trainer (float32
weights and Adam, full checkpointing, rows of 4,096 tokens), 8 questions x 8 samples a step.
Random weights end no answer and write no call: each rollout is one turn of `NEW` tokens, rewards
are all 0 and so is the gradient. The work is that of a step that learns.

On-policy, so that generation, sync and training follow one another and are parts of a step;
`--titan` changes settings. The first two steps, which make graphs, kernels and Adam's moments, are
left out. Prints a JSON object: seconds and shares, sampled tokens a second, GB/s of a sync
(bfloat16 weights, GPU to GPU by way of shared memory, hashed on both sides), the trainer's peak
(held by PyTorch, and by tensors alone). MFU is gpu_slice.py's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gpu_slice

ROOT = gpu_slice.ROOT
LAYERS, STEPS, LEFT_OUT, NEW = 6, 6, 2, 512
ONE_GPU = {
    "trainer_fsdp": 1,
    "trainer_tp": 1,
    "generator_tp": 1,
    "share_gpu": True,
    "generator_memory_fraction": 0.13,
    "generator_tokens_per_step": 8192,
    "cudagraph": "FULL",
    "offpolicy_steps": 0,
}


def with_weights(checkpoint: Path) -> int:
    """Add random weights in bfloat16 to a checkpoint folder without; returns their bytes."""
    import torch
    from safetensors.torch import save_file

    from glimmer.training.local.model import architecture, read_text_config, to_hf

    with torch.device("meta"):
        model = architecture(
            read_text_config(checkpoint), attention="varlen", max_seq_len=gpu_slice.CONTEXT
        ).build()
    torch.manual_seed(0)
    tensors = {
        name: torch.randn(t.shape, dtype=torch.bfloat16, device="cuda").mul_(0.02).cpu()
        for name, t in to_hf(model, torch.bfloat16).items()
    }
    tensors["model.language_model.norm.weight"].fill_(1.0)  # drawn about 0, all logits are nearly 0
    torch.cuda.empty_cache()
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    return sum(t.numel() * t.element_size() for t in tensors.values())


def run(job, work: Path, steps: int) -> list[dict]:
    """Rows of metrics of the run's first `steps` steps; the run is then ended."""
    from glimmer.processes import end_session
    from glimmer.training.titan.launch import environment

    path, rows = work / "job.json", work / "metrics.jsonl"
    job.write(path)
    with open(work / "titan.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "glimmer.training.titan", str(path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
        try:
            while process.poll() is None:
                if rows.exists() and rows.read_bytes().count(b"\n") >= steps:
                    break
                time.sleep(0.5)
        finally:
            end_session(process)
    found = [json.loads(x) for x in rows.read_text().splitlines()] if rows.exists() else []
    if len(found) < steps:
        log_text = (work / "titan.log").read_text(errors="replace")[-6000:]
        failure = work / "failure.json"
        told = failure.read_text() if failure.exists() else "no reason given"
        raise SystemExit(f"the run ended after {len(found)} of {steps} steps: {told}\n{log_text}")
    return found


def shares(rows: list[dict], *, weights: int, on_policy: bool = True) -> dict:
    """Medians over `rows`; `weights` are the bytes of a sync.

    On-policy, generating is what is left of its time without the sync within. Off-policy, it and
    the sync go on beside training: a step is training, and what it waits for rollouts.
    """
    step, training, sync, tokens = (
        statistics.median(row[name] for row in rows)
        for name in ("seconds", "seconds_train", "seconds_sync", "sampled_tokens")
    )
    within = sync if on_policy else 0.0
    waited = statistics.median(row["seconds_generate"] for row in rows) - within
    if on_policy:
        parts = {"generating": waited, "training": training, "sync": sync}
        found = {"sampled_tokens_per_second_generating": round(tokens / waited)}
    else:
        parts, found = {"waiting": waited, "training": training}, {}
    parts["else"] = step - sum(parts.values())
    return found | {
        "seconds_a_step": round(step, 3),
        "seconds": {name: round(x, 3) for name, x in parts.items()},
        "shares": {name: round(x / step, 3) for name, x in parts.items()},
        "sampled_tokens_per_second": round(tokens / step),
        "sync_seconds": round(sync, 3),
        "sync_gb": round(weights / 1e9, 2),
        "sync_gb_per_second": round(weights / 1e9 / sync, 2),
        "trainer_peak_gib": max(row["trainer_peak_gib"] for row in rows),
        "trainer_allocated_gib": max(row["trainer_allocated_gib"] for row in rows),
        "rows": rows,
    }


def measure(world: Path, work: Path, steps: int, changed: dict) -> dict:
    """Shares of `steps` steps; `changed` are values of the section titan that replace these."""
    from glimmer.config import load
    from glimmer.retrieval import retrieval_service
    from glimmer.training.job import Job

    config = load(ROOT / "config/config.yaml")
    paper = load(ROOT / "config/config.yaml", ROOT / "config/h100x8.yaml")
    checkpoint = gpu_slice.folder(work / "slice", LAYERS)
    weights = with_weights(checkpoint)
    corpus = world / "assets/corpus/corpus.jsonl"
    search = config["search"] | {"max_new_tokens": NEW}
    # One step more than is read: the last one ends with a save.
    training = {"steps": steps + 1, "checkpoint_every": 1000, "engine": "titan"}
    for name in ("prompts_per_step", "samples_per_prompt"):
        training[name] = paper["training"][name]
    with retrieval_service(
        config["retrieval"],
        index=world / "retrieval/index",
        corpus=corpus,
        topk=search["topk"],
        log=work / "service.log",
    ) as url:
        job = Job(
            checkpoint=str(checkpoint),
            work=str(work),
            tensorboard=str(work / "tensorboard"),
            train_questions=str(world / "assets/questions/train.jsonl"),
            heldout_questions=str(world / "assets/questions/heldout.jsonl"),
            search_url=url,
            training=config["training"] | training,
            search=search,
            renderer=config["renderer"],
            titan=paper["titan"] | ONE_GPU | changed,
        )
        rows = run(job, work, steps)
    on_policy = (ONE_GPU | changed)["offpolicy_steps"] == 0
    return {"changed": changed} | shares(rows[LEFT_OUT:], weights=weights, on_policy=on_policy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=Path, default=ROOT / "results/embedded")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--titan", type=json.loads, default={}, help='settings to change, e.g. {"cudagraph": "off"}'
    )
    parser.add_argument("--logs", type=Path, help="folder that keeps the run's logs")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from glimmer.training.titan import compat

    compat.apply()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        try:
            print(json.dumps(measure(options.world, work, options.steps, options.titan), indent=1))
        finally:
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                for path in work.glob("*.log"):
                    (options.logs / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
