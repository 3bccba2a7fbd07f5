"""Parallel degrees and batch sizes against the model. Pure arithmetic; no GPU is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from glimmer.preflight.findings import Finding, ok, refuse
from glimmer.preflight.shapes import Shape


def check_degrees(shape: Shape, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings for trainer and generator degrees, context and chunks."""
    titan, training = config["titan"], config["training"]
    fsdp, tp, gen = titan["trainer_fsdp"], titan["trainer_tp"], titan["generator_tp"]
    for key, degree in (("trainer_tp", tp), ("generator_tp", gen)):
        yield _divides(
            f"{key} and key/value heads",
            f"titan.{key}",
            degree,
            shape.kv_heads,
            f"the model's {shape.kv_heads} key/value heads",
        )
        yield _divides(
            f"{key} and query heads",
            f"titan.{key}",
            degree,
            shape.heads,
            f"the model's {shape.heads} query heads",
        )
        yield _divides(
            f"{key} and vocabulary",
            f"titan.{key}",
            degree,
            shape.vocab,
            f"the model's vocabulary of {shape.vocab}",
        )
        yield _divides(
            f"{key} and hidden units",
            f"titan.{key}",
            degree,
            shape.hidden,
            f"the feed-forward width {shape.hidden}",
        )
    if shape.hidden % tp == 0:
        mine = shape.hidden // tp
        yield _divides(
            "trainer_fsdp and hidden units",
            "titan.trainer_fsdp",
            fsdp,
            mine,
            f"the feed-forward width {shape.hidden} / titan.trainer_tp {tp} = {mine}",
        )
    tokens = titan["context"]
    what = "context and the model"
    if tokens > shape.positions:
        yield refuse(
            what,
            f"titan.context {tokens}",
            f"at most {shape.positions} positions",
            f"Set titan.context to {shape.positions} or less.",
        )
    else:
        yield ok(what, f"titan.context {tokens}", f"at most {shape.positions}")
    yield _rollout_fits(config)
    chunks = titan["loss_chunks"]
    what = "loss chunks"
    if tokens % chunks:
        yield refuse(
            what,
            f"titan.context {tokens}, titan.loss_chunks {chunks}",
            "equal chunks of the context",
            f"Set titan.loss_chunks to {_nearest_divisor(tokens, chunks)}, or titan.context to "
            f"{(tokens // chunks + 1) * chunks}.",
        )
    else:
        yield ok(what, f"{chunks} of {tokens // chunks} tokens")
    rollouts = training["prompts_per_step"] * training["samples_per_prompt"]
    what = "rollouts for every trainer GPU"
    if rollouts < fsdp * titan["rows_per_batch"]:
        yield refuse(
            what,
            f"{rollouts} rollouts a step",
            f"at least titan.trainer_fsdp {fsdp} x titan.rows_per_batch {titan['rows_per_batch']}",
            "Set titan.rows_per_batch to 1, or raise training.prompts_per_step to "
            f"{-(-fsdp * titan['rows_per_batch'] // training['samples_per_prompt'])}.",
        )
    else:
        yield ok(what, f"{rollouts} a step, {fsdp} data-parallel ranks")
    yield _invariant(titan)


def _divides(what: str, key: str, degree: int, size: int, named: str) -> Finding:
    if size % degree == 0:
        return ok(what, f"{key} {degree}", f"divides {named}")
    return refuse(
        what,
        f"{key} {degree}",
        f"a divisor of {named}",
        f"Set {key} to {_nearest_divisor(size, degree)}.",
    )


def _nearest_divisor(size: int, wanted: int) -> int:
    """The divisor of `size` nearest to `wanted`, the smaller one of two."""
    divisors = [n for n in range(1, 2 * wanted + 1) if size % n == 0]
    return min(divisors, key=lambda n: (abs(n - wanted), n))


def _rollout_fits(config: Mapping[str, Any]) -> Finding:
    tokens, longest = config["titan"]["context"], config["search"]["max_rollout_tokens"]
    if longest > tokens:
        return refuse(
            "rollouts fit a row",
            f"search.max_rollout_tokens {longest}",
            f"at most titan.context {tokens}; longer ones would be left out of the loss",
            f"Set titan.context to {longest}.",
        )
    return ok("rollouts fit a row", f"{longest} of {tokens} tokens")


def _invariant(titan: Mapping[str, Any]) -> Finding:
    what = "batch-invariant mode"
    if titan["batch_invariant"] and titan["attention"] == "flex":
        return refuse(
            what,
            "titan.batch_invariant true with titan.attention flex",
            "attention varlen: the recipe does not pin the kernels of flex",
            "Set titan.attention to varlen, or titan.batch_invariant to false.",
        )
    if titan["batch_invariant"] and titan["cudagraph"] != "off":
        # In this mode the generator has torch's FlashAttention 2, and vLLM's estimate of graphs'
        # memory asks that for more queries than keys, at which it writes past its buffer
        # (Dao-AILab/flash-attention, issue 2842; seen on an H200 as an illegal memory access).
        return refuse(
            what,
            f"titan.batch_invariant true with titan.cudagraph {titan['cudagraph']}",
            "cudagraph off: vLLM's start with graphs makes torch's attention write past its buffer",
            "Set titan.cudagraph to off, or titan.batch_invariant to false.",
        )
    return ok(what, str(titan["batch_invariant"]).lower())
