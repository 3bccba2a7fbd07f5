"""Muse Glimmer's forward pass with a shared prompt prefix and a key/value cache.

The prompts of a batch begin with the same few hundred tokens (system prompt, tool schemas); their
keys and values are computed once and shared by all rows, in sampling and, with gradient, in
training. The weights are those of a torchtitan module; `glimmer.parity` holds the result against
the module's own forward and against transformers.

Shapes: B rows, T new tokens a row, P prefix tokens, C cached tokens a row, H query heads, K
key/value heads, G = H / K, D head dimension, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from glimmer.errors import ConfigError

PrefixKV = list[tuple[torch.Tensor, torch.Tensor]]  # a layer: keys and values, each [1, K, P, D]


@dataclass
class RowCache:
    """Keys and values of what follows the prefix, a layer: two tensors [B, K, C + 1, D].

    The last place is a bin: padding that would fall behind the capacity is written there.
    """

    layers: list[tuple[torch.Tensor, torch.Tensor]]

    @property
    def capacity(self) -> int:
        """C, the tokens a row can hold."""
        return self.layers[0][0].shape[2] - 1

    def select(self, rows: torch.Tensor, capacity: int) -> RowCache:
        """The given rows, in that order, in a cache of at least the old capacity."""
        picked = []
        for keys, values in self.layers:
            if capacity > self.capacity:
                pad = (0, 0, 0, capacity - self.capacity)
                picked.append((F.pad(keys[rows], pad), F.pad(values[rows], pad)))
            else:
                picked.append((keys[rows], values[rows]))
        return RowCache(picked)


class PrefixForward:
    """Runs a torchtitan Muse Glimmer module by its parameters; holds no weights of its own."""

    def __init__(self, model) -> None:
        self.model = model
        attention = model.config.layers[0].attention
        self.heads, self.kv_heads = attention.n_heads, attention.n_kv_heads
        self.head_dim = attention.head_dim
        self.groups = self.heads // self.kv_heads
        rope = attention.rope
        # Every layer sees the whole sequence as long as it is no longer than the window.
        windows = [layer.attention.window_size for layer in model.config.layers]
        self.max_length = min([rope.max_seq_len, *[w for w in windows if w]])
        inverse = 1.0 / (rope.theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        angles = torch.arange(rope.max_seq_len).float()[:, None] * inverse
        self._cos, self._sin = angles.cos(), angles.sin()

    @property
    def layers(self):
        """The decoder blocks, first to last."""
        return list(self.model.layers.values())

    def check_length(self, tokens: int) -> None:
        """Refuse a sequence longer than the window, on which this pass would be wrong."""
        if tokens > self.max_length:
            raise ConfigError(
                f"search.max_rollout_tokens: a sequence of {tokens} tokens was asked for, the "
                f"local engine takes at most {self.max_length} (the model's attention window). "
                "Lower search.max_rollout_tokens or use the titan engine."
            )

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding on interleaved pairs; x [B, T, heads, D], positions [B or 1, T]."""
        cos, sin = self._cos[positions][..., None, :], self._sin[positions][..., None, :]
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def _qkv(self, layer, x: torch.Tensor, positions: torch.Tensor):
        """Queries [B, H, T, D], keys and values [B, K, T, D] of the normed input x [B, T, dim]."""
        attention = layer.attention
        rows, length, _ = x.shape
        linear = attention.qkv_linear
        q = linear.wq(x).view(rows, length, self.heads, self.head_dim)
        k = linear.wk(x).view(rows, length, self.kv_heads, self.head_dim)
        v = linear.wv(x).view(rows, length, self.kv_heads, self.head_dim)
        q, k = attention.q_norm(q) * attention.scale_query_by, attention.k_norm(k)
        if attention.use_rope:
            q, k = self._rotate(q, positions), self._rotate(k, positions)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _finish(self, layer, x: torch.Tensor, normed: torch.Tensor, out: torch.Tensor):
        """Output gate, projection, residuals and feed-forward; out [B, H, T, D]."""
        attention = layer.attention
        rows, _, length, _ = out.shape
        out = out.transpose(1, 2).reshape(rows, length, -1)
        out = out * torch.sigmoid(attention.o_gate(normed))
        x = x + layer.post_attention_norm(attention.wo(out))
        return x + layer.post_ffn_norm(layer.feed_forward(layer.ffn_norm(x)))

    def _expand(self, x: torch.Tensor) -> torch.Tensor:
        """Key/value heads repeated for their query heads: [B, K, T, D] to [B, H, T, D]."""
        return x.repeat_interleave(self.groups, 1)

    def prefix(self, tokens: list[int]) -> PrefixKV:
        """Keys and values of a prefix of P >= 1 tokens, with gradient if enabled."""
        ids = torch.tensor([tokens])
        positions = torch.arange(len(tokens))[None]
        x = self.model.tok_embeddings(ids)
        kv: PrefixKV = []
        layers = self.layers
        for i, layer in enumerate(layers):
            normed = layer.attention_norm(x)
            q, k, v = self._qkv(layer, normed, positions)
            kv.append((k, v))
            if i + 1 < len(layers):  # nothing reads the last layer's output
                out = F.scaled_dot_product_attention(
                    q, self._expand(k), self._expand(v), is_causal=True
                )
                x = self._finish(layer, x, normed, out)
        return kv

    def hidden(self, prefix: PrefixKV, tokens: torch.Tensor) -> torch.Tensor:
        """Final hidden states [B, T, dim] of right-padded rows `tokens` [B, T] after the prefix.

        Padding is at the end, where causality keeps it from what stands before.
        """
        rows, length = tokens.shape
        known = prefix[0][0].shape[2]
        self.check_length(known + length)
        positions = known + torch.arange(length)[None]
        mask = torch.ones(length, known + length, dtype=torch.bool).tril(known)
        x = self.model.tok_embeddings(tokens)
        for layer, (prefix_k, prefix_v) in zip(self.layers, prefix, strict=True):
            normed = layer.attention_norm(x)
            q, k, v = self._qkv(layer, normed, positions)
            k = torch.cat([prefix_k.expand(rows, -1, -1, -1), k], 2)
            v = torch.cat([prefix_v.expand(rows, -1, -1, -1), v], 2)
            out = F.scaled_dot_product_attention(
                q, self._expand(k), self._expand(v), attn_mask=mask
            )
            x = self._finish(layer, x, normed, out)
        return self.model.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Soft-capped float32 logits [..., V] of hidden states [..., dim]."""
        return self.model.lm_head(hidden)

    def new_cache(self, rows: int, capacity: int) -> RowCache:
        """An empty cache of `rows` rows for `capacity` tokens each."""
        shape = (rows, self.kv_heads, capacity + 1, self.head_dim)
        return RowCache([(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers])

    @torch.no_grad()
    def append(
        self,
        prefix: PrefixKV,
        cache: RowCache,
        lengths: torch.Tensor,
        tokens: torch.Tensor,
        valid: torch.Tensor,
    ) -> torch.Tensor:
        """Add tokens to every row of the cache; returns the hidden state [B, T, dim] of each.

        Args:
            prefix: shared keys and values.
            cache: written in place from position `lengths[b]` on.
            lengths: [B] tokens that row b holds already.
            tokens: [B, T], row b valid up to `valid[b]`, then padding. What padding writes into
                the cache lies behind the row's length and is overwritten before it is read.
            valid: [B], each at least 1.
        """
        rows, length = tokens.shape
        known = prefix[0][0].shape[2]
        offsets = lengths[:, None] + torch.arange(length)[None]
        highest = int((lengths + valid).max())
        self.check_length(known + highest)
        offsets = offsets.clamp(max=cache.capacity)
        positions = (offsets + known).clamp(max=self._cos.shape[0] - 1)
        row_index = torch.arange(rows)[:, None]
        hidden_future = torch.arange(highest)[None, None] > offsets[:, :, None]  # [B, T, C]
        bias = torch.zeros(rows, 1, 1, length, highest).masked_fill_(
            hidden_future[:, None, None], float("-inf")
        )
        x = self.model.tok_embeddings(tokens)
        scale = self.head_dim**-0.5
        heads = (rows, self.kv_heads, self.groups, length)
        flat = rows * self.groups * length
        for layer, (prefix_k, prefix_v), (keys, values) in zip(
            self.layers, prefix, cache.layers, strict=True
        ):
            normed = layer.attention_norm(x)
            q, k, v = self._qkv(layer, normed, positions)
            keys[row_index, :, offsets] = k.transpose(1, 2)
            values[row_index, :, offsets] = v.transpose(1, 2)
            own_k, own_v = keys[:, :, :highest], values[:, :, :highest]
            grouped = q.reshape(rows, self.kv_heads, self.groups * length, self.head_dim) * scale
            own = (grouped @ own_k.transpose(-1, -2)).view(*heads, highest) + bias
            # The prefix is the same for all rows, so its scores are one product a head.
            by_head = grouped.transpose(0, 1).reshape(self.kv_heads, flat, self.head_dim)
            shared = (by_head @ prefix_k[0].transpose(-1, -2)).view(
                self.kv_heads, rows, self.groups, length, known
            )
            weights = torch.softmax(torch.cat([shared.transpose(0, 1), own], -1), -1)
            on_prefix, on_own = weights.split([known, highest], -1)
            out = (
                (on_prefix.transpose(0, 1).reshape(self.kv_heads, flat, known) @ prefix_v[0])
                .view(self.kv_heads, rows, self.groups * length, self.head_dim)
                .transpose(0, 1)
            )
            out = out + on_own.reshape(rows, self.kv_heads, -1, highest) @ own_v
            out = out.reshape(rows, self.heads, length, self.head_dim)
            x = self._finish(layer, x, normed, out)
        return self.model.norm(x)


def common_prefix(rows: list[list[int]], *, keep: int = 1) -> int:
    """Length of the longest prefix shared by all rows that leaves each at least `keep` tokens."""
    shortest = min(map(len, rows)) - keep
    first = rows[0]
    for i in range(max(shortest, 0)):
        if any(row[i] != first[i] for row in rows):
            return i
    return max(shortest, 0)


def pad_rows(rows: list[list], value=0) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded tensor [B, T] of ragged rows, and their lengths [B]."""
    width = max(map(len, rows))
    padded = torch.tensor([row + [value] * (width - len(row)) for row in rows])
    return padded, torch.tensor([len(row) for row in rows])
