"""Bad input through the real DAG: a message that says what to do; nothing finished is lost."""

import json
import os
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from glimmer.files import sha256_file

RUN = "results/t"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"training": {"learning_rte": 1e-4}}, "training.learning_rte.*learning_rate"),
        ({"trainning": {"steps": 2}}, "trainning.*training"),
        ({"training": {"steps": "many"}}, "training.steps.*many"),
        ({"training": {"steps": 0}}, "training.steps.*0"),
        ({"training": {"steps": -3}}, "training.steps.*-3"),
        ({"search": {"topk": 0}}, "search.topk.*0"),
        ({"threads": None}, "threads"),
    ],
    ids=str,
)
def test_a_bad_setting_stops_before_any_rule(workflow, sections, message):
    workflow.configure(**sections)
    text = workflow.run("-n", fails=True)
    assert re.search(message, text), text[-1500:]
    assert "Traceback" not in text
    assert (workflow.folder / RUN / "report.html").exists()


def test_yaml_that_would_run_code_runs_none(workflow):
    (workflow.folder / "mine.yaml").write_text(
        "run: !!python/object/apply:os.system ['touch hurt']\n"
    )
    assert "not valid JSON or YAML" in workflow.run("-n", fails=True)
    assert not (workflow.folder / "hurt").exists()


def test_a_changed_byte_of_a_shipped_file_is_refused(workflow):
    workflow.configure(corpus={"source": "bundled:toy_world"})
    path = workflow.folder / "resources/toy_world/corpus.jsonl"
    path.write_text(path.read_text().replace("film", "play", 1))
    before = sha256_file(workflow.folder / RUN / "training/final/model.safetensors")
    text = workflow.run(fails=True)
    assert "corpus.jsonl" in text
    assert "sha256" in text
    after = sha256_file(workflow.folder / RUN / "training/final/model.safetensors")
    assert before == after


def test_topk_beyond_the_corpus(workflow):
    workflow.configure(search={"topk": 700}, index={"ef_search": 700}, recall={"choose": "index"})
    text = workflow.run(f"{RUN}/training/metrics.jsonl", fails=True)
    assert "search.topk: found 700, but the corpus has 630 passages" in text


@pytest.fixture
def broken_service(workflow):
    """A service that answers the probe for known titles, and every search of the model with 500."""
    corpus = (workflow.folder / "world/corpus.jsonl").read_text().splitlines()
    passages = {row["contents"].split("\n")[0].strip('"'): row for row in map(json.loads, corpus)}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            probe = asked["topk"] == 1
            self.send_response(200 if probe else 500)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            found = [[{"document": passages[q]}] for q in asked["queries"]] if probe else []
            self.wfile.write(json.dumps({"result": found}).encode() if probe else b"index on fire")

        def do_GET(self):
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/retrieve"
    server.shutdown()


def test_a_service_that_answers_500_stops_the_run(workflow, broken_service):
    workflow.configure(
        retrieval={"url": broken_service, "require_info": False},
        training={"learning_rate": 1e-4},
        search={"max_retries": 0},
    )
    text = workflow.run(f"{RUN}/training/metrics.jsonl", fails=True)
    shown = text.split("Error in rule")[0]
    assert re.search(r"step 1: (\d+) of \1 searches failed \(100%\)", shown)
    assert "Traceback" not in shown
    assert f"{broken_service}: answered 500" in shown
    assert "index on fire" in shown
    assert not (workflow.folder / RUN / "training/metrics.jsonl").exists()


def test_a_run_folder_of_another_config_keeps_what_it_has(workflow):
    """Another learning rate: trained anew beside the finished run's checkpoints, and said so."""
    folder = workflow.folder / RUN / "training/checkpoints"
    (old,) = [p.name for p in folder.iterdir()]
    first = sha256_file(workflow.folder / RUN / "training/final/model.safetensors")
    workflow.configure(training={"learning_rate": 3e-3})
    text = workflow.run(f"{RUN}/training/metrics.jsonl")
    assert f"holds runs under other settings, data or code ({old})" in text
    assert len(list(folder.iterdir())) == 2
    assert sha256_file(workflow.folder / RUN / "training/final/model.safetensors") != first
    rows = (workflow.folder / RUN / "training/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2]
    workflow.configure(training={"learning_rate": 2e-4})
    text = workflow.run(f"{RUN}/training/metrics.jsonl")
    assert "resuming from" in text  # the first run's last checkpoint: no step is done again
    assert sha256_file(workflow.folder / RUN / "training/final/model.safetensors") == first


def test_an_evaluation_whose_searches_fail_gives_no_number(workflow, broken_service):
    workflow.configure(
        retrieval={"url": broken_service, "require_info": False},
        search={"max_retries": 0},
        evaluation={"seed": 1},
    )
    text = workflow.run(f"{RUN}/heldout/before.jsonl", fails=True)
    assert re.search(r"questions 1 to 6: (\d+) of \1 searches failed", text)
    assert not (workflow.folder / RUN / "heldout/before.jsonl").exists()


@pytest.mark.long  # 20 s; tests/faults fills the disk under every other stage
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_in_training_keeps_the_checkpoints(workflow, tmp_path_factory):
    small = tmp_path_factory.mktemp("small")
    training = workflow.folder / RUN / "training"
    whole = sum(p.stat().st_size for p in training.rglob("*") if p.is_file())
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={whole // 2}", "tmpfs", str(small)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.rmtree(training)
        training.symlink_to(small)
        text = workflow.run(f"{RUN}/training/metrics.jsonl", fails=True)
        assert "Free some space and run again" in text
        assert list(small.glob("checkpoints/*/step-000001/state.json"))
        assert not (training / "final").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)
