"""A Slurm of its own on this machine, in one folder: munged, slurmctld and two slurmd.

The nodes say that they have four and eight GPUs, which are /dev/null, and 500 GB of memory: enough
to see what is asked for.
Needs root and Debian's slurm-wlm and munge. Nothing of it stays when `stop` returns. Outside of the
folder there is one link, /etc/slurm/slurm.conf: the executor clears SLURM_CONF within jobs.
"""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

NODES = {"n1": 4, "n2": 8}  # GPUs
LINK = Path("/etc/slurm/slurm.conf")
_CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
MailProg=/bin/true
ReturnToService=0
KillWait=2
MinJobAge=3600
GresTypes=gpu
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
PartitionName=cpu Nodes=n1 MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=n1,n2 MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def missing() -> list[str]:
    """What this machine lacks for a Slurm of its own."""
    lacking = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not _path(name)]
    return lacking + (["root"] if os.geteuid() != 0 else [])


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Slurm:
    """The daemons. `environment` is what a client needs to find them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._processes: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        if LINK.exists() and not LINK.is_symlink():
            raise FileExistsError(f"{LINK}: this machine belongs to a cluster already")
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        host = socket.gethostname()
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 "
            f"RealMemory=500000 State=UNKNOWN Gres=gpu:h100:{gpus}"
            for node, gpus in NODES.items()
        )
        for device in range(max(NODES.values())):
            (self.folder / f"gpu{device}").symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(
            "".join(
                f"NodeName={node} Name=gpu Type=h100 File={self.folder}/gpu[0-{gpus - 1}]\n"
                for node, gpus in NODES.items()
            )
        )
        (self.folder / "slurm.conf").write_text(
            _CONF.format(folder=self.folder, host=host, ctld_port=free_port(), nodes=nodes)
        )
        LINK.parent.mkdir(exist_ok=True)
        LINK.unlink(missing_ok=True)
        LINK.symlink_to(self.folder / "slurm.conf")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.folder.chmod(0o755)
        self._run(
            "munged",
            *("--foreground", "--force", f"--key-file={key}"),
            f"--socket={self.folder}/munge.socket",
            *(f"--{what}-file={self.folder}/munge.{what}" for what in ("pid", "log", "seed")),
        )
        self._wait(lambda: (self.folder / "munge.socket").exists())
        self._run("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self._wait(lambda: self.nodes() == dict.fromkeys(NODES, "idle"))

    def start_node(self, node: str) -> None:
        self._run("slurmd", "-D", "-N", node, name=node)

    def _run(self, program: str, *arguments: str, name: str | None = None) -> None:
        with open(self.folder / f"{name or program}.out", "ab") as out:
            self._processes[name or program] = subprocess.Popen(
                [_path(program), *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _wait(self, ready, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended: {self._said(name)}"
            assert time.monotonic() < deadline, {n: self._said(n) for n in self._processes}
            time.sleep(0.2)

    def _said(self, name: str) -> str:
        logs = [self.folder / f"{name}.out", self.folder / f"{name}.log"]
        return "\n".join(path.read_text()[-1500:] for path in logs if path.exists())

    def call(self, *command: str) -> str:
        """Output of a Slurm command; "" if the controller did not answer."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60
        ).stdout

    def nodes(self) -> dict[str, str]:
        """Node -> state."""
        lines = self.call("sinfo", "--noheader", "-N", "-o", "%N %T").split("\n")
        return dict(line.split() for line in lines if line)

    def jobs(self, states: str = "RUNNING") -> dict[str, tuple[str, str]]:
        """Job id -> (node, what Snakemake wrote into the comment)."""
        lines = self.call("squeue", "--noheader", "-t", states, "-o", "%i|%N|%k").splitlines()
        return {job: (node, rule) for job, node, rule in (line.split("|", 2) for line in lines)}

    def stop(self) -> None:
        if "slurmctld" in self._processes:
            self._end_jobs()
        for name in reversed(list(self._processes)):
            process = self._processes[name]
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if LINK.is_symlink() and LINK.readlink() == self.folder / "slurm.conf":
            LINK.unlink()

    def _end_jobs(self) -> None:
        self.call("scancel", "--state=RUNNING", "-u", "root")
        self.call("scancel", "--state=PENDING", "-u", "root")
        deadline = time.monotonic() + 20
        while self.jobs("RUNNING,COMPLETING") and time.monotonic() < deadline:
            time.sleep(0.2)
