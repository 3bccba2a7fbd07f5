"""One Slurm for all tests of this folder, and a run of the whole pipeline on it."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.slurm import cluster
from tests.workflow.copies import SETTINGS, Workflow


class SlurmWorkflow(Workflow):
    """A copy of the project whose jobs run on the Slurm of these tests."""

    slurm: cluster.Slurm
    programs: Path | None = None  # come before Slurm's own

    def command(self, *arguments: str) -> list[str]:
        python, _, _, *usual = super().command(
            *("--workflow-profile", "profiles/slurm"),
            *("--slurm-status-command", "squeue"),
            *("--slurm-init-seconds-before-status-checks", "2"),
            *("--latency-wait", "20"),
            *arguments,
        )
        return [python, str(Path(__file__).with_name("quick.py")), *usual]

    @property
    def environment(self) -> dict[str, str]:
        own = {"SLURM_CONF": self.slurm.environment["SLURM_CONF"]}
        if self.programs is not None:
            own["PATH"] = f"{self.programs}:{os.environ['PATH']}"
        return super().environment | own


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    if lacking := cluster.missing():
        pytest.fail(f"no Slurm here, lacking {', '.join(lacking)}: apt-get install slurm-wlm munge")
    started = cluster.Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def finished(slurm, tmp_path_factory):
    """The whole pipeline as Slurm jobs, and what Snakemake said. Copy it, leave it as it is."""
    workflow = SlurmWorkflow.copy(tmp_path_factory.mktemp("finished"), SETTINGS)
    workflow.slurm = slurm
    workflow.said = workflow.run()
    return workflow


@pytest.fixture
def workflow(finished, slurm, tmp_path):
    copied = SlurmWorkflow.copy(tmp_path, SETTINGS, results=finished.folder)
    copied.slurm = slurm
    yield copied
    end_processes_of(tmp_path)
    shutil.rmtree(tmp_path, ignore_errors=True)


def end_processes_of(folder):
    """proctrack/linuxproc loses a process whose parent ended first; a real cluster has cgroups."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if str(folder).encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
