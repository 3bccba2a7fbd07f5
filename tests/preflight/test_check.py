"""Wrong hosts and wrong configs are refused, each by the key to change and to what."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from glimmer.config import load
from glimmer.errors import ConfigError, GateFailed
from glimmer.files import read_json
from glimmer.preflight import check, storage
from glimmer.preflight.host import gpus_needed
from glimmer.preflight.shapes import Shape
from glimmer.preflight.table import as_text

from .hosts import (
    GIB,
    GOOD,
    H100_80,
    H100_NVL,
    H200,
    MODEL,
    ROOT,
    gpus,
    one_gpu,
    paper_run,
    refusals,
)

NO_IB = {
    "NCCL_IB_DISABLE": "1",
    "NCCL_CTRAN_BACKENDS": "socket,nvl",
    "TORCHSTORE_RDMA_ENABLED": "0",
}
TINY = read_json(ROOT / "resources/tiny_glimmer/config.json")
H200_HOST = {"gpus": gpus(1, name="NVIDIA H200", total=H200), "infiniband": (), "nvlink": None}


def test_the_paper_run_fits_eight_cards_of_94_gb():
    assert refusals(paper_run()) == []


def test_the_one_gpu_run_fits_an_h200():
    assert refusals(one_gpu(), model=TINY, **H200_HOST) == []
    names = ("config", "h200x1", "h200x1_offpolicy")
    offpolicy = load(*(ROOT / f"config/{name}.yaml" for name in names))
    assert refusals(offpolicy, model=TINY, **H200_HOST) == []


@pytest.mark.parametrize("count", [2, 4])
def test_several_gpus_of_one_host_fit_theirs(count):
    files = [ROOT / f"config/{name}.yaml" for name in ("config", "h200x1", f"h200x{count}")]
    config = load(*files)
    host = H200_HOST | {"gpus": gpus(count, name="NVIDIA H200", total=H200), "variables": NO_IB}
    assert refusals(config, model=TINY, **host) == []
    host["gpus"] = host["gpus"][:-1]
    assert any("number of GPUs" in line for line in refusals(config, model=TINY, **host))


def test_a_host_without_infiniband_passes_once_its_variables_are_set():
    assert refusals(paper_run(), infiniband=(), variables=NO_IB) == []


# What is wrong, on the host or in the config; what the refusal says; what it tells to do.
WRONG_HOSTS = {
    "no GPU": ({"gpus": ()}, "number of GPUs: 0; 8", "more GPUs"),
    "six GPUs": ({"gpus": gpus(6)}, "number of GPUs: 6; 8", "Set titan.trainer_fsdp to 2"),
    "one GPU": ({"gpus": gpus(1)}, "number of GPUs: 1; 8", "Set titan.share_gpu to true"),
    "80 GB": (
        {"gpus": gpus(8, total=H100_80)},
        r"trainer GPU, step 2: 82\.\d GiB.*step 1 fits.*34\.6 GiB",
        "Set titan.adam_on_host to true",
    ),
    "mixed": (
        {"gpus": gpus(4) + gpus(4, name="NVIDIA A100", total=H100_80)},
        "kind of GPU: NVIDIA A100, NVIDIA H100",
        "CUDA_VISIBLE_DEVICES",
    ),
    "old": (
        {"gpus": gpus(8, name="Tesla V100-SXM2")},
        "kind of GPU: Tesla V100",
        "training.engine",
    ),
    "driver": ({"gpus": gpus(8, driver="550.54.14")}, "driver: 550.54.14; 580", "driver renewed"),
    "MIG": (
        {"gpus": tuple(replace(g, mig=g.index == 3) for g in gpus(8))},
        "MIG: GPU 3 cut into instances",
        "CUDA_VISIBLE_DEVICES",
    ),
    "busy": (
        {"gpus": tuple(replace(g, used=40 * GIB * (g.index == 2)) for g in gpus(8))},
        r"GPUs idle: GPU 2 holds 40\.0 GiB",
        "End what runs there",
    ),
    "busy, others free": (
        {"gpus": tuple(replace(g, used=40 * GIB * (g.index == 2)) for g in gpus(9))},
        "GPUs idle: GPU 2",
        "CUDA_VISIBLE_DEVICES to 0,1,3,4,5,6,7,8",
    ),
    "no InfiniBand": (
        {"infiniband": ()},
        "InfiniBand: none.*hangs",
        "NCCL_IB_DISABLE=1 NCCL_CTRAN_BACKENDS=nvl,socket TORCHSTORE_RDMA_ENABLED=0",
    ),
    "locked memory": ({"locked_memory": 64 * 1024}, "locked memory", "ulimit -l unlimited"),
    "shared memory": (
        {"shm": (64 * 2**20, 64 * 2**20)},
        r"shared memory, /dev/shm: 0\.1 GiB free; 54\.5 GiB",
        "--shm-size",
    ),
    "open files": ({"open_files": 1024}, "open files: ulimit -n 1024", "ulimit -n 4096"),
    "processes": ({"processes": 512}, "processes: ulimit -u 512", "ulimit -u 4096"),
    "host name": ({"hostname_resolves": False}, "host name", "/etc/hosts"),
    "port": ({"busy_ports": (8000,)}, "port: 8000 in use", "Set retrieval.port to 0"),
    "disk": (
        {"disks": {"results": 500 * GIB}},
        r"disk: 500\.0 GiB.*training checkpoints.*HNSW index",
        "Set results to",
    ),
    "memory": (
        {"ram": (256 * GIB, 200 * GIB)},
        r"memory: 200\.0 GiB.*HNSW index, N x \(4d \+ 8M \+ 16\) 65\.5 GiB",
        "Set retrieval.url",
    ),
    "offline": (
        {"variables": {"HF_HUB_OFFLINE": "1"}},
        "hub: HF_HUB_OFFLINE is set",
        "Unset HF_HUB_OFFLINE",
    ),
    "licence": (
        {"hub": {"hub:meta-models/Muse-Glimmer-30B": "access is restricted. Accept its terms"}},
        "hub, meta-models/Muse-Glimmer-30B: access is restricted. Accept its terms",
        "Set checkpoint.source",
    ),
    "torch of the workflow": (
        {"torch_cuda": False},
        "device of the embedding: embedding.device cuda with a torch built for a CPU",
        "embedding.device to cpu",
    ),
    "stack": (
        {"stack": (("refuse", "vllm: found 0.29.0, expected 0.28.0"),)},
        "environment: vllm: found 0.29.0",
        "make env-train",
    ),
}


@pytest.mark.parametrize("name", WRONG_HOSTS)
def test_a_wrong_host_is_refused(name):
    host, told, way_out = WRONG_HOSTS[name]
    found = refusals(paper_run(), **host)
    matching = [line for line in found if re.search(told, line)]
    assert matching, found
    assert way_out in matching[0], matching[0]


def test_cagra_wants_a_gpu_that_holds_the_vectors():
    """Fault 6: not found out by a build that has run out of the GPU's memory."""
    config = paper_run(index__backend="cagra")
    assert not [line for line in refusals(config) if "GPU of the index" in line]
    assert not [x for x in refusals(config, gpus=gpus(8, total=60 * GIB)) if "of the index" in x]
    (found,) = [x for x in refusals(config, gpus=gpus(8, total=12 * GIB)) if "of the index" in x]
    assert re.search(r"12\.0 GiB; 82\.0 GiB: vectors in half precision", found), found
    assert "Set index.backend to faiss-cpu" in found
    (found,) = [x for x in refusals(config, gpus=()) if "of the index" in x]
    assert "a GPU on this host" in found


