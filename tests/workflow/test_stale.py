"""Only what is stale runs again: every edit of staleness.yaml, on a real run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.workflow.copies import SETTINGS, Workflow

TABLE = Path(__file__).with_name("staleness.yaml")
DATA = yaml.safe_load(TABLE.read_text())
EDITS = {case["what"]: case for case in DATA["edits"]}
SHARDS = {"embed 00000-00002", "embed 00001-00002"}
JOBS = {"embed": SHARDS, "evaluate": {"evaluate before", "evaluate after"}}


def jobs(names, shards=SHARDS):
    """The jobs that a list of jobs, rules and sets stands for."""
    found = set()
    for name in names:
        if name in DATA["sets"]:
            found |= jobs(DATA["sets"][name], shards)
        else:
            found |= shards if name == "embed" else JOBS.get(name, {name})
    return found


@pytest.fixture(scope="session")
def seen(finished, tmp_path_factory):
    """Edit -> jobs that would run, all edits in one process."""
    copy = Workflow.copy(tmp_path_factory.mktemp("edited"), SETTINGS, results=finished.folder)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("edits.py")), str(TABLE)],
        cwd=copy.folder,
        env=copy.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_table_is_long_enough():
    assert len(EDITS) == len(DATA["edits"]) >= 25


@pytest.mark.parametrize("what", [w for w, case in EDITS.items() if "folder" not in case["edit"]])
def test_an_edit_runs_exactly(seen, what):
    three = {f"embed {i:05d}-00003" for i in range(3)}
    shards = three if "embedding.shards" in what else SHARDS
    assert set(seen[what]) == jobs(EDITS[what]["runs"], shards)
    assert len(seen[what]) == len(set(seen[what]))


@pytest.mark.parametrize("what", [w for w, case in EDITS.items() if "folder" in case["edit"]])
def test_in_another_folder(finished, tmp_path, what):
    copy = Workflow.copy(tmp_path / "first", SETTINGS, results=finished.folder)
    assert jobs(EDITS[what]["runs"]) == set()
    match EDITS[what]["edit"]["folder"]:
        case "moved":
            copy.folder.rename(tmp_path / "elsewhere")
            copy = Workflow(tmp_path / "elsewhere")
        case "cloned":
            shutil.copytree(copy.folder, tmp_path / "second", copy_function=shutil.copyfile)
            copy = Workflow(tmp_path / "second")
        case "cloned_without_record":
            shutil.rmtree(copy.folder / ".snakemake")
    assert copy.stale() == set()


def test_a_finished_run_has_nothing_to_do(finished):
    assert finished.stale() == set()
    assert "Nothing to be done" in finished.run()


def why(workflow, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "glimmer.cli", "why", *arguments, "--configfile", "mine.yaml"],
        cwd=workflow.folder,
        env=workflow.environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_why_says_what_changed(workflow):
    nothing = {"Nothing to be done": "every stage is up to date."}
    assert why(workflow) == nothing
    workflow.configure(training={"learning_rate": 1e-4}, search={"topk": 2})
    workflow.edit("glimmer/parity/model.py", "\ndef ", "\n_X = 1\n\n\ndef ")
    workflow.edit("world/heldout.jsonl", "Which", "What ")
    workflow.edit("envs/workflow.txt", "\nscipy==", "\nscipy==9")
    (workflow.folder / "results/t/gates/recall.json").unlink()
    lines = why(workflow)
    assert lines["questions"] == "source file heldout.jsonl"
    assert lines["gate_model"] == "glimmer/parity/model.py; after questions"
    assert lines["gate_logprobs"] == "config.search.topk 3 → 2; after questions"
    assert lines["gate_recall"].startswith("missing results/t/gates/recall.json")
    assert lines["grpo"] == (
        "config.training.learning_rate 0.0002 → 0.0001; config.search.topk 3 → 2; after "
        "gate_logprobs, gate_model, gate_recall, questions"
    )
    assert lines["compare"].startswith("packages.scipy 1.")
    assert "config.search.topk 3 → 2" in lines["evaluate after"]
    assert "embed 00000-00002" not in lines and "index" not in lines
    # Only what a target needs.
    assert set(why(workflow, "results/t/gates/model_parity.json")) == {"questions", "gate_model"}


def test_why_passes_on_what_snakemake_refuses(workflow):
    workflow.configure(training={"learning_rte": 1e-4})
    done = subprocess.run(
        [sys.executable, "-m", "glimmer.cli", "why", "--configfile", "mine.yaml"],
        cwd=workflow.folder,
        env=workflow.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "Did you mean 'learning_rate'" in done.stderr
    assert "Traceback" not in done.stderr
