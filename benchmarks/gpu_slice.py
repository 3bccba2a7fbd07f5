"""Generator and trainer on one GPU, at 8 layers of the 30B's shape with random weights.

    python benchmarks/gpu_slice.py        by the GPU stack's Python, on one GPU of 120 GB; 10 min

Each case in a process of its own, all in one run:
    vllm, graphs         vLLM's own Muse Glimmer with its default CUDA graphs and compilation
    vllm, one process    the same with its engine in the asking process, as the recipe's is
    vllm, eager          neither graphs nor compilation
    titan, eager         the recipe's generator: torchtitan's model in vLLM, as the paper run has it
    titan, graphs        with CUDA graphs of whole passes (`titan.cudagraph: FULL`)
    titan, decode        with CUDA graphs of decoding only (FULL_DECODE_ONLY)
    titan, fused         as `titan, decode`, with torchtitan's fused gate and up projection
    titan, invariant     eager in batch-invariant mode
    titan, 8192          as `titan, graphs`, reading up to 8,192 prompt tokens a step for 2,048
    titan, blocks        as `titan, 8192`, with vLLM's own cache blocks of 16 tokens for 256
    titan, compiled      as `titan, blocks`, and each layer by torch.compile
    vllm, 8192           vLLM's own with graphs, reading as many
    trainer              forward, backward, step on packed rows of 4,096 tokens, full checkpointing
    trainer, host        the same with `titan.adam_on_host`
    trainer, chunks 2    with `titan.loss_chunks: 2` for 8
    trainer, rows 2      with `titan.rows_per_batch: 2` for 1
    trainer, compiled    each layer by torch.compile

Generators: 128 requests of 512 random tokens, 128 new tokens each, greedy, none ends early; the
best of three passes after one warm-up. Sampled tokens a second; ratio to the better of vLLM's own.
Then passes that only read prompts: prompt tokens a second; and one in which each step only decodes:
seconds a step. Where the engine is in this process, how long the GPU works in either, and on what.
Trainer: tokens a second, and model FLOP/s (6 a weight outside the embedding and token, 12 a layer,
head width and attended position) as a share of the H100's and H200's 989e12 in bfloat16; peak
memory in GB (10^9 bytes) until the first optimizer step and in the second step, and what weights,
gradients and Adam's moments hold of it, beside preflight's arithmetic; bytes after the last step.
A step has one microbatch there, in a run many: seconds of a microbatch that adds to gradients, on
which kernels, and the peak in it, where gradients and logits are there together.

Prints a line a case to stderr and one JSON object to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LAYERS, REQUESTS, PROMPT, NEW, PASSES = 8, 128, 512, 128, 3
PREFILLED, TIMED, PROFILED = 56, 40, 16  # steps of the pass whose decoding is looked at
FUSED = "torchtitan.overrides.fused_swiglu.fused_swiglu"
CONTEXT, ROWS, STEPS = 4096, 1, 5
PEAK = 989e12
GENERATORS = {
    "vllm, graphs": {"own": True, "cudagraph": "FULL"},
    "vllm, one process": {"own": True, "cudagraph": "FULL", "one_process": True},
    "vllm, 8192": {"own": True, "cudagraph": "FULL", "budget": 8192},
    "vllm, eager": {"own": True, "cudagraph": "off"},
    "titan, eager": {"own": False, "cudagraph": "off"},
    "titan, graphs": {"own": False, "cudagraph": "FULL"},
    "titan, decode": {"own": False, "cudagraph": "FULL_DECODE_ONLY"},
    "titan, fused": {"own": False, "cudagraph": "FULL_DECODE_ONLY", "fused": True},
    "titan, invariant": {"own": False, "cudagraph": "off", "batch_invariant": True},
    "titan, 8192": {"own": False, "cudagraph": "FULL", "budget": 8192},
    "titan, blocks": {"own": False, "cudagraph": "FULL", "budget": 8192, "small_blocks": True},
    "titan, compiled": {
        "own": False,
        "cudagraph": "FULL",
        "budget": 8192,
        "small_blocks": True,
        "compile": True,
    },
}
TRAINERS = {
    "trainer": {},
    "trainer, host": {"adam_on_host": True},
    "trainer, chunks 2": {"loss_chunks": 2},
    "trainer, rows 2": {"rows_per_batch": 2},
    "trainer, compiled": {"compile": True},
}


def folder(out: Path, layers: int = LAYERS) -> Path:
    """A checkpoint folder of the slice's shape without weights; the tiny model's tokenizer."""
    config = json.loads((ROOT / "glimmer/preflight/muse_glimmer_30b.json").read_text())
    text = config["text_config"]
    text["num_hidden_layers"] = layers
    for key in ("layer_types", "layer_rope_theta"):
        if key in text:
            text[key] = text[key][-layers:]
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (out / name).write_bytes((ROOT / "resources/tiny_glimmer" / name).read_bytes())
    return out


def recipe(checkpoint: Path, work: Path, **titan):
    """The recipe's config for the slice, on one GPU."""
    from glimmer.config import load
    from glimmer.training.job import Job
    from glimmer.training.titan.controller import SearchController
    from glimmer.training.titan.recipe import controller_config

    config = load(ROOT / "config/config.yaml", ROOT / "config/h100x8.yaml")
    one = {"trainer_fsdp": 1, "trainer_tp": 1, "generator_tp": 1, "generator_memory_fraction": 0.6}
    job = Job(
        checkpoint=str(checkpoint),
        work=str(work),
        tensorboard=str(work),
        train_questions="",
        heldout_questions="",
        search_url="http://127.0.0.1/retrieve",
        training=config["training"],
        search=config["search"],
        renderer=config["renderer"],
        titan=config["titan"] | one | {"context": CONTEXT, "rows_per_batch": ROWS} | titan,
    )
    return controller_config(job, config_class=SearchController.Config)