WRONG_CONFIGS = {
    "fsdp": (
        {"titan__trainer_fsdp": 5},
        "titan.trainer_fsdp 5; .*= 9984",
        "titan.trainer_fsdp to 4",
    ),
    "generator tp": (
        {"titan__generator_tp": 4},
        "titan.generator_tp 4; .*2 key/value heads",
        "Set titan.generator_tp to 2",
    ),
    "trainer tp": (
        {"titan__trainer_tp": 3},
        "titan.trainer_tp 3; .*32 query heads",
        "Set titan.trainer_tp to 2",
    ),
    "context": (
        {"titan__context": 262144},
        "titan.context 262144; at most 131072",
        "Set titan.context to 131072",
    ),
    "rollouts": (
        {"search__max_rollout_tokens": 8192},
        "max_rollout_tokens 8192; at most titan.context 4096",
        "Set titan.context to 8192",
    ),
    "chunks": ({"titan__loss_chunks": 7}, "titan.loss_chunks 7", "titan.loss_chunks to 8"),
    "selective": (
        {"titan__activation_checkpoint": "selective", "titan__rows_per_batch": 8},
        r"trainer GPU, step 2: 1\d\d\.\d GiB",
        "Set titan.rows_per_batch to 1 (and activation_checkpoint to full)",
    ),
    "no checkpointing": (
        {"titan__activation_checkpoint": "none"},
        r"trainer GPU, step 2: 119\.\d GiB.*step 1 fits",
        "Set titan.activation_checkpoint to full",
    ),
    "small fraction": (
        {"titan__generator_memory_fraction": 0.2},
        "generator's cache: 0 tokens",
        "Set titan.generator_memory_fraction to 0.3",
    ),
    "large fraction": (
        {"titan__generator_memory_fraction": 0.95},
        "generator GPU: ",
        "Set titan.generator_memory_fraction to 0.70",
    ),
    "few prompts": (
        {"training__prompts_per_step": 1, "training__samples_per_prompt": 2},
        "2 rollouts a step",
        "training.prompts_per_step to 2",
    ),
    "flex": (
        {"titan__attention": "flex", "titan__batch_invariant": True},
        "batch_invariant true with titan.attention flex",
        "Set titan.attention to varlen",
    ),
    "graphs of torch's attention": (
        {"titan__cudagraph": "FULL", "titan__batch_invariant": True},
        "batch_invariant true with titan.cudagraph FULL",
        "Set titan.cudagraph to off",
    ),
    "no revision": (
        {"checkpoint__revision": None},
        "checkpoint.revision null",
        "model_info('meta-models/Muse-Glimmer-30B').sha",
    ),
    "no revision of a data set": (
        {"corpus__revision": None},
        "corpus.revision null",
        "dataset_info('PeterJinGo/wiki-18-corpus').sha",
    ),
}


