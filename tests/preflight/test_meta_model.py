"""The 30B model on meta devices: built by torchtitan, sharded over six ranks, mapped to the
released names; against preflight's arithmetic. No weight is allocated."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torchtitan.distributed.parallel_dims as parallel_dims
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.config import TrainingConfig
from torchtitan.distributed.utils import get_spmd_backend, set_spmd_backend
from torchtitan.models.muse_glimmer.state_dict_adapter import MuseGlimmerStateDictAdapter

from glimmer.preflight.shapes import Shape, parameters, tensors
from glimmer.training.local.model import architecture, read_text_config
from glimmer.training.titan import fsdp
from tests.training.titan.sharding import degrees, on_meta, shard

from .hosts import MODEL, ROOT, paper_run

TITAN = paper_run()["titan"]
FSDP, TP = TITAN["trainer_fsdp"], TITAN["trainer_tp"]
PARALLELISM = degrees(FSDP, TP)
TRAINING = TrainingConfig(seq_len=TITAN["context"])


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("30b")
    (folder / "config.json").write_bytes(
        (ROOT / "glimmer/preflight/muse_glimmer_30b.json").read_bytes()
    )
    return read_text_config(folder)


@pytest.fixture(scope="module")
def config(text):
    return architecture(text, attention=TITAN["attention"], max_seq_len=TITAN["context"])


@pytest.fixture(scope="module")
def whole(config):
    with torch.device("meta"):
        return config.build()


@pytest.fixture
def six_ranks(monkeypatch):
    """Rank 0 of six, of which the others are pretended."""
    backend = get_spmd_backend()
    monkeypatch.setattr(parallel_dims, "device_type", "cpu")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=FSDP * TP)
    set_spmd_backend("spmd_types")
    yield parallel_dims.ParallelDims.from_config(PARALLELISM, FSDP * TP)
    dist.destroy_process_group()
    set_spmd_backend(backend)


@pytest.fixture
def model(text):
    """To be sharded, so each test has its own."""
    config = architecture(text, attention=TITAN["attention"], max_seq_len=TITAN["context"])
    return on_meta(config, PARALLELISM, TRAINING)


def test_the_model_is_the_published_one(whole, text):
    own = {name: tuple(p.shape) for name, p in whole.named_parameters()}
    assert own == {t.name: t.shape for t in tensors(Shape.of(MODEL))}
    assert sum(p.numel() for p in whole.parameters()) == parameters(Shape.of(MODEL))
    assert all(p.is_meta for p in whole.parameters())
    rope = [layer.attention.use_rope for layer in whole.layers.values()]
    assert rope == [bool(theta) for theta in text["layer_rope_theta"]]
    windows = [layer.attention.window_size for layer in whole.layers.values()]
    assert windows == [
        text["sliding_window"] if kind == "sliding_attention" else None
        for kind in text["layer_types"]
    ]


def test_tensor_parallel_shards_are_those_of_the_arithmetic(model, six_ranks):
    model.parallelize(six_ranks)
    shape = Shape.of(MODEL)
    own = {name: p.numel() for name, p in model.named_parameters()}
    assert own == {t.name: t.local(1, TP) for t in tensors(shape)}
    # FSDP then splits dimension 0 of each of these, which a rank holds at most.
    rows = {name: (p.shape[0], p.numel() // p.shape[0]) for name, p in model.named_parameters()}
    most = sum(len(torch.arange(n).chunk(FSDP)[0]) * width for n, width in rows.values())
    assert most == parameters(shape, fsdp=FSDP, tp=TP)


def test_fsdp_shards_are_those_of_the_arithmetic(model, six_ranks, monkeypatch):
    monkeypatch.setattr(_fsdp_param_group, "FSDPParam", _fsdp_param_group.FSDPParam)
    fsdp.apply()
    shard(model, six_ranks, PARALLELISM, TRAINING)
    shape = Shape.of(MODEL)
    own = {
        name.replace("_checkpoint_wrapped_module.", ""): p for name, p in model.named_parameters()
    }
    assert {name: p.shape for name, p in own.items()} == {t.name: t.shape for t in tensors(shape)}
    local = {name: p.to_local().numel() for name, p in own.items()}
    assert local == {t.name: t.local(FSDP, TP) for t in tensors(shape)}  # rank 0 holds most
    assert sum(local.values()) == parameters(shape, fsdp=FSDP, tp=TP)


def test_torch_2_13_alone_cannot_shard_it(model, six_ranks, monkeypatch):
    """Why `glimmer.training.titan.fsdp` exists: once torch can, this test says so."""
    monkeypatch.setattr(_fsdp_param_group, "FSDPParam", _fsdp_param.FSDPParam)
    with pytest.raises(ValueError, match="must be DTensors on the full SPMD mesh"):
        shard(model, six_ranks, PARALLELISM, TRAINING)


def released(text) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the released text model, from `transformers`' class on meta."""
    from transformers import MuseGlimmerConfig, MuseGlimmerForConditionalGeneration

    with torch.device("meta"):
        model = MuseGlimmerForConditionalGeneration(MuseGlimmerConfig(**MODEL))
    return {
        name: tuple(p.shape)
        for name, p in model.named_parameters()
        if name.startswith("model.language_model.") or name == "lm_head.weight"
    }


def test_every_tensor_maps_to_a_released_name_and_back(whole, config, text):
    adapter = MuseGlimmerStateDictAdapter(config, None)
    own = dict(whole.named_parameters())
    theirs = adapter.to_hf(dict(own))
    assert {name: tuple(t.shape) for name, t in theirs.items()} == released(text)
    back = adapter.from_hf(dict(theirs))
    assert {name: tuple(t.shape) for name, t in back.items()} == {
        name: tuple(p.shape) for name, p in own.items()
    }


def test_q_and_k_rows_are_interleaved_by_the_mapping():
    """A permutation that from_hf undoes and that is not the identity; v keeps its order."""
    small = dict(
        MODEL["text_config"],
        num_hidden_layers=1,
        hidden_size=64,
        head_dim=8,
        num_attention_heads=4,
        intermediate_size=192,
        vocab_size=32,
    )
    config = architecture(small, attention="flex", max_seq_len=64)
    adapter = MuseGlimmerStateDictAdapter(config, None)
    prefix = "model.language_model.layers.0.self_attn."
    rows = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
    stored = {
        f"{prefix}{name}.weight": torch.arange(n).float()[:, None].repeat(1, 64)
        for name, n in rows.items()
    }
    own = adapter.from_hf(dict(stored))
    linear = "layers.0.attention.qkv_linear."
    # Split halves (0..3, 4..7 of a head of 8) become pairs (0, 4), (1, 5), ...
    assert own[f"{linear}wq.weight"][:8, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert own[f"{linear}wk.weight"][8:16, 0].tolist() == [8, 12, 9, 13, 10, 14, 11, 15]
    assert own[f"{linear}wv.weight"][:, 0].tolist() == list(range(16))
    assert not torch.equal(own[f"{linear}wq.weight"], stored[f"{prefix}q_proj.weight"])
    back = adapter.to_hf(dict(own))
    assert all(torch.equal(back[name], stored[name]) for name in stored)
