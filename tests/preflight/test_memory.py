"""The arithmetic: against the reference run, a measured run, and torchtitan's own model."""

from __future__ import annotations

from glimmer.preflight import memory
from glimmer.preflight.shapes import Shape, parameters, tensors
from glimmer.preflight.storage import hnsw_item, shm_bytes
from glimmer.training.local.model import parameter_count

from .hosts import GIB, H100_80, H200, MODEL, paper_run

SHAPE = Shape.of(MODEL)
TITAN = paper_run()["titan"]
# The trial's model of 0.83 B parameters: dimension 2,048, 16 layers, vocabulary 2,048.
SMALL = Shape(
    dim=2048,
    hidden=6144,
    layers=16,
    heads=16,
    kv_heads=2,
    head_dim=128,
    vocab=2048,
    window=128,
    positions=4096,
)


def test_parameters_are_those_of_the_formula_and_the_release():
    assert parameters(SHAPE) == parameter_count(MODEL["text_config"]) == 27_854_780_928
    assert parameters(SMALL) == 830_605_312


def test_tensor_parallel_shards_of_all_ranks_make_the_model():
    """Only norms are held twice."""
    norms = sum(t.local(1, 1) for t in tensors(SHAPE) if t.split is None)
    assert 2 * parameters(SHAPE, tp=2) == parameters(SHAPE) + norms


def test_the_jump_after_step_1_is_the_reference_runs():
    """37 GB a GPU, over six."""
    assert round(memory.optimizer_jump(SHAPE, TITAN) / 1e9) == 37
    one, two = (memory.trainer(SHAPE, TITAN, step=step).total for step in (1, 2))
    assert 37 <= (two - one) / 1e9 <= 39


def test_the_reference_runs_peak():
    """88 GB a training GPU were reported for this recipe at context 4,096."""
    assert abs(memory.trainer(SHAPE, TITAN, step=2).total / 1e9 - 88) < 0.1 * 88


def test_full_checkpointing_fits_where_selective_does_not():
    selective = {**TITAN, "activation_checkpoint": "selective"}
    full, more, card = (
        memory.trainer(SHAPE, TITAN, step=2).total,
        memory.trainer(SHAPE, selective, step=2).total,
        90_000_000_000,
    )
    assert full <= card < more
    assert memory.trainer(SHAPE, selective, step=1).total <= card


def test_eighty_gigabytes_hold_a_shorter_context_only():
    assert memory.trainer(SHAPE, TITAN, step=2).total > H100_80
    longest = memory.largest_context(SHAPE, TITAN, card=H100_80)
    assert 0 < longest < 4096
    fits = memory.trainer(SHAPE, {**TITAN, "context": longest}, step=2)
    assert fits.total <= H100_80
    assert memory.trainer(SHAPE, {**TITAN, "context": longest + 256}, step=2).total > H100_80


def test_eighty_gigabytes_hold_the_paper_run_with_adam_on_the_host():
    """Adam's 37 GB are there in the optimizer step only, the 13 GB of the passes are not."""
    titan = {**TITAN, "adam_on_host": True}
    budget = memory.trainer(SHAPE, titan, step=2)
    assert budget.total <= 0.95 * H100_80
    assert not any("activations" in name for name in budget.items)
    mine = parameters(SHAPE, fsdp=3, tp=2)
    assert 16 * mine < budget.total < 17 * mine
    assert memory.optimizer_jump(SHAPE, titan) == 0
    # Where activations are more than the moments, the passes decide, without the moments.
    long = {**titan, "context": 65536}
    passes = memory.trainer(SHAPE, long, step=2)
    assert passes.total == memory.trainer(SHAPE, {**long, "adam_on_host": False}, step=1).total


def test_off_policy_the_copy_for_the_push_may_stand_beside_the_next_step():
    mine = parameters(SHAPE, fsdp=3, tp=2)
    step = memory.trainer(SHAPE, TITAN, step=2).total
    assert memory.beside_push(SHAPE, TITAN) == step + 2 * mine
    assert memory.beside_push(SHAPE, {**TITAN, "offpolicy_steps": 0}) == 0
    # With Adam on the host the push meets the passes, which are without the moments.
    on_host = memory.beside_push(SHAPE, {**TITAN, "adam_on_host": True})
    assert on_host == memory.trainer(SHAPE, TITAN, step=1).total + 2 * mine


def test_one_h200_with_the_trials_model():
    """Measured there: a peak of 55 to 59 GiB of GPU, both processes, limit 0.3; 1.6 GB of shm."""
    titan = {
        **TITAN,
        "trainer_fsdp": 1,
        "trainer_tp": 1,
        "generator_tp": 1,
        "context": 512,
        "rows_per_batch": 2,
        "activation_checkpoint": "selective",
        "generator_memory_fraction": 0.3,
    }
    both = (
        memory.trainer(SMALL, titan, step=2).total + memory.generator(SMALL, titan, card=H200).total
    )
    assert 55 * 0.9 <= both / GIB <= 59 * 1.1
    assert 1.5e9 < shm_bytes(SMALL) < 1.8e9


def test_every_budget_grows_with_context_and_rows():
    base = memory.trainer(SHAPE, TITAN, step=2).total
    for change in ({"context": 8192}, {"rows_per_batch": 2}):
        assert memory.trainer(SHAPE, {**TITAN, **change}, step=2).total > base
    assert memory.trainer(SHAPE, {**TITAN, "trainer_fsdp": 6}, step=2).total < base
    chunked = memory.trainer(SHAPE, {**TITAN, "loss_chunks": 16}, step=2).total
    assert chunked < base


def test_the_generators_budget_is_its_fraction():
    budget = memory.generator(SHAPE, TITAN, card=H100_80)
    inside = ("weights, bfloat16", "vLLM's activations and sampler", "key/value cache")
    assert sum(budget.items[name] for name in inside) == int(0.6 * H100_80)
    # 52 layers, one key and one value head of 128 a GPU, two bytes.
    assert memory.kv_bytes_per_token(SHAPE, 2) == 52 * 2 * 128 * 2
    assert memory.cache_tokens(SHAPE, TITAN, card=H100_80) > 64 * 4096


def test_larger_passes_of_the_generator_leave_less_to_its_cache():
    larger = {**TITAN, "generator_tokens_per_step": 8192}
    usual, budget = (memory.generator(SHAPE, t, card=H100_80) for t in (TITAN, larger))
    assert budget.total == usual.total
    taken = (
        budget.items["vLLM's activations and sampler"]
        - usual.items["vLLM's activations and sampler"]
    )
    # 6,144 tokens more: gate, up and product of 19,968 / 2, four times 6,656; two bytes each.
    assert taken == 6144 * (3 * 19_968 // 2 + 4 * 6656) * 2
    assert usual.items["key/value cache"] - budget.items["key/value cache"] == taken


def test_hnsw_of_wiki_18():
    """Fault 6: the arithmetic; that a smaller host is refused with it is in test_check."""
    sizes = {}
    for storage in ("fp32", "fp16", "sq8"):
        name, sizes[storage] = hnsw_item(21_015_324, 768, {"M": 32, "storage": storage})
        assert name.startswith("HNSW index, N x (")
    assert 70.2e9 < sizes["fp32"] < 70.4e9
    # Links, level, offset: 16 bytes and 0.13 of upper links beside 8 M.
    links = 21_015_324 * (8 * 32 + 12 + 4 * 32 / 31)
    for storage, width in (("fp32", 4), ("fp16", 2), ("sq8", 1)):
        assert sizes[storage] == round(21_015_324 * width * 768 + links)
