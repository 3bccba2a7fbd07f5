import asyncio
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glimmer.errors import GlimmerError
from glimmer.training.local.model import load_model
from glimmer.training.titan.digest import SyncLog, digest, noted, tensor_sum

SHIPPED = Path(__file__).parents[3] / "resources/tiny_glimmer"


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return {n: torch.randn(7, 5, generator=generator) for n in ("a", "b")}


def test_shards_add_up_to_the_whole(weights):
    whole = tensor_sum(weights["a"])
    parts = [tensor_sum(part) for part in weights["a"].split(3)]
    assert (sum(parts) - whole) % 2**64 == 0


def test_the_smallest_change_is_seen(weights):
    before = digest(weights)
    bits = weights["a"].bfloat16().view(torch.int16)
    bits[0, 0] ^= 1
    assert digest(weights | {"a": bits.view(torch.bfloat16)}) != before


def test_a_missing_or_renamed_tensor_is_seen(weights):
    before = digest(weights)
    assert digest({"a": weights["a"]}) != before
    assert digest({"a": weights["b"], "b": weights["a"]}) != before


def test_both_sides_are_compared_in_bfloat16(weights):
    assert digest(weights) == digest({k: v.bfloat16() for k, v in weights.items()})


def test_integer_tensors_do_not_count(weights):
    assert digest(weights | {"positions": torch.arange(3)}) == digest(weights)


@given(st.lists(st.floats(width=16, allow_nan=False), min_size=1, max_size=20), st.randoms())
def test_order_of_elements_does_not_matter(values, random):
    shuffled = values[:]
    random.shuffle(shuffled)
    sums = {tensor_sum(torch.tensor(v, dtype=torch.bfloat16)) for v in (values, shuffled)}
    assert len(sums) == 1


def note(log, version, trainer, generator):
    log.note("trainer", version, digest=trainer)
    log.note("generator", version, digest=generator)


def test_a_sync_that_brought_other_weights_stops_the_run(tmp_path):
    log = SyncLog(tmp_path)
    note(log, 3, "aaaa", "bbbb")
    with pytest.raises(GlimmerError, match=r"weight sync 3.*aaaa.*bbbb"):
        log.check(3, may_stand_still=False)


def test_a_sync_that_changed_nothing_stops_the_run(tmp_path):
    log = SyncLog(tmp_path)
    note(log, 1, "aaaa", "aaaa")
    note(log, 2, "aaaa", "aaaa")
    log.check(2, may_stand_still=True)  # the control with advantages of 0
    with pytest.raises(GlimmerError, match="changed nothing"):
        log.check(2, may_stand_still=False)
    note(log, 3, "cccc", "cccc")
    assert log.check(3, may_stand_still=False)["digest"] == "cccc"


def test_nothing_of_a_put_is_behind_what_runs_while_it_waits(weights, monkeypatch):
    """Off-policy the next forward pass runs while a put waits. Collectives of the digest behind it
    would come in another order on another rank, and both would wait for ever."""
    order = []

    def collective(state):
        order.append("digest")
        return digest(state)

    async def put(state, key):
        order.append("put")
        await asyncio.sleep(0)
        order.append(f"put of {key} ended")

    async def forward_backward():
        order.append("forward_backward")

    async def step():
        push = asyncio.create_task(noted(put, lambda **facts: told.append(facts))(weights, "w"))
        await asyncio.gather(push, asyncio.create_task(forward_backward()))

    told = []
    monkeypatch.setattr("glimmer.training.titan.digest.digest", collective)
    asyncio.run(step())
    assert order == ["digest", "put", "forward_backward", "put of w ended"]
    assert told[0]["digest"] == digest(weights) and told[0]["seconds"] >= 0


def test_a_sync_sends_the_weights_themselves():
    """Fault 21: a second copy of the gate and up projections in what is sent."""
    model = load_model(SHIPPED)
    sent = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    own = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    buffers = {name for name, _ in model.named_buffers()}
    assert {name: place for name, place in sent.items() if name not in buffers} == own
    assert len(set(own.values())) == len(own)
