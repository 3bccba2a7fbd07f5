"""The pipeline as jobs of a real Slurm without accounting: whole, and hurt."""

import contextlib
import os
import re
import signal
import stat
import subprocess
import time

import psutil
import pytest

from glimmer.files import sha256_file
from tests.workflow.copies import Workflow

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1200)]
RUN = "results/t"
AFTER = f"{RUN}/heldout/after.jsonl"
SHARD = f"{RUN}/retrieval/vectors/shard-00000-of-00002"


def until(ready, running, seconds=240):
    """The first true value of `ready()` while `running` runs."""
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        assert running.poll() is None, running.communicate()[0][-4000:]
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.1)
    return value


def ending(running):
    """What Snakemake said up to its end, which must be a good one."""
    text = running.communicate(timeout=500)[0]
    assert running.returncode == 0, text[-4000:]
    return text


def size(path):
    return path.stat().st_size if path.exists() else 0


def job_of(workflow, rule):
    """(id, node) of the running job of a rule, or None."""
    for job, (node, comment) in workflow.slurm.jobs().items():
        if comment.startswith(f"rule_{rule}"):
            return job, node
    return None


def record_of(workflow, rule):
    """What Slurm has recorded of the newest job of a rule: field -> value."""
    jobs = workflow.slurm.call("scontrol", "--oneliner", "show", "job").splitlines()
    records = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in jobs]
    mine = [record for record in records if record.get("Comment", "").startswith(f"rule_{rule}")]
    return max(mine, key=lambda record: int(record["JobId"]))


def test_the_whole_pipeline(finished):
    assert (finished.folder / RUN / "report.html").exists()
    submitted = re.findall(r"has been submitted with SLURM jobid (\d+)", finished.said)
    arrays = re.findall(r"Submitted array job.*task IDs are 1-2", finished.said)
    assert len(arrays) == 1  # both shards of the corpus
    total = int(re.search(r"^total +(\d+)", finished.said, re.M)[1])
    assert len(submitted) == total - 1 - 2  # every other job but the target
    assert "Nothing to be done" in finished.run()


def test_a_run_begun_on_slurm_goes_on_without_it(workflow):
    here = Workflow(workflow.folder)
    assert here.stale() == set()


def test_jobs_go_where_the_config_says(workflow):
    workflow.configure(
        cluster={
            "partition": "cpu",
            "gpu_partition": "gpu",
            "account": "lab",
            "gpu_model": "h100",
        }
    )
    paired = f"{RUN}/heldout/paired.json"
    (workflow.folder / paired).unlink()
    workflow.run(paired)
    job = record_of(workflow, "compare")
    assert (job["Partition"], job["NodeList"], job["Account"]) == ("cpu", "n1", "lab")
    assert "TresPerJob" not in job


def test_training_gets_the_gpus_that_it_asks_for(workflow):
    """The paper run's eight, all of one node, which has none in truth: so the job ends at its first
    step. Twelve are more than a node has, and fewer than both have together."""
    workflow.configure(
        cluster={"gpu_partition": "gpu", "gpu_model": "h100"},
        training={"engine": "titan"},
        titan={"trainer_fsdp": 3, "trainer_tp": 2, "generator_tp": 2, "share_gpu": False},
    )
    # What that engine's own gate would leave: the job under test is the one after it.
    gate = workflow.folder / RUN / "gates/model_parity.json"
    (gate.parent / "bitwise_parity.json").write_bytes(gate.read_bytes())
    text = workflow.run(
        f"{RUN}/training/metrics.jsonl",
        *("--allowed-rules", "grpo", "--retries", "0"),
        fails=True,
    )
    job = record_of(workflow, "grpo")
    assert (job["Partition"], job["NodeList"]) == ("gpu", "n2")
    assert job["TresPerJob"] == "gres:gpu:h100:8"
    assert "GPU" in text.split("Error in rule grpo")[1], text[-3000:]
    workflow.configure(titan={"trainer_fsdp": 5})
    text = workflow.run(
        f"{RUN}/training/metrics.jsonl",
        *("--allowed-rules", "grpo", "--retries", "0"),
        fails=True,
    )
    assert "Requested node configuration is not available" in text, text[-3000:]