@pytest.mark.parametrize("name", WRONG_CONFIGS)
def test_a_wrong_config_is_refused(name):
    changes, told, way_out = WRONG_CONFIGS[name]
    found = refusals(paper_run(**changes))
    matching = [line for line in found if re.search(told, line)]
    assert matching, found
    assert way_out in matching[0], matching[0]


def test_what_a_refusal_says_to_do_is_accepted():
    for cards, changes in (
        (gpus(8, total=H100_80), {"titan__context": 1536, "search__max_rollout_tokens": 1536}),
        (gpus(8, total=H100_80), {"titan__adam_on_host": True}),
        (gpus(6), {"titan__trainer_fsdp": 2, "titan__trainer_tp": 2}),
        (gpus(8), {"titan__generator_memory_fraction": 0.70}),
    ):
        found = refusals(paper_run(**changes), gpus=cards)
        assert not [line for line in found if line.startswith("number of GPUs")]
        if len(cards) == 8:
            assert found == []


def test_the_best_checkpoint_has_room_beside_those_kept_and_the_one_being_written():
    shape = Shape.of(MODEL)
    for steps, saves in ((25, 0), (100, 3), (125, 4), (1000, 4)):
        items = storage.disk_items(shape, paper_run(training__steps=steps), None, None)
        assert f"{saves} training checkpoints of 334 GB" in items


def test_four_gpus_do_not_hold_the_paper_run():
    for fsdp, tp, generator in ((1, 2, 2), (2, 1, 2), (3, 1, 1)):
        config = paper_run(
            titan__trainer_fsdp=fsdp, titan__trainer_tp=tp, titan__generator_tp=generator
        )
        assert gpus_needed(config["titan"]) == 4
        assert any("trainer GPU, step 2" in line for line in refusals(config, gpus=gpus(4)))