def prompts(vocab: int, turn: int) -> list[list[int]]:
    """Random tokens, others in each turn: no pass finds its prompts in the prefix cache."""
    import random

    draw = random.Random(turn)
    return [[draw.randrange(vocab) for _ in range(PROMPT)] for _ in range(REQUESTS)]


def generator(case: str, checkpoint: Path, work: Path) -> dict:
    """Tokens a second of one generator."""
    how = GENERATORS[case]
    vocab = json.loads((checkpoint / "config.json").read_text())["text_config"]["vocab_size"]
    start = time.perf_counter()
    own, one_process = how["own"], how.get("one_process", False)
    if one_process:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if own:
        engine = own_engine(checkpoint, eager=how["cudagraph"] == "off", budget=how.get("budget"))
    else:
        from glimmer.parity.bitwise_gpu import Generator, alone_on_this_gpu

        alone_on_this_gpu()
        config = recipe(
            checkpoint,
            work,
            cudagraph=how["cudagraph"],
            batch_invariant=how.get("batch_invariant", False),
            generator_tokens_per_step=how.get("budget", 2048),
        )
        if how.get("compile"):
            from torchtitan.config import CompileConfig

            config.compile = CompileConfig(enable=True, components=["model"])
        if how.get("fused"):
            from torchtitan.config.override import OverrideConfig

            config.generator.override = OverrideConfig(imports=[FUSED])
        if how.get("small_blocks"):  # the one thing that the generator asks the card's kind for
            import torchtitan.experiments.rl.actors.generator as titan_generator

            titan_generator.has_cuda_capability = lambda major, minor: True
        engine = Generator(config, sequences=REQUESTS).engine
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    setup = time.perf_counter() - start

    def params(new: int) -> SamplingParams:
        return SamplingParams(
            temperature=0.0,
            max_tokens=new,
            ignore_eos=True,
            logprobs=1,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    here = not own or one_process
    turns = iter(range(10_000))

    def one_pass(new: int) -> float:
        turn = next(turns)
        asked = prompts(vocab, turn)
        begin = time.perf_counter()
        for place, ids in enumerate(asked):
            engine.add_request(f"{turn}-{place}", {"prompt_token_ids": ids}, params(new))
        tokens = 0
        while engine.has_unfinished_requests():
            tokens += sum(len(o.outputs[0].token_ids) for o in engine.step() if o.finished)
        assert tokens == REQUESTS * new, tokens
        return time.perf_counter() - begin

    seconds = [one_pass(NEW) for _ in range(PASSES + 1)]
    read = [one_pass(1) for _ in range(PASSES)]
    found = {
        "tokens_per_second": REQUESTS * NEW / min(seconds[1:]),
        "seconds": [round(s, 3) for s in seconds],
        "setup_seconds": round(setup, 1),
        "read_tokens_per_second": round(REQUESTS * PROMPT / min(read)),
        "read_seconds": [round(s, 3) for s in read],
    }
    if here:
        found["read_gpu"] = on_the_gpu(lambda: one_pass(1), 1)
    return found | decoding(engine, prompts(vocab, next(turns)), params(NEW), here=here)


def on_the_gpu(work, times: int) -> dict:
    """Milliseconds of the GPU's kernels in `work()`, done `times` times: all, and the largest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            work()
    kernels = sorted(
        (
            (e.self_device_time_total / times / 1e3, e.count // times, e.key[:90])
            for e in seen.key_averages()
        ),
        reverse=True,
    )
    return {
        "ms": round(sum(ms for ms, _, _ in kernels), 2),
        "kernels": sum(count for _, count, _ in kernels),
        "largest": [(round(ms, 3), count, name) for ms, count, name in kernels[:20]],
    }


def decoding(engine, asked: list[list[int]], params, *, here: bool) -> dict:
    """Milliseconds a step while all requests decode; of the GPU too if the engine is `here`."""
    for place, ids in enumerate(asked):
        engine.add_request(f"decode-{place}", {"prompt_token_ids": ids}, params)
    for _ in range(PREFILLED):
        engine.step()
    begin = time.perf_counter()
    for _ in range(TIMED):
        engine.step()
    found = {"decode_ms": round((time.perf_counter() - begin) / TIMED * 1e3, 2)}
    if here:
        found["decode_gpu"] = on_the_gpu(engine.step, PROFILED)
    while engine.has_unfinished_requests():
        engine.step()
    return found


def own_engine(checkpoint: Path, *, eager: bool, budget: int | None):
    """vLLM's own class with random weights; `budget`: tokens a step, None for its default."""
    from vllm import EngineArgs, LLMEngine

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(checkpoint),
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=CONTEXT,
            max_num_seqs=REQUESTS,
            max_num_batched_tokens=budget,
            gpu_memory_utilization=0.6,
            enforce_eager=eager,
            language_model_only=True,
            disable_log_stats=True,
        )
    )


