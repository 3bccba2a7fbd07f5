"""Which texts go through the model together, and the device's path, run on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glimmer.errors import ConfigError
from glimmer.retrieval.encoder import Encoder, plan_batches

from .conftest import MODEL


@given(
    st.lists(st.integers(1, 40), max_size=300),
    st.integers(1, 20),
    st.booleans(),
    st.none() | st.integers(1, 200),
)
def test_plan(lengths, batch_size, pad, max_tokens):
    lengths = np.array(lengths, np.int32)
    order, batches = plan_batches(lengths, batch_size, pad=pad, max_tokens=max_tokens)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    place = 0
    for first, last, length, padded in batches:
        found = lengths[order[first:last]]
        assert first == place and 0 < len(found) <= batch_size
        assert found.max() == length and padded == (found.min() < length)
        assert not padded or pad
        assert padded or max_tokens is None or len(found) * length <= max_tokens or len(found) == 1
        place = last
    assert place == len(lengths)
    if not pad:
        of_length = {}
        for first, last, length, _ in batches:
            of_length.setdefault(length, []).append(last - first)
        for length, sizes in of_length.items():
            size = (
                batch_size if max_tokens is None else max(1, min(batch_size, max_tokens // length))
            )
            assert max(sizes) - min(sizes) <= 1 and len(sizes) == -(-sum(sizes) // size)


def test_with_padding_only_the_last_batch_is_small():
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 200, 5000)
    _, batches = plan_batches(lengths, 64, pad=True)
    sizes = [last - first for first, last, _, _ in batches]
    assert min(sizes[:-1]) >= 16
    padding = sum((b - a) * n for a, b, n, _ in batches) / lengths.sum() - 1
    assert padding < 0.02


def test_the_device_path_gives_the_vectors_of_the_cpu_path(world, encoder):
    """It runs on any device; on a CPU it can be compared: padded and unpadded batches."""
    texts = [row["contents"] for row in world.rows] + ["a"] + ["x y z " * n for n in range(1, 60)]
    tokens = encoder.tokeniser(texts)
    _, batches = plan_batches(tokens.lengths, 16, pad=True)
    assert {padded for *_, padded in batches} == {True, False}
    found = encoder._on_device(tokens, 16)()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, encoder.embed(tokens, batch_size=16)(), atol=2e-6)


def test_the_device_path_leaves_out_attention_that_plans_every_shape(encoder, monkeypatch):
    """cuDNN's made 65,536 passages take 12 s on an H200 instead of 4."""
    allowed = []
    forward = encoder._forward

    def seen(features):
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return forward(features)

    monkeypatch.setattr(encoder, "_forward", seen)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    encoder._on_device(encoder.tokeniser(["one", "two words"], prefix=""), 2)()
    assert allowed and not any(allowed)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_no_texts(encoder):
    assert encoder.queries([]).shape == (0, 384)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "float16"}, "embedding.dtype: found 'float16' with embedding.device cpu"),
        ({"dtype": "half"}, "embedding.dtype: found 'half', expected one of float32"),
        ({"device": "cuda:99"}, "embedding.device: found 'cuda:99', but torch .* sees .* GPUs"),
    ],
)
def test_settings_that_no_device_has(settings, says):
    with pytest.raises(ConfigError, match=says):
        Encoder(MODEL, **settings)
