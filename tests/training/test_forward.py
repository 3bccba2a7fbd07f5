"""The prefix pass against torchtitan's own forward of the same module."""

import pytest
import torch

from glimmer.errors import ConfigError
from glimmer.training.local.forward import PrefixForward, common_prefix, pad_rows
from glimmer.training.local.model import parameter_count
from tests.training.conftest import TEXT_CONFIG


def tokens(rows, length, shared=6):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, TEXT_CONFIG["vocab_size"], (rows, length), generator=generator)
    ids[:, :shared] = ids[0, :shared].clone()
    return ids


def test_parameter_count_is_the_models(model):
    assert sum(p.numel() for p in model.parameters()) == parameter_count(TEXT_CONFIG)


@pytest.mark.parametrize("shared", [1, 6])
def test_training_pass_equals_torchtitan(model, shared):
    forward, ids = PrefixForward(model), tokens(3, 40)
    with torch.no_grad():
        expected = model(ids)[:, shared:]
        found = forward.logits(
            forward.hidden(forward.prefix(ids[0, :shared].tolist()), ids[:, shared:])
        )
    assert expected.std() > 0.5  # a model whose logits are all alike would pass anything
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_cached_pass_in_ragged_pieces_equals_torchtitan(model):
    forward, ids = PrefixForward(model), tokens(3, 40)
    prefix = forward.prefix(ids[0, :6].tolist())
    cache = forward.new_cache(3, 34)
    lengths = torch.zeros(3, dtype=torch.long)
    found = [[] for _ in range(3)]
    for valid in ([5, 9, 1], [20, 3, 7], [9, 22, 26]):
        n = torch.tensor(valid)
        rows = [ids[b, 6 + lengths[b] : 6 + lengths[b] + n[b]].tolist() for b in range(3)]
        padded, _ = pad_rows(rows)
        hidden = forward.append(prefix, cache, lengths, padded, n)
        for b in range(3):
            found[b].append(forward.logits(hidden[b, : n[b]]))
        lengths = lengths + n
    with torch.no_grad():
        expected = model(ids)[:, 6:]
    torch.testing.assert_close(
        torch.stack([torch.cat(rows) for rows in found]), expected, atol=1e-4, rtol=0
    )


def test_gradient_flows_through_the_shared_prefix_as_through_the_whole(model):
    forward, ids = PrefixForward(model), tokens(2, 20)
    parameters = list(model.parameters())

    def gradients(logits):
        loss = torch.log_softmax(logits, -1)[..., 0].sum()
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    whole = gradients(model(ids)[:, 6:])
    shared = gradients(
        forward.logits(forward.hidden(forward.prefix(ids[0, :6].tolist()), ids[:, 6:]))
    )
    for a, b in zip(whole, shared, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_padding_behind_a_row_changes_nothing(model):
    forward, ids = PrefixForward(model), tokens(1, 20)
    prefix = forward.prefix(ids[0, :6].tolist())
    with torch.no_grad():
        alone = forward.hidden(prefix, ids[:, 6:])
        padded = forward.hidden(prefix, torch.cat([ids[:, 6:], torch.zeros(1, 9, dtype=int)], 1))
    torch.testing.assert_close(padded[:, :14], alone, atol=1e-4, rtol=0)


def test_a_sequence_longer_than_the_window_is_refused(model):
    forward = PrefixForward(model)
    with pytest.raises(ConfigError, match="max_rollout_tokens.*257.*256"):
        forward.hidden(forward.prefix([1]), torch.zeros(1, 256, dtype=torch.long))


def test_common_prefix():
    assert common_prefix([[1, 2, 3], [1, 2, 4, 5]]) == 2
    assert common_prefix([[1, 2], [1, 2]]) == 1  # leaves a token to read
    assert common_prefix([[1, 2], [1, 2]], keep=0) == 2
    assert common_prefix([[3], [1]]) == 0