def trainer(checkpoint: Path, work: Path, *, compile: bool = False, **titan) -> dict:
    """Seconds, model FLOP/s and memory of the trainer's steps and microbatches."""
    from glimmer.parity.bitwise_gpu import Trainer, alone_on_this_gpu

    alone_on_this_gpu()
    import torch

    config = recipe(checkpoint, work, **titan)
    if compile:
        from torchtitan.config import CompileConfig

        config.compile = CompileConfig(enable=True, components=["model"])
    built = Trainer(config, from_checkpoint=False)
    model, device = built.model.train(), built.device
    with torch.no_grad():
        model.norm.weight.fill_(1.0)
    loss_fn = config.trainer.loss.build()
    loss_fn.set_lm_head(model.lm_head)
    model._skip_lm_head = True
    optimizer = config.trainer.optimizer.build(model_parts=[model])
    vocab = model.lm_head.weight.shape[0]
    draw = torch.Generator().manual_seed(0)
    rows = titan.get("rows_per_batch", ROWS)
    shape = (rows, CONTEXT)
    ids = torch.randint(0, vocab, shape, generator=draw).to(device)
    positions = torch.arange(CONTEXT, device=device).expand(shape).contiguous()
    extra = {
        "generator_logprobs": torch.full(shape, -12.0, device=device),
        "advantages": torch.randn(shape, generator=draw).to(device),
        "loss_mask": torch.ones(shape, dtype=torch.bool, device=device),
    }

    def microbatch() -> None:
        masks = model.get_attention_masks(positions)
        with built.context():
            hidden = model(ids, attention_masks=masks, positions=positions)
            loss, _ = loss_fn(hidden, ids.roll(-1, 1), rows * CONTEXT, **extra)
            loss.backward()

    def timed(work) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    allocated = torch.cuda.memory_allocated
    held, seconds, peaks = {"weights": allocated()}, [], []
    for step in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        passes = timed(microbatch)
        if not step:  # Adam's moments are made in the update that follows
            peaks.append(torch.cuda.max_memory_allocated() / 1e9)
            held["gradients"] = allocated() - held["weights"]
            held["beside these, at the peak"] = int(peaks[0] * 1e9) - allocated()
        update = timed(optimizer.step)
        if not step:
            held["Adam"] = allocated() - held["weights"] - held["gradients"]
        seconds.append(passes + update + timed(optimizer.zero_grad))
        peaks.append(torch.cuda.max_memory_allocated() / 1e9)
    after, reserved = allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9
    text = json.loads((checkpoint / "config.json").read_text())["text_config"]
    weights = sum(p.numel() for p in model.parameters()) - vocab * text["hidden_size"]
    attended = attended_positions(text)
    width = text["num_attention_heads"] * text["head_dim"]
    operations = rows * (CONTEXT * 6 * weights + 12 * width * attended)
    best = min(seconds[2:])
    microbatch()  # the first adds to no gradient
    torch.cuda.reset_peak_memory_stats()
    alone = min(timed(microbatch) for _ in range(STEPS))
    peaks.append(torch.cuda.max_memory_allocated() / 1e9)
    return {
        "tokens_per_second": rows * CONTEXT / best,
        "seconds": [round(s, 3) for s in seconds],
        "model_flop_per_second": operations / best,
        "mfu": operations / best / PEAK,
        "microbatch_seconds": round(alone, 4),
        "microbatch_mfu": operations / alone / PEAK,
        "microbatch_gpu": on_the_gpu(microbatch, 2),
        "peak_gb": {
            "step 1": round(peaks[0], 1),
            "step 2": round(peaks[2], 1),
            "later microbatch": round(peaks[-1], 1),
        },
        "reserved_gb": round(reserved, 1),
        "held_gb": {name: round(size / 1e9, 2) for name, size in held.items()},
        "after_gb": round(after, 1),
        "predicted_gb": predicted(checkpoint, **titan),
    }


