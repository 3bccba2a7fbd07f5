"""GPUs, links between them, and the limits of the operating system, against the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from glimmer.preflight import memory
from glimmer.preflight.findings import Finding, gib, ok, refuse, warn
from glimmer.preflight.inventory import Gpu, Inventory
from glimmer.preflight.shapes import Shape
from glimmer.preflight.storage import MARGIN, shm_bytes

# Kernels for bfloat16 and vLLM 0.28's wheels start at Ampere.
_TOO_OLD = ("V100", "P100", "P40", "P4", "T4", "K80", "RTX 20", "TITAN", "Quadro RTX")
_DRIVER = 580  # first driver series of CUDA 13.0, for which torch 2.13's wheels are built
_BUSY = 2**30  # an idle GPU shows some hundred MiB
_SHM = "shared memory, /dev/shm"
_OPEN_FILES = 4096
_PROCESSES = 4096
# What a host without InfiniBand needs, else a process waits for a card that is not there.
WITHOUT_INFINIBAND = {
    "NCCL_IB_DISABLE": "1",
    "NCCL_CTRAN_BACKENDS": "nvl,socket",
    "TORCHSTORE_RDMA_ENABLED": "0",
}


def gpus_needed(titan: Mapping[str, Any]) -> int:
    """GPUs of one run."""
    if titan["share_gpu"]:
        return 1
    return titan["trainer_fsdp"] * titan["trainer_tp"] + titan["generator_tp"]


def check_gpus(config: Mapping[str, Any], host: Inventory) -> Iterator[Finding]:
    """Count, kind, driver, and whether others use them."""
    titan = config["titan"]
    need, have = gpus_needed(titan), len(host.gpus)
    if have < need:
        degrees = ", ".join(
            f"titan.{key} {titan[key]}" for key in ("trainer_fsdp", "trainer_tp", "generator_tp")
        )
        out = "Use a host with more GPUs, or lower titan.trainer_fsdp."
        if have == 1:
            out = "Set titan.share_gpu to true and the three degrees to 1."
        elif have > titan["trainer_tp"] + titan["generator_tp"]:
            fsdp = (have - titan["generator_tp"]) // titan["trainer_tp"]
            out = f"Set titan.trainer_fsdp to {fsdp}."
        yield refuse("number of GPUs", f"{have}", f"{need} ({degrees})", out)
        if not have:
            return
    else:
        yield ok("number of GPUs", f"{have}", f"{need} needed")
    used = host.gpus[:need]
    names = sorted({gpu.name for gpu in used})
    if len(names) > 1 or len({gpu.total for gpu in used}) > 1:
        yield refuse(
            "kind of GPU",
            ", ".join(names) + ", or of different memory",
            "one kind",
            "Set the variable CUDA_VISIBLE_DEVICES to GPUs of one kind.",
        )
    elif any(old in names[0] for old in _TOO_OLD):
        yield refuse(
            "kind of GPU",
            names[0],
            "Ampere or newer: the engine computes in bfloat16",
            "Use another host, or set training.engine to local.",
        )
    else:
        yield ok("kind of GPU", f"{names[0]}, {gib(used[0].total)}")
    if cut := [gpu.index for gpu in used if gpu.mig]:
        yield refuse(
            "MIG",
            f"GPU {', '.join(map(str, cut))} cut into instances",
            "whole GPUs",
            "Ask for whole GPUs, or set the variable CUDA_VISIBLE_DEVICES to others.",
        )
    driver = used[0].driver
    if not driver.split(".")[0].isdigit() or int(driver.split(".")[0]) < _DRIVER:
        yield refuse(
            "driver",
            driver,
            f"{_DRIVER} or newer, for CUDA 13.0",
            "Have the host's driver renewed; no key of the config changes this.",
        )
    else:
        yield ok("driver", driver, f"{_DRIVER} or newer")
    yield _busy(used, host)


def _busy(used: tuple[Gpu, ...], host: Inventory) -> Finding:
    busy = [gpu for gpu in used if gpu.used > _BUSY]
    if not busy:
        return ok("GPUs idle", "all of them")
    free = [gpu.index for gpu in host.gpus if gpu.used <= _BUSY]
    out = "End what runs there, or wait."
    if len(free) >= len(used):
        shown = ",".join(str(i) for i in free[: len(used)])
        out = f"Set the variable CUDA_VISIBLE_DEVICES to {shown}."
    told = ", ".join(f"GPU {gpu.index} holds {gib(gpu.used)}" for gpu in busy)
    return refuse("GPUs idle", told, f"at most {gib(_BUSY)} in use", out)


def check_memory(
    shape: Shape, config: Mapping[str, Any], host: Inventory
) -> tuple[list[Finding], dict[str, Any]]:
    """(findings, table of items): the arithmetic of `memory` against the smallest GPU used."""
    titan = config["titan"]
    used = host.gpus[: gpus_needed(titan)]
    card = min((gpu.total for gpu in used), default=0)
    steps = {step: memory.trainer(shape, titan, step=step) for step in (1, 2)}
    sampler = memory.generator(shape, titan, card=card)
    table = {
        "card": card,
        "trainer": {f"step {step}": budget.items for step, budget in steps.items()},
        "generator": sampler.items,
        "jump_after_step_1": memory.optimizer_jump(shape, titan),
    }
    if not card:
        return [], table
    findings = []
    tokens = memory.cache_tokens(shape, titan, card=card)
    if tokens < titan["context"]:
        need = (titan["context"] * memory.kv_bytes_per_token(shape, titan["generator_tp"])) + sum(
            sampler.items[key] for key in ("weights, bfloat16", "vLLM's activations and sampler")
        )
        findings.append(
            refuse(
                "generator's cache",
                f"{max(0, tokens)} tokens",
                f"at least titan.context {titan['context']}: weights take "
                f"{gib(sampler.items['weights, bfloat16'])} of "
                f"{gib(titan['generator_memory_fraction'] * card)}",
                f"Set titan.generator_memory_fraction to {min(0.95, need / card + 0.05):.2f}."
                if need < 0.9 * card
                else "Raise titan.generator_tp, or use GPUs with more memory.",
            )
        )
    else:
        findings.append(
            ok("generator's cache", f"{tokens:,} tokens", f"{tokens // titan['context']} rollouts")
        )
    other = sampler.total if titan["share_gpu"] else 0
    beside = memory.beside_push(shape, titan)
    places = [("trainer GPU, step 2", steps[2].total + other)]
    if not titan["share_gpu"]:
        places.append(("generator GPU", sampler.total))
    for what, need in places:
        if need <= card:
            findings.append(ok(what, gib(need), f"of {gib(card)}"))
            if what.startswith("trainer") and beside + other > card:
                findings.append(_push(beside + other, card))
        elif what.startswith("generator"):
            fraction = titan["generator_memory_fraction"] - (need - card) / card
            findings.append(
                refuse(
                    what,
                    f"{gib(need)} by arithmetic",
                    f"at most {gib(card)}",
                    f"Set titan.generator_memory_fraction to {max(0.05, fraction - 0.01):.2f}.",
                )
            )
        else:
            findings.append(
                refuse(
                    what,
                    f"{gib(need)} by arithmetic",
                    f"at most {gib(card)}",
                    _smaller(shape, titan, card, other),
                )
            )
    if steps[1].total + other <= card < steps[2].total + other:
        findings[-1 if titan["share_gpu"] else -2] = refuse(
            "trainer GPU, step 2",
            f"{gib(steps[2].total + other)} by arithmetic",
            f"at most {gib(card)}; step 1 fits with {gib(steps[1].total + other)}, then Adam's "
            f"moments take {gib(table['jump_after_step_1'])}",
            _smaller(shape, titan, card, other),
        )
    return findings, table


def _push(need: int, card: int) -> Finding:
    return warn(
        "trainer GPU, weights being sent",
        f"{gib(need)} by arithmetic, if the step after peaks while they are",
        f"at most {gib(card)}",
        "If a step after the first runs out of memory, set titan.adam_on_host to true, or "
        "titan.offpolicy_steps to 0: steps then wait for the sync.",
    )


def _smaller(shape: Shape, titan: Mapping[str, Any], card: int, other: int) -> str:
    """The first change that makes step 2 fit."""
    full = {**titan, "activation_checkpoint": "full"}
    host = {"adam_on_host": True}
    changes = [
        ("titan.activation_checkpoint to full", full),
        (
            "titan.rows_per_batch to 1 (and activation_checkpoint to full)",
            {**full, "rows_per_batch": 1},
        ),
        ("titan.adam_on_host to true", {**titan, **host}),
        ("titan.adam_on_host to true and titan.activation_checkpoint to full", {**full, **host}),
    ]
    for text, changed in changes:
        fits = memory.trainer(shape, changed, step=2).total + other <= card
        if changed != dict(titan) and fits:
            return f"Set {text}."
    if titan["share_gpu"] and other:
        spare = card - memory.trainer(shape, titan, step=2).total
        fixed = other - titan["generator_memory_fraction"] * card
        if (fraction := (spare - fixed) / card) > 0.05:
            return f"Set titan.generator_memory_fraction to {fraction - 0.01:.2f}."
    smallest = {**full, **host, "rows_per_batch": 1}
    if context := memory.largest_context(shape, smallest, card=card, other=other):
        return (
            f"Set titan.context and search.max_rollout_tokens to {context} or less, with "
            "titan.activation_checkpoint full and titan.adam_on_host true, or use GPUs with more "
            "memory."
        )
    for fsdp in range(titan["trainer_fsdp"] + 1, 65):
        if (shape.hidden // titan["trainer_tp"]) % fsdp == 0 and (
            memory.trainer(shape, {**full, "trainer_fsdp": fsdp}, step=2).total <= card
        ):
            return f"Set titan.trainer_fsdp to {fsdp}, on a host with that many GPUs."
    return "Use GPUs with more memory."


def check_links(config: Mapping[str, Any], host: Inventory) -> Iterator[Finding]:
    """NVLink, InfiniBand, and the variables that a host without it needs."""
    if gpus_needed(config["titan"]) == 1:
        yield ok("links between GPUs", "one GPU, none needed")
        return
    if host.nvlink is False:
        yield warn(
            "NVLink",
            "none",
            "GPUs joined by NVLink; over PCIe a step takes several times longer",
            "Use another host, or set titan.trainer_tp to 1 and titan.trainer_fsdp higher.",
        )
    else:
        yield ok("NVLink", "present" if host.nvlink else "not told by the driver")
    if host.infiniband:
        yield ok("InfiniBand", ", ".join(host.infiniband))
        if host.locked_memory != -1:
            yield refuse(
                "locked memory",
                f"ulimit -l {gib(host.locked_memory)}",
                "unlimited, for RDMA",
                "Run `ulimit -l unlimited`, or set the variables "
                + _exports(WITHOUT_INFINIBAND)
                + ".",
            )
        return
    missing = {
        name: value
        for name, value in WITHOUT_INFINIBAND.items()
        if not _same(host.variables.get(name), value)
    }
    if missing:
        yield refuse(
            "InfiniBand",
            "none, and the variables for that are not set",
            "without it the first collective or weight sync hangs",
            f"Set the variables {_exports(missing)}.",
        )
    else:
        yield ok("InfiniBand", "none, the variables for that are set")


def _same(found: str | None, wanted: str) -> bool:
    return found is not None and set(found.split(",")) == set(wanted.split(","))


def _exports(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


def check_limits(shape: Shape, config: Mapping[str, Any], host: Inventory) -> Iterator[Finding]:
    """Shared memory, limits of the shell, host name, ports, cores."""
    need = int(shm_bytes(shape) * (1 + MARGIN))
    if host.shm[1] < need:
        yield (
            refuse(
                _SHM,
                f"{gib(host.shm[1])} free",
                f"{gib(need)}: all weights in bfloat16",
                f"Give /dev/shm more (mount -o remount,size={need // 2**30 + 2}G; a container's "
                "--shm-size), delete /dev/shm/torch_* if no run is at work there (a killed one "
                "may have left them), or set the variable TORCHSTORE_SHARED_MEMORY_ENABLED=0 "
                "(slower).",
            )
            if host.variables.get("TORCHSTORE_SHARED_MEMORY_ENABLED") != "0"
            else warn(
                _SHM,
                f"{gib(host.shm[1])} free",
                f"{gib(need)}, but shared memory is off",
                "Unset TORCHSTORE_SHARED_MEMORY_ENABLED once /dev/shm is large enough.",
            )
        )
    else:
        yield ok(_SHM, f"{gib(host.shm[1])} free", f"{gib(need)}: all weights in bfloat16")
    for what, found, least, command in (
        ("open files", host.open_files, _OPEN_FILES, "ulimit -n"),
        ("processes", host.processes, _PROCESSES, "ulimit -u"),
    ):
        if found != -1 and found < least:
            yield refuse(
                what,
                f"{command} {found}",
                f"at least {least}",
                f"Run `{command} {least}` before snakemake; a hard limit is the host's to raise.",
            )
        else:
            yield ok(what, "no limit" if found == -1 else str(found), f"at least {least}")
    if not host.hostname_resolves:
        yield refuse(
            "host name",
            "does not resolve",
            "an address: the engine's processes meet there",
            "Add the host's name to /etc/hosts.",
        )
    for port in host.busy_ports:
        yield refuse(
            "port",
            f"{port} in use",
            "a free one",
            "Set retrieval.port to 0, which takes any.",
        )
    if host.cores < 2 * gpus_needed(config["titan"]):
        yield warn(
            "CPU cores",
            str(host.cores),
            f"{2 * gpus_needed(config['titan'])}, two for each GPU",
            "Ask for more cores; processes that wait for each other lose time.",
        )
    else:
        yield ok("CPU cores", str(host.cores))
