"""What a host has, looked at once: plain values that tests can write down instead.

No token, no user name and no address with credentials is kept: of an environment variable that can
hold one, only whether it is set.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MIB = 2**20
_SHM = Path("/dev/shm")  # noqa: S108  (its size is asked for, nothing is written)
# Variables that change how processes talk to each other; none of them holds a secret.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "NCCL_IB_DISABLE",
    "NCCL_CTRAN_BACKENDS",
    "NCCL_P2P_DISABLE",
    "TORCHSTORE_RDMA_ENABLED",
    "TORCHSTORE_SHARED_MEMORY_ENABLED",
    "HF_HUB_OFFLINE",
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi lists it.

    Attributes:
        index: number on the host.
        name: kind, as the driver calls it.
        total, used: bytes of memory, and those that are taken now.
        driver: version.
        mig: whether it is cut into instances.
    """

    index: int
    name: str
    total: int
    used: int
    driver: str
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """A host.

    Attributes:
        gpus: those that this process may use, in order.
        nvlink: whether GPUs are joined by NVLink; None if it could not be told.
        infiniband: names of InfiniBand ports that are up.
        shm: (total, free) bytes of /dev/shm.
        open_files, locked_memory, processes: hard limits; -1 is none.
        ram: (total, available) bytes.
        disks: folder -> free bytes, of the nearest folder that exists.
        written: bytes that this run has already written and will not write again.
        cores: CPU cores that this process may use.
        busy_ports: ports asked for that something listens on.
        hostname_resolves: the host's own name leads to an address.
        variables: of `VARIABLES`, those that are set.
        token_set: whether a hub token is set; never the token.
        hub: source -> None if it answered, else the reason.
        torch_cuda: whether this environment's torch is built for CUDA; None if it cannot be told.
        stack: (level, problem) of the GPU stack's environment; None if it was not asked.
    """

    gpus: tuple[Gpu, ...] = ()
    nvlink: bool | None = None
    infiniband: tuple[str, ...] = ()
    shm: tuple[int, int] = (0, 0)
    open_files: int = -1
    locked_memory: int = -1
    processes: int = -1
    ram: tuple[int, int] = (0, 0)
    disks: Mapping[str, int] = field(default_factory=dict)
    written: int = 0
    cores: int = 1
    busy_ports: tuple[int, ...] = ()
    hostname_resolves: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    token_set: bool = False
    hub: Mapping[str, str | None] = field(default_factory=dict)
    torch_cuda: bool | None = None
    stack: tuple[tuple[str, str], ...] | None = None


def look(
    *,
    results: Path,
    run: str,
    ports: list[int] = (),
    others: Collection[Path] = (),
    hub: Mapping[str, str | None] | None = None,
    stack: tuple[tuple[str, str], ...] | None = None,
) -> Inventory:
    """Look at this host.

    Args:
        results, run: folder of all runs, and this one's name.
        ports: that the run will listen on.
        others: folders of this run that it will not go on with: checkpoints of other settings.
        hub, stack: answers that `glimmer.preflight.check` has asked for.
    """
    shm = psutil.disk_usage(str(_SHM)) if _SHM.is_dir() else None
    ram = psutil.virtual_memory()
    total, available = ram.total, ram.available
    if (limit := _cgroup_limit()) is not None and limit < total:
        total, available = limit, min(available, limit)
    return Inventory(
        gpus=_gpus(),
        nvlink=_nvlink(),
        infiniband=_infiniband(),
        shm=(shm.total, shm.free) if shm else (0, 0),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        locked_memory=resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[1],
        ram=(total, available),
        disks={str(results): _disk(results)},
        written=_written(results / run, others),
        torch_cuda=_torch_cuda(),
        cores=len(os.sched_getaffinity(0)),
        busy_ports=tuple(port for port in ports if port and not _free(port)),
        hostname_resolves=_resolves(),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        token_set=_token_set(),
        hub=dict(hub or {}),
        stack=stack,
    )


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=15,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _gpus() -> tuple[Gpu, ...]:
    text = _run(
        "nvidia-smi",
        "--query-gpu=index,name,memory.total,memory.used,driver_version,mig.mode.current",
        "--format=csv,noheader,nounits",
    )
    return parse_gpus(text or "", os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(text: str, visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs of nvidia-smi's CSV, in the order of CUDA_VISIBLE_DEVICES where that holds numbers.

    Names of MIG instances or UUIDs there leave the list as it is.
    """
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 6 or not parts[0].isdigit():
            continue
        total, used = (int(p) * MIB if p.isdigit() else 0 for p in parts[2:4])
        index = int(parts[0])
        found[index] = Gpu(index, parts[1], total, used, parts[4], parts[5] == "Enabled")
    if visible is None:
        return tuple(found.values())
    chosen = [part.strip() for part in visible.split(",") if part.strip()]
    if not all(part.isdigit() for part in chosen):
        return tuple(found.values())
    return tuple(found[int(part)] for part in chosen if int(part) in found)


def _nvlink() -> bool | None:
    text = _run("nvidia-smi", "nvlink", "--status")
    return None if text is None else "GB/s" in text


def _infiniband(root: Path = Path("/sys/class/infiniband")) -> tuple[str, ...]:
    up = []
    for state in sorted(root.glob("*/ports/*/state")):
        with contextlib.suppress(OSError):
            layer = state.with_name("link_layer").read_text().strip()
            if "ACTIVE" in state.read_text() and layer == "InfiniBand":
                up.append(f"{state.parts[-4]}/{state.parts[-2]}")
    return tuple(up)


def _cgroup_limit(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """The smallest memory limit of this process's control group and those above it, in bytes. A
    scheduler's job has its own far below the root; in a container the root is the group."""
    files = [root / "memory.max", root / "memory/memory.limit_in_bytes"]
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                base, name = root, "memory.max"
                if controllers:
                    base, name = root / "memory", "memory.limit_in_bytes"
                place = base / path.lstrip("/")
                files += [folder / name for folder in (place, *place.parents)]
    limits = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(file.read_text()))
    return min(limits, default=None)


def _disk(folder: Path) -> int:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _written(folder: Path, others: Collection[Path]) -> int:
    """Bytes of the files below a folder, each once, without those of `others`."""
    sizes: dict[tuple[int, int], int] = {}
    left_out = {str(other) for other in others}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if os.path.join(place, name) not in left_out]
        for name in names:
            with contextlib.suppress(OSError):
                status = os.stat(os.path.join(place, name))
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def _torch_cuda() -> bool | None:
    """From the text of torch's version.py: its import takes seconds."""
    spec = importlib.util.find_spec("torch")
    with contextlib.suppress(OSError, AttributeError, TypeError):
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
        if found := re.search(r"^cuda\b[^=]*= *(.+)$", text, re.M):
            return found[1].strip() != "None"
    return None


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _resolves() -> bool:
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return False
    return True


def _token_set() -> bool:
    if any(os.environ.get(name) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")):
        return True
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache/huggingface"))
    return (home / "token").is_file()