def attended_positions(text: dict) -> int:
    """Pairs of a query and a position before it, over all layers of one row."""
    window = text.get("sliding_window") or CONTEXT
    full = CONTEXT * (CONTEXT + 1) // 2
    short = min(window, CONTEXT)
    inside = short * (short + 1) // 2 + (CONTEXT - short) * short
    return sum(inside if kind == "sliding_attention" else full for kind in text["layer_types"])


def predicted(checkpoint: Path, **changes) -> dict[str, dict[str, float]]:
    """Preflight's arithmetic for what torch allocates on this trainer, item by item, in GB."""
    from glimmer.config import load
    from glimmer.preflight.memory import trainer
    from glimmer.preflight.shapes import Shape

    config = load(ROOT / "config/config.yaml", ROOT / "config/h100x8.yaml")
    one = {"trainer_fsdp": 1, "trainer_tp": 1, "generator_tp": 1}
    titan = config["titan"] | one | {"context": CONTEXT, "rows_per_batch": ROWS} | changes
    shape = Shape.of(json.loads((checkpoint / "config.json").read_text()))
    outside = ("CUDA context", "allocator's slack")  # not among allocated bytes
    found = {}
    for step in (1, 2):
        items = trainer(shape, titan, step=step).items
        inside = {name: size / 1e9 for name, size in items.items() if name not in outside}
        found[f"step {step}"] = {"all": round(sum(inside.values()), 1)} | {
            name: round(size, 2) for name, size in inside.items() if size
        }
    return found


def measure(case: str, work: Path) -> dict:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # compat's imports touch CUDA, after which vLLM's own engine cannot be forked.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    from glimmer.training.titan import compat
    from glimmer.training.titan.launch import environment

    os.environ.update(environment())
    compat.apply()
    checkpoint = folder(work / "slice")
    if case in TRAINERS:
        return trainer(checkpoint, work, **TRAINERS[case])
    return generator(case, checkpoint, work)


def in_a_session(case: str) -> dict:
    """Result of a case in a process of its own. vLLM's engine outlives the one that started it, and
    would hold the GPU's memory in the next case."""
    from glimmer.processes import end_session

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__, "--case", case],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        process.wait()
        end_session(process)
        out.seek(0)
        errors.seek(0)
        lines = [x for x in out.read().splitlines() if x.startswith("RESULT ")]
        return json.loads(lines[0][7:]) if lines else {"failed": errors.read()[-1500:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", help="one case, in this process")
    parser.add_argument("--only", nargs="+", help="cases with one of these words in their name")
    options = parser.parse_args()
    if options.case:
        with tempfile.TemporaryDirectory() as work:
            found = measure(options.case, Path(work))
        print("RESULT " + json.dumps(found), flush=True)
        os._exit(0)  # vLLM's own teardown waits for process groups that are gone
    results = {}
    for case in [*GENERATORS, *TRAINERS]:
        if options.only and not any(word in case for word in options.only):
            continue
        results[case] = in_a_session(case)
        reference = max(
            results.get(name, {}).get("tokens_per_second", 0)
            for name in ("vllm, graphs", "vllm, 8192")
        )
        if reference and case in GENERATORS and "tokens_per_second" in results[case]:
            results[case]["of_vllm"] = results[case]["tokens_per_second"] / reference
        print(f"{case}: {json.dumps(results[case])}", file=sys.stderr, flush=True)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