def test_a_cancelled_job_is_submitted_again_and_goes_on(finished, workflow):
    (workflow.folder / AFTER).unlink()
    part = workflow.folder / RUN / "heldout/.after.jsonl.part"
    running = workflow.start(AFTER)
    until(lambda: size(part) > 10_000, running)
    job, _ = job_of(workflow, "evaluate")
    workflow.slurm.call("scancel", job)
    text = ending(running)
    assert f"SLURM-job '{job}' failed, SLURM status is: 'CANCELLED'" in text
    assert f"rule_evaluate/after/{job}.log" in text  # where to look
    log = (workflow.folder / RUN / "logs/evaluate-after.log").read_text()
    assert "evaluate after: resuming after 6 of 12" in log
    assert sha256_file(workflow.folder / AFTER) == sha256_file(finished.folder / AFTER)


def test_a_lost_node(finished, workflow):
    """Its job is started on the other node, once, and goes on where it was."""
    for name in (".npy", ".json"):
        (workflow.folder / f"{SHARD}{name}").unlink()
    part = workflow.folder / RUN / "retrieval/vectors/.shard-00000-of-00002.npy.part"
    running = workflow.start(f"{SHARD}.npy")
    until(lambda: size(part) > 90_000, running)
    job, node = job_of(workflow, "embed")
    try:
        workflow.slurm.call(
            "scontrol", "update", f"nodename={node}", "state=down", "reason=pulled the plug"
        )
        again, other = until(
            lambda: (found := job_of(workflow, "embed")) and found[0] != job and found, running
        )
        assert other != node
        text = ending(running)
    finally:
        workflow.slurm.call("scontrol", "update", f"nodename={node}", "state=resume")
    assert re.search(rf"SLURM-job '{job}' failed due to a node failure", text)
    assert "Requeue=0" in workflow.slurm.call("scontrol", "show", "job", again)
    log = (workflow.folder / RUN / "logs/embed-00000-of-00002.log").read_text()
    assert "embedding shard-00000-of-00002: resuming after" in log
    for name in (".npy", ".json"):
        mine, first = (sha256_file(w.folder / f"{SHARD}{name}") for w in (workflow, finished))
        assert mine == first


def test_slurm_may_not_start_a_job_behind_the_workflow(workflow):
    """Else two jobs would write one file: the requeued one and the one submitted anew."""
    (workflow.folder / AFTER).unlink()
    running = workflow.start(AFTER)
    job, _ = until(lambda: job_of(workflow, "evaluate"), running)
    refused = subprocess.run(
        ["scontrol", "requeue", job],
        env=workflow.slurm.environment,
        capture_output=True,
        text=True,
    )
    assert refused.returncode != 0 and "disabled" in refused.stderr
    ending(running)


def test_a_job_over_its_memory_comes_back_with_more(workflow):
    index = workflow.folder / RUN / "retrieval/index/index.json"
    index.unlink()
    text = workflow.run(
        f"{RUN}/retrieval/index/index.json",
        *("--set-resources", "index:mem_mb=60 if attempt == 1 else 2000 * attempt"),
    )
    assert re.search(r"SLURM status is: '(OUT_OF_MEMORY|CANCELLED|FAILED)'", text)
    lines = workflow.slurm.call("squeue", "--noheader", "-t", "all", "-o", "%i %m %k").splitlines()
    jobs = sorted((line.split() for line in lines), key=lambda job: int(job[0].split("_")[0]))
    granted = [memory for _, memory, rule in jobs if rule == "rule_index"]
    assert granted[-2:] == ["60M", "4000M"]
    assert index.exists()


@pytest.fixture
def squeue(workflow, tmp_path_factory):
    """What the workflow asks instead of squeue: it fails while there is a file `away`, and says of
    the job in the file `lost` that its node has failed."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "squeue"
    program.write_text(
        f"#!/bin/sh\ncd {folder}\nif [ -e away ]; then echo asked >> asked; exit 1; fi\n"
        '/usr/bin/squeue "$@" | sed "s/^$(cat lost)|.*/$(cat lost)|NODE_FAIL/"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "lost").write_text("none")
    workflow.programs = folder
    return folder


def test_the_state_of_jobs_cannot_be_asked_for_a_while(workflow, squeue):
    """The workflow waits; with the executor's own five attempts it would wait for ever."""
    (workflow.folder / AFTER).unlink()
    (squeue / "away").touch()
    running = workflow.start(AFTER)
    until(lambda: size(squeue / "asked") > 6 * 12, running)
    (squeue / "away").unlink()
    ending(running)
    assert (workflow.folder / AFTER).exists()