def test_a_card_that_the_push_may_overflow_is_warned_of():
    """The reference run's cards hold both; of 84 GiB, off-policy, only the step is sure to fit."""

    def warned(total: int, **changes) -> list[dict]:
        config = paper_run(**changes)
        verdict = check.preflight(
            config, host=replace(GOOD, gpus=gpus(8, total=total)), model=MODEL
        )
        assert not any(
            f["what"] == "trainer GPU, step 2" and f["way_out"] for f in verdict["details"]
        )
        return [f for f in verdict["details"] if f["what"] == "trainer GPU, weights being sent"]

    assert warned(H100_NVL) == []
    [told] = warned(84 * GIB)
    assert told["level"] == "warn" and "90.8 GiB" in told["found"]
    assert "titan.offpolicy_steps to 0" in told["way_out"]
    assert warned(84 * GIB, titan__offpolicy_steps=0) == []
    assert warned(84 * GIB, titan__adam_on_host=True) == []


def test_a_small_model_on_a_shared_gpu_is_told_its_fraction():
    config = one_gpu(titan__generator_memory_fraction=0.995)
    found = refusals(config, model=TINY, **H200_HOST)
    told = [line for line in found if line.startswith("trainer GPU, step 2")]
    fraction = float(re.search(r"generator_memory_fraction to (0\.\d+)", told[0])[1])
    mended = one_gpu(titan__generator_memory_fraction=fraction)
    assert refusals(mended, model=TINY, **H200_HOST) == []


def test_the_table_shows_refusals_first_and_every_item():
    verdict = check.preflight(paper_run(titan__loss_chunks=7), host=GOOD, model=MODEL)
    text = as_text(verdict)
    assert text.startswith("preflight: REFUSED, ")
    lines = text.splitlines()
    assert lines[2].startswith("REFUSED  loss chunks")
    assert "-> Set titan.loss_chunks to 8" in text
    for item in (*verdict["memory"]["trainer"]["step 2"], *verdict["memory"]["generator"]):
        assert item in text
    assert max(map(len, lines)) <= 110
    assert json.loads(json.dumps(verdict)) == verdict


def test_the_local_engine_asks_for_no_gpu():
    config = one_gpu(training__engine="local")
    assert refusals(config, model=TINY, gpus=(), shm=(0, 0), open_files=64, stack=None) == []


def test_refused_hosts_leave_verdict_and_table_and_no_token(tmp_path, monkeypatch):
    secret = "hf_" + "q" * 34
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.setenv("HF_ENDPOINT", f"http://user:{secret}@127.0.0.1:9")
    config = paper_run(titan__python=str(tmp_path / "none"))
    config["results"] = str(tmp_path)
    with pytest.raises(GateFailed, match="preflight refused") as caught:
        check.require(config, out=tmp_path / "preflight.json")
    written = read_json(tmp_path / "preflight.json")
    assert not written["passed"] and written["measured_on"]["hub_token_set"]
    shown = (tmp_path / "preflight.txt").read_text() + json.dumps(written) + str(caught.value)
    assert secret not in shown
    assert "make env-train" in shown and "number of GPUs" in shown


def test_a_checkpoint_without_config_is_named(tmp_path):
    with pytest.raises(Exception, match=r"config\.json: cannot be read.*checkpoint\.source"):
        check.model_config({"source": str(tmp_path)})


def test_the_stack_is_asked_through_its_own_python():
    asked = []

    def answer(command, **options):
        asked.append((command, options))
        return SimpleNamespace(stdout='[["warn", "torchstore: x"]]\n', stderr="")

    import sys

    assert check.ask_stack(None, run=answer) == (("warn", "torchstore: x"),)
    assert asked[0][0] == [sys.executable, "-m", "glimmer.preflight.stack", "--versions"]
    broken = SimpleNamespace(stdout="", stderr="Traceback\nImportError: no glimmer\n")
    ((level, text),) = check.ask_stack(None, run=lambda *_, **__: broken)
    assert level == "refuse" and "ImportError: no glimmer" in text
    ((level, text),) = check.ask_stack("/nowhere/python", run=answer)
    assert level == "refuse" and "titan.python" in text
    assert issubclass(ConfigError, Exception)
