"""The generic cluster profile, with a scheduler of one line: another process group, another
temporary folder, no terminal, and no variable of the workflow's own process but PATH."""

import os
import shutil

import pytest

from glimmer.files import sha256_file

RUN = "results/t"
SCHEDULER = """#!/bin/sh
# threads, memory, minutes, GPUs, job script
mkdir -p {folder}/tmp
echo "$1 $2 $3 $4" >> {folder}/asked
env -i PATH="$PATH" HOME={folder} TMPDIR={folder}/tmp HF_HUB_OFFLINE=1 \\
    setsid sh "$5" < /dev/null > {folder}/job-$$.log 2>&1 &
echo $$
"""


@pytest.mark.long
def test_jobs_somewhere_else(finished, workflow, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scheduler")
    submit = folder / "submit"
    submit.write_text(SCHEDULER.format(folder=folder))
    submit.chmod(0o755)
    vectors = f"{RUN}/retrieval/vectors"
    shutil.rmtree(workflow.folder / vectors)
    (workflow.folder / RUN / "heldout/after.jsonl").unlink()
    workflow.configure(retrieval={"token_env": None})  # the job would not have it
    shards = [f"{vectors}/shard-0000{i}-of-00002.npy" for i in range(2)]
    text = workflow.run(
        *(*shards, f"{RUN}/heldout/after.jsonl"),
        *("--workflow-profile", "profiles/cluster-generic"),
        "--cluster-generic-submit-cmd",
        f"{submit} {{threads}} {{resources.mem_mb}} {{resources.runtime}} {{resources.gpu}}",
        *("--latency-wait", "5"),
    )
    assert text.count("Submitted group job") == 1 and "Submitted job" in text
    asked = (folder / "asked").read_text().splitlines()
    assert len(asked) >= 2 and all(len(line.split()) == 4 for line in asked)
    # The service was started in the job, wherever that was, and is gone.
    assert (
        "the retrieval service answers at"
        in (workflow.folder / RUN / "logs/evaluate-after.log").read_text()
    )
    for name in (*shards, f"{RUN}/heldout/after.jsonl"):
        assert sha256_file(workflow.folder / name) == sha256_file(finished.folder / name)
    assert os.listdir(folder / "tmp") in ([], ["torchinductor_root"])
