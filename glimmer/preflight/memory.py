"""GPU memory by arithmetic, item by item, for a trainer GPU and a generator GPU.

All figures are bytes. Sources: torchtitan 0.3.0 (float32 master weights and gradients, fused AdamW,
FSDP that gathers in bfloat16 and reduces in float32, activation checkpointing a layer, chunked
loss, a bfloat16 copy of the shard at each weight sync) and vLLM 0.28 (a budget of
`generator_memory_fraction` of the card, of which the KV cache takes what weights leave).

Adam's two moments are made in the first optimizer step: that is the jump between step 1 and 2. With
`titan.adam_on_host` they are there during an optimizer step only, when activations are gone.
What arithmetic cannot give stands in `Constants`, each with where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glimmer.preflight.shapes import Shape, layer_tensors, parameters

GIB = 2**30
_BF16, _FP32 = 2, 4


@dataclass(frozen=True, slots=True)
class Constants:
    """Bytes that no formula gives.

    Attributes:
        context: CUDA context and loaded kernels of one process (0.5 to 0.7 GiB on Hopper).
        collectives: NCCL's buffers where a process talks to others, for its communicators.
        engine: what vLLM holds beside weights and cache: activations of a forward pass of 2,048
            tokens, sampler.
        graphs: CUDA graphs of the generator.
        slack: share of all tensors that the caching allocator holds in pieces.
    """

    context: int = int(0.6 * GIB)
    collectives: int = 1 * GIB
    engine: int = int(1.5 * GIB)
    graphs: int = 1 * GIB
    slack: float = 0.03


@dataclass(frozen=True, slots=True)
class Budget:
    """What one GPU holds at one moment, item by item in bytes, and their sum."""

    items: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.items.values())


def kept_activations(shape: Shape, *, tp: int, tokens: int, checkpoint: str) -> int:
    """Bytes that the forward pass keeps for the backward pass, over all layers.

    Counted by the tensors that autograd saves, in bfloat16: the residual stream and what is `dim`
    wide is whole on each GPU (no sequence parallelism), heads and hidden units are split. `full`
    keeps each layer's input; `selective` also attention's output and every second matrix product
    (wq, wv, wo, w3); `none` all.
    """
    d, q, kv, h = shape.dim, shape.q // tp, shape.kv // tp, shape.hidden // tp
    wide = {
        "full": d,
        "selective": 2 * d + 2 * q + kv + h,
        "none": _whole_layer(d, q, kv, h),
    }[checkpoint]
    return shape.layers * tokens * wide * _BF16


def _whole_layer(d: int, q: int, kv: int, h: int) -> int:
    """Elements a token that one layer keeps without checkpointing: inputs of both norms and of both
    post-norms, both norms' outputs (6 d); queries raw, normed, scaled, rotated, attention's output,
    gate, its sigmoid and product (8 q); keys and values raw and normed (4 kv); w1, w3, silu, their
    product (4 h)."""
    return 6 * d + 8 * q + 4 * kv + 4 * h


def trainer(
    shape: Shape,
    titan: Mapping[str, Any],
    *,
    step: int,
    constants: Constants | None = None,
) -> Budget:
    """A trainer GPU at the peak of its `step`-th step, 1 or 2 (every later one is like 2).

    Args:
        titan: config section.
    """
    constants = constants or Constants()
    if titan["adam_on_host"]:
        passes = _passes(shape, titan, adam=False, constants=constants)
        update = _update(shape, titan, constants=constants)
        return max(passes, update, key=lambda budget: budget.total)
    return _passes(shape, titan, adam=step > 1, constants=constants)


def _update(shape: Shape, titan: Mapping[str, Any], *, constants: Constants) -> Budget:
    """A trainer GPU in its optimizer step: no activations, nothing gathered."""
    mine = parameters(shape, fsdp=titan["trainer_fsdp"], tp=titan["trainer_tp"]) * _FP32
    return _with_constants(
        {
            "weights, float32": mine,
            "gradients, float32": mine,
            "Adam m, float32": mine,
            "Adam v, float32": mine,
        },
        4 * mine,
        titan,
        constants,
    )


def _with_constants(
    items: dict[str, int], tensors: int, titan: Mapping[str, Any], constants: Constants
) -> Budget:
    """`items`, and what no formula gives; `tensors` is what the allocator's slack goes by."""
    return Budget(
        items
        | {
            "allocator's slack": int(constants.slack * tensors),
            "CUDA context": constants.context,
            "NCCL buffers": constants.collectives
            if titan["trainer_fsdp"] * titan["trainer_tp"] > 1
            else 0,
        }
    )