def writer(workflow):
    """Process id of the evaluation that holds the lock of AFTER, or None."""
    lock = workflow.folder / RUN / "heldout/.after.lock"
    found = re.match(r"process (\d+) on \S", lock.read_text() if lock.exists() else "")
    return int(found[1]) if found and psutil.pid_exists(int(found[1])) else None


def state(workflow, job):
    return re.search(r"JobState=(\w+)", workflow.slurm.call("scontrol", "show", "job", job))[1]


def test_a_job_that_was_given_up_is_started_again_by_slurm(finished, workflow, squeue):
    """Requeued under its old id while the one that the workflow submitted anew is writing: it is
    refused, and the result is the other's. Held back and stopped so that the two do meet."""
    (workflow.folder / AFTER).unlink()
    running = workflow.start(AFTER)
    first = until(lambda: writer(workflow), running)
    job, _ = job_of(workflow, "evaluate")
    workflow.slurm.call("scontrol", "update", f"jobid={job}", "requeue=1")
    workflow.slurm.call("scontrol", "requeuehold", job)
    until(lambda: state(workflow, job) == "PENDING", running)
    until(lambda: job not in workflow.slurm.jobs("COMPLETING"), running)
    with contextlib.suppress(ProcessLookupError):  # as a real cluster's cgroup would
        os.kill(first, signal.SIGKILL)
    (squeue / "lost").write_text(job)
    other = until(lambda: (pid := writer(workflow)) != first and pid, running)
    os.kill(other, signal.SIGSTOP)
    try:
        # Slurm lets a requeued job wait two minutes.
        workflow.slurm.call("scontrol", "update", f"jobid={job}", "starttime=now")
        workflow.slurm.call("scontrol", "release", job)
        until(lambda: state(workflow, job) == "FAILED", running)
    finally:
        os.kill(other, signal.SIGCONT)
    log = workflow.folder / f".snakemake/slurm_logs/rule_evaluate/after/{job}.log"
    assert f"process {other} on " in log.read_text()
    assert "is writing here already" in log.read_text()
    text = ending(running)
    assert re.search(rf"SLURM-job '{job}' failed due to a node failure", text)
    assert sha256_file(workflow.folder / AFTER) == sha256_file(finished.folder / AFTER)


def test_ctrl_c_takes_the_jobs_along(workflow):
    (workflow.folder / AFTER).unlink()
    running = workflow.start(AFTER)
    job, _ = until(lambda: job_of(workflow, "evaluate"), running)
    os.kill(running.pid, signal.SIGINT)
    running.communicate(timeout=120)
    assert running.returncode != 0
    deadline = time.monotonic() + 60
    while job in workflow.slurm.jobs("RUNNING,PENDING,COMPLETING"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    workflow.run("-n", AFTER)  # not locked


def test_the_generic_profile_as_it_is(finished, workflow):
    """Its submit script, and both shards as one job."""
    for shard in ("00000", "00001"):
        for name in (".npy", ".json"):
            (workflow.folder / f"{RUN}/retrieval/vectors/shard-{shard}-of-00002{name}").unlink()
    here = Workflow(workflow.folder)
    done = subprocess.run(
        here.command(
            *("--workflow-profile", "profiles/cluster-generic"),
            *(
                f"{RUN}/retrieval/vectors/shard-{shard}-of-00002.npy"
                for shard in ("00000", "00001")
            ),
        ),
        cwd=workflow.folder,
        env=workflow.environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    assert len(re.findall("Submitted group job", text)) == 1
    for name in (".npy", ".json"):
        mine, first = (sha256_file(w.folder / f"{SHARD}{name}") for w in (workflow, finished))
        assert mine == first
