"""The text model's tensors from a `text_config`: names, shapes, and what one GPU holds of them.

Tensor parallelism splits attention and feed-forward by heads and hidden units, embedding and head
by vocabulary, and leaves norms whole (torchtitan 0.3.0, models/muse_glimmer/sharding.py). FSDP then
splits dimension 0 of what is left into equal parts, the last ones shorter or empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """What memory depends on.

    Attributes:
        dim, hidden, layers, heads, kv_heads, head_dim, vocab: of the text model.
        window: tokens of the sliding window, 0 for none.
        positions: longest sequence that the model was made for.
    """

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    window: int
    positions: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """From a checkpoint's `config.json`."""
        text = config["text_config"]
        return cls(
            dim=text["hidden_size"],
            hidden=text["intermediate_size"],
            layers=text["num_hidden_layers"],
            heads=text["num_attention_heads"],
            kv_heads=text["num_key_value_heads"],
            head_dim=text["head_dim"],
            vocab=text["vocab_size"],
            window=text.get("sliding_window") or 0,
            positions=text["max_position_embeddings"],
        )

    @property
    def q(self) -> int:
        """Width of queries, of the attention's output and of its gate."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of keys, and of values."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter: torchtitan's name, shape, and the dimension that tensor parallelism splits."""

    name: str
    shape: tuple[int, ...]
    split: int | None

    def local(self, fsdp: int, tp: int) -> int:
        """Elements on the GPU that holds most of it."""
        sizes = list(self.shape)
        if self.split is not None:
            sizes[self.split] = math.ceil(sizes[self.split] / tp)
        sizes[0] = math.ceil(sizes[0] / fsdp)
        return math.prod(sizes)


def tensors(shape: Shape) -> Iterator[Tensor]:
    """Every parameter of the text model."""
    yield Tensor("tok_embeddings.embedding.weight", (shape.vocab, shape.dim), 0)
    for layer in range(shape.layers):
        yield from layer_tensors(shape, layer)
    yield Tensor("norm.weight", (shape.dim,), None)
    yield Tensor("lm_head.weight", (shape.vocab, shape.dim), 0)


def layer_tensors(shape: Shape, layer: int) -> Iterator[Tensor]:
    """The parameters of one layer."""
    d, h = shape.dim, shape.hidden
    for name, size, split in (
        ("attention.qkv_linear.wq", (shape.q, d), 0),
        ("attention.qkv_linear.wk", (shape.kv, d), 0),
        ("attention.qkv_linear.wv", (shape.kv, d), 0),
        ("attention.o_gate", (shape.q, d), 0),
        ("attention.wo", (d, shape.q), 1),
        ("feed_forward.w1", (h, d), 0),
        ("feed_forward.w3", (h, d), 0),
        ("feed_forward.w2", (d, h), 1),
        ("attention_norm", (d,), None),
        ("post_attention_norm", (d,), None),
        ("ffn_norm", (d,), None),
        ("post_ffn_norm", (d,), None),
    ):
        yield Tensor(f"layers.{layer}.{name}.weight", size, split)


def parameters(shape: Shape, *, fsdp: int = 1, tp: int = 1) -> int:
    """Parameters on the GPU that holds most; of the whole model without degrees."""
    return sum(tensor.local(fsdp, tp) for tensor in tensors(shape))