def _passes(shape: Shape, titan: Mapping[str, Any], *, adam: bool, constants: Constants) -> Budget:
    """A trainer GPU at the peak of forward and backward pass, or of the sync behind them.

    Args:
        adam: whether Adam's moments are there.
    """
    fsdp, tp = titan["trainer_fsdp"], titan["trainer_tp"]
    tokens = titan["context"] * titan["rows_per_batch"]
    mine = parameters(shape, fsdp=fsdp, tp=tp)
    layer = sum(t.local(1, tp) for t in layer_tensors(shape, 0))
    head = shape.dim * shape.vocab // tp
    chunk = tokens // titan["loss_chunks"]
    d, q, kv, h = shape.dim, shape.q // tp, shape.kv // tp, shape.hidden // tp
    # Two moments compete for the peak: the loss, and the backward pass of the last layer.
    gathered_loss = head * (2 * _BF16 + _FP32)  # head, its gradient, and that in float32
    # Linear's output in bfloat16, then float32: logits, scaled, tanh, capped, softmax, gradient.
    logits = chunk * (shape.vocab // tp) * (_BF16 + 6 * _FP32)
    hidden = 3 * tokens * d * _BF16  # final hidden states, their copy in chunks, their gradient
    recomputed = 0
    if titan["activation_checkpoint"] != "none":
        recomputed = tokens * _whole_layer(d, q, kv, h) * _BF16
    flowing = tokens * (2 * d + 2 * h) * _BF16  # gradients between and within a layer
    # Two layers gathered (one prefetched), one layer's gradient and that in float32.
    gathered_layer = layer * (2 * _BF16 + _BF16 + _FP32)
    in_loss = gathered_loss + logits + hidden
    in_layer = gathered_layer + recomputed + flowing + tokens * d * _BF16
    kept = kept_activations(shape, tp=tp, tokens=tokens, checkpoint=titan["activation_checkpoint"])
    items = {
        "weights, float32": mine * _FP32,
        "gradients, float32": mine * _FP32,
        "Adam m, float32": mine * _FP32 if adam else 0,
        "Adam v, float32": mine * _FP32 if adam else 0,
        f"activations kept ({titan['activation_checkpoint']} checkpointing)": kept,
    }
    if in_loss >= in_layer:
        items |= {
            "output head, gathered, with its gradient": gathered_loss,
            f"logits of a chunk of {chunk} tokens": logits,
            "final hidden states and their gradient": hidden,
        }
    else:
        items |= {
            "layers gathered, with a layer's gradient": gathered_layer,
            "activations computed again, and gradients": in_layer - gathered_layer,
        }
    tensors = sum(items.values())
    # The sync copies the shard in bfloat16 when the gradients are gone; it counts where it is more.
    sync = mine * (_FP32 + _BF16) + (2 * mine * _FP32 if adam else 0)
    items["sync buffer beyond that, bfloat16"] = max(0, sync - tensors)
    return _with_constants(items, max(tensors, sync), titan, constants)


def beside_push(
    shape: Shape, titan: Mapping[str, Any], *, constants: Constants | None = None
) -> int:
    """Bytes of a trainer GPU if a step peaks while the weights of the step before are still being
    sent; 0 on-policy, where rollouts, and with them the step, wait for the sync.

    Off-policy the push goes on beside forward and backward pass, and holds the shard's copy in
    bfloat16 until all of it is in main memory. How long that is, arithmetic cannot say.
    """
    if not titan["offpolicy_steps"]:
        return 0
    mine = parameters(shape, fsdp=titan["trainer_fsdp"], tp=titan["trainer_tp"])
    passes = _passes(
        shape, titan, adam=not titan["adam_on_host"], constants=constants or Constants()
    )
    return passes.total + mine * _BF16


def optimizer_jump(shape: Shape, titan: Mapping[str, Any]) -> int:
    """Bytes that a trainer GPU takes more in step 2 than in step 1: Adam's two moments, or none
    where they wait on the host."""
    if titan["adam_on_host"]:
        return 0
    mine = parameters(shape, fsdp=titan["trainer_fsdp"], tp=titan["trainer_tp"])
    return 2 * mine * _FP32


def kv_bytes_per_token(shape: Shape, tp: int) -> int:
    """Bytes of key/value cache that a token takes on a generator GPU; windows are not counted."""
    return 2 * shape.layers * (shape.kv // min(tp, shape.kv_heads)) * _BF16


def generator(
    shape: Shape,
    titan: Mapping[str, Any],
    *,
    card: int,
    constants: Constants | None = None,
) -> Budget:
    """A generator GPU while it takes new weights, the moment at which it holds most.

    Args:
        titan: config section.
        card: bytes of the GPU.
    """
    constants = constants or Constants()
    tp = titan["generator_tp"]
    weights = parameters(shape, tp=tp) * _BF16
    limit = int(titan["generator_memory_fraction"] * card)
    graphs = 0 if titan["cudagraph"] == "off" else constants.graphs
    # Beyond the constant's pass: gate, up and their product, four of the residual's width.
    tokens = max(0, titan["generator_tokens_per_step"] - 2048)
    engine = constants.engine + tokens * (3 * shape.hidden // tp + 4 * shape.dim) * _BF16
    return Budget(
        {
            "weights, bfloat16": weights,
            "vLLM's activations and sampler": engine,
            "key/value cache": limit - weights - engine,
            "CUDA graphs": graphs,
            "sync buffer, bfloat16": weights,
            "CUDA context": constants.context,
            "NCCL buffers": constants.collectives if tp > 1 else 0,
        }
    )


def cache_tokens(shape: Shape, titan: Mapping[str, Any], *, card: int) -> int:
    """Tokens of all rollouts under way that the generator's cache holds."""
    cache = generator(shape, titan, card=card).items["key/value cache"]
    return cache // kv_bytes_per_token(shape, titan["generator_tp"])


def largest_context(shape: Shape, titan: Mapping[str, Any], *, card: int, other: int = 0) -> int:
    """The longest `titan.context`, a multiple of 256, whose step 2 fits a card; 0 if none does.

    Args:
        card: bytes of the GPU.
        other: bytes on it that others hold.
    """
    best = 0
    for context in range(256, shape.positions + 1, 256):
        trial = {**titan, "context": context}
        if trainer(shape, trial, step=2).total + other > card:
            break
        best = context
    return best
