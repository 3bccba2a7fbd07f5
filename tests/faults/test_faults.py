"""Other faults, each on a copy of a finished run: a clear message or survival, and nothing wrong.

After each fault is over, the same command must come to the figures of the undisturbed run, and no
process, no file in the temporary folder and no half-written result may be left.
"""

import contextlib
import http.server
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid

import pytest

from glimmer.files import sha256_file
from tests.faults.kills import LEFT_OVER, MARK, figures, left_in, processes

RUN = "results/t"
EMBED = [f"{RUN}/retrieval/vectors/shard-00000-of-00002.{end}" for end in ("npy", "json")]
INDEX = f"{RUN}/retrieval/index/index.json"
TRAINED = f"{RUN}/training/metrics.jsonl"
AFTER = f"{RUN}/heldout/after.jsonl"
RECALL = f"{RUN}/gates/recall.json"
CHOSEN = f"{RUN}/heldout/questions.jsonl"
CEILING = f"{RUN}/heldout/ceiling.json"
PAIRED = f"{RUN}/heldout/paired.json"
REPORT = f"{RUN}/report.html"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


class Hurt:
    """A copy of the finished run in which things go wrong."""

    def __init__(self, workflow, temporary):
        self.workflow, self.folder, self.temporary = workflow, workflow.folder, temporary
        self.mark = uuid.uuid4().hex
        self.whole = True

    def remove(self, *names):
        for name in names:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def start(self, *arguments, environment=None, before=(), **kwargs):
        return subprocess.Popen(
            [*before, *self.workflow.command(*arguments)],
            cwd=self.folder,
            env=self.workflow.environment
            | {MARK: self.mark, "TMPDIR": str(self.temporary)}
            | (environment or {}),
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.STDOUT,
                "text": True,
                "errors": "replace",
                "start_new_session": True,
            }
            | kwargs,
        )

    def run(self, *arguments, fails=False, plain=True, **kwargs):
        running = self.start(*arguments, **kwargs)
        text = running.communicate(timeout=500)[0]
        assert (running.returncode != 0) == fails, text[-4000:]
        if fails and plain:
            # What a person reads first: one message, no traceback.
            assert "Traceback" not in text.split("Error in rule")[0], text[-4000:]
        return text

    def script(self):
        """The running rule's script, once there is one."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for process in processes(self.mark):
                with contextlib.suppress(Exception):
                    if ".snakemake/scripts/" in " ".join(process.cmdline()):
                        return process
            time.sleep(0.05)
        raise AssertionError("no script ran")

    def nothing_left(self):
        deadline = time.monotonic() + 10
        while list(processes(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [p.cmdline() for p in processes(self.mark)] == []
        if self.temporary.exists():
            assert left_in(self.temporary) == []
        left = [p.name for p in (self.folder / RUN).rglob("*") if LEFT_OVER.search(p.name)]
        assert left == []


@pytest.fixture
def hurt(finished, workflow, tmp_path_factory):
    hurt = Hurt(workflow, tmp_path_factory.mktemp("tmp"))
    yield hurt
    if hurt.whole:
        # The fault is over: the same command, for a page that needs every file again.
        hurt.remove(REPORT, f"{RUN}/provenance.json")
        hurt.run()
        assert figures(workflow) == figures(finished)
    hurt.nothing_left()
    shutil.rmtree(hurt.folder, ignore_errors=True)


@contextlib.contextmanager
def mounted(folder, *options):
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@ROOT_ONLY
@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "target", "kilobytes"),
    [
        (f"{RUN}/assets", f"{RUN}/assets/corpus/corpus.jsonl", 40),
        (f"{RUN}/assets", f"{RUN}/assets/checkpoint/manifest.json", 1500),
        (f"{RUN}/retrieval/vectors", EMBED[0], 200),
        (f"{RUN}/retrieval/index", INDEX, 400),
        (f"{RUN}/training", TRAINED, 9000),
        (f"{RUN}/heldout", AFTER, 60),
    ],
    ids=lambda value: str(value).rsplit("/", 1)[-1],
)
def test_disk_full(hurt, place, target, kilobytes):
    kept = hurt.folder / f"{place}.kept"
    (hurt.folder / place).rename(kept)
    (hurt.folder / place).mkdir()
    try:
        with mounted(hurt.folder / place, f"size={kilobytes}k"):
            text = hurt.run(target, fails=True)
    finally:
        (hurt.folder / place).rmdir()
        kept.rename(hurt.folder / place)
    assert "free some space" in text.lower(), text[-3000:]


@ROOT_ONLY
@pytest.mark.long
def test_results_are_read_only(hurt):
    place = hurt.folder / RUN / "heldout"
    kept = place.with_name("kept")
    place.rename(kept)
    place.mkdir()
    try:
        with mounted(place, "ro"):
            # Snakemake itself, removing the old output, is the first to notice.
            text = hurt.run(AFTER, fails=True, plain=False)
    finally:
        place.rmdir()
        kept.rename(place)
    assert re.search("[Rr]ead-only", text), text[-3000:]


ARTEFACTS = [
    # (what is damaged, what must be made from it, what it takes to repair it, what it ends in)
    (
        "assets/checkpoint/model.safetensors",
        [TRAINED],
        "assets/checkpoint/manifest.json",
        "training/final/model.safetensors",
    ),
    (
        "assets/corpus/corpus.jsonl",
        EMBED,
        "assets/corpus/manifest.json",
        "retrieval/vectors/shard-00000-of-00002.npy",
    ),
    (
        "assets/questions/train.jsonl",
        [RECALL],
        "assets/questions/train.jsonl",
        "gates/recall.json",
    ),
    (
        "assets/questions/heldout.jsonl",
        [CHOSEN],
        "assets/questions/heldout.jsonl",
        "heldout/questions.jsonl",
    ),
    ("heldout/questions.jsonl", [AFTER], "heldout/questions.jsonl", "heldout/after.jsonl"),
    (
        "retrieval/vectors/shard-00001-of-00002.npy",
        [INDEX],
        "retrieval/vectors/shard-00001-of-00002.npy",
        "retrieval/index/index.faiss",
    ),
    (
        "retrieval/index/index.faiss",
        [AFTER],
        "retrieval/index/index.json",
        "heldout/after.jsonl",
    ),
    (
        "retrieval/index/offsets.npy",
        [AFTER],
        "retrieval/index/index.json",
        "heldout/after.jsonl",
    ),
    (
        "training/final/model.safetensors",
        [AFTER],
        "training/final/manifest.json",
        "heldout/after.jsonl",
    ),
    (
        "heldout/before.jsonl",
        [f"{RUN}/heldout/paired.json"],
        "heldout/before.jsonl",
        "heldout/before.jsonl",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "targets", "repair", "end"),
    ARTEFACTS,
    ids=[name.replace("/", "-") for name, *_ in ARTEFACTS],
)
def test_a_damaged_file(finished, hurt, name, targets, repair, end):
    """Cut short, then with a flipped bit: refused by name, never used; made anew when it, or the
    record of its folder, is deleted."""
    path = hurt.folder / RUN / name
    data, times = path.read_bytes(), path.stat()
    middle = len(data) // 2
    for hurt_data in (data[:-100], data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]):
        path.write_bytes(hurt_data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a disk does it: unseen
        hurt.remove(*targets)
        text = hurt.run(targets[0], fails=True)
        said = text.split("Error in rule")[0]
        assert path.name in said or path.parent.name in said, said[-2000:]
    hurt.remove(f"{RUN}/{repair}")
    hurt.run(targets[0])
    assert path.read_bytes() == data
    assert sha256_file(hurt.folder / RUN / end) == sha256_file(finished.folder / RUN / end)
    hurt.whole = False  # what follows would be the whole pipeline


RECORDS = {
    "retrieval/vectors/shard-00001-of-00002.json": INDEX,
    "retrieval/index/index.json": CEILING,
    "retrieval/search.json": CEILING,
    "heldout/leakage.json": PAIRED,
    "heldout/ceiling.json": PAIRED,
    "heldout/after.repeats.jsonl": PAIRED,
    "heldout/after.timings.jsonl": REPORT,
    "heldout/paired.json": REPORT,
    "training/metrics.jsonl": REPORT,
    "gates/recall.json": REPORT,
}


@pytest.mark.long
def test_a_damaged_record(hurt):
    """Verdicts and other small results: one flipped bit is refused by name."""
    for name, target in RECORDS.items():
        path = hurt.folder / RUN / name
        data, times = path.read_bytes(), path.stat()
        place = re.search(rb"[0-9](?=[^0-9]*$)", data).start()  # the last figure
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        hurt.remove(target)
        said = hurt.run(target, fails=True).split("Error in rule")[0]
        assert f"{RUN}/{name}: found sha256" in said, said[-2000:]
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        hurt.run(target)


class Service(http.server.BaseHTTPRequestHandler):
    mode = "garbles"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.mode == "hangs":
            time.sleep(3600)
        if self.mode == "closes":
            return
        if self.mode == "drips":
            with contextlib.suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
                while True:
                    self.wfile.write(b" ")
                    time.sleep(0.2)
            return
        body = {"garbles": b"\x00\xff{", "lies": b'{"result": []}'}[self.mode]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.long
@pytest.mark.parametrize("mode", ["garbles", "lies", "hangs", "drips", "closes", "refuses"])
def test_a_bad_service(hurt, mode):
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Bad", (Service,), {"mode": mode})
    )
    server.daemon_threads = True
    url = f"http://127.0.0.1:{server.server_port}/retrieve"
    if mode == "refuses":
        server.server_close()
    else:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    hurt.remove(AFTER)
    settings = (hurt.folder / "mine.yaml").read_text()
    hurt.workflow.configure(retrieval={"url": url, "require_info": False, "start_timeout_s": 5})
    text = hurt.run(AFTER, fails=True)
    assert url in text, text[-2000:]
    if mode != "refuses":
        server.shutdown()
        server.server_close()
    (hurt.folder / "mine.yaml").write_text(settings)


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "says"),
    [
        ("starting", r"did not start within 20 s \(retrieval\.start_timeout_s\)"),
        ("searching", r"\d+ of \d+ searches failed, 20% are allowed.*SearchTimeout|no answer"),
    ],
    ids=["starting", "searching"],
)
def test_the_service_is_stopped_and_never_answers(hurt, moment, says):
    """SIGSTOP, as a swapping machine does it: searches time out as such, and the run says so."""
    hurt.remove(AFTER)
    settings = (hurt.folder / "mine.yaml").read_text()
    hurt.workflow.configure(
        search={"timeout_s": 2, "max_retries": 0}, retrieval={"start_timeout_s": 20}
    )
    log = hurt.folder / RUN / "logs/evaluate-after.log"
    log.unlink()
    running = hurt.start(AFTER)
    deadline = time.monotonic() + 120
    service = None
    while service is None and time.monotonic() < deadline:
        said = log.read_text() if log.exists() else ""
        if moment == "starting" or "the retrieval service answers at" in said:
            for process in processes(hurt.mark):
                if "glimmer.retrieval.service" in " ".join(process.cmdline()):
                    service = process
        time.sleep(0.02)
    assert service is not None, running.communicate()[0]
    service.suspend()
    text = running.communicate(timeout=300)[0]
    assert running.returncode != 0
    assert re.search(says, text), text[-3000:]
    (hurt.folder / "mine.yaml").write_text(settings)


@pytest.mark.long
@pytest.mark.parametrize("hours", [-30, 30])
def test_the_clock_jumps(hurt, hours):
    """time.time() is another day from the middle of the job on."""
    shim = hurt.temporary.parent / f"shim{hours}"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(
        "import time\n_then, _real = time.monotonic(), time.time\n"
        f"time.time = lambda: _real() + ({hours} * 3600 if time.monotonic() - _then > 4 else 0)\n"
    )
    hurt.remove(f"{RUN}/training", AFTER)
    path = f"{shim}:{hurt.workflow.environment['PYTHONPATH']}"
    hurt.run(AFTER, environment={"PYTHONPATH": path})


@pytest.mark.long
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_the_script_is_ended(hurt, kind):
    """SIGKILL is what the kernel does when memory is short."""
    hurt.remove(f"{RUN}/training")
    running = hurt.start(TRAINED)
    script = hurt.script()
    time.sleep(4)
    script.send_signal(getattr(signal, kind))
    text = running.communicate(timeout=300)[0]
    assert running.returncode != 0 and "Error in rule grpo" in text


@pytest.mark.long
@pytest.mark.parametrize("kind", ["SIGTERM", "SIGINT"])
def test_snakemake_is_ended_by_the_scheduler(hurt, kind):
    hurt.remove(f"{RUN}/training")
    running = hurt.start(TRAINED)
    hurt.script()
    time.sleep(4)
    os.killpg(running.pid, getattr(signal, kind))
    running.communicate(timeout=120)
    assert running.returncode != 0
    deadline = time.monotonic() + 20
    while list(processes(hurt.mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [p.cmdline() for p in processes(hurt.mark)] == []
    assert "Nothing" in hurt.run("-n", INDEX)  # not locked


@pytest.mark.long
def test_too_little_memory(hurt):
    """An allocation is refused: the job fails, and says memory."""
    hurt.remove(AFTER)
    running = hurt.start(AFTER)
    script = hurt.script()
    now = script.memory_info().vms
    subprocess.run(["prlimit", "--pid", str(script.pid), f"--as={now + (1 << 20)}"], check=True)
    text = running.communicate(timeout=300)[0]
    assert running.returncode != 0
    assert re.search(r"(?i)memory|alloc|cannot start new thread|failed to map", text), text[-3000:]


@pytest.mark.long
def test_a_second_run_in_the_same_folder(hurt):
    hurt.remove(f"{RUN}/training")
    first = hurt.start(TRAINED)
    hurt.script()
    second = hurt.run(TRAINED, fails=True)
    assert "--unlock" in second and "lock" in second
    text = first.communicate(timeout=300)[0]
    assert first.returncode == 0, text[-3000:]


@pytest.mark.long
@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_two_jobs_write_one_result(hurt, stage, finished):
    """A scheduler that starts a lost job again beside the one that the workflow submitted anew."""
    target = {"train": TRAINED, "evaluate": AFTER}[stage]
    hurt.remove(*([f"{RUN}/training"] if stage == "train" else [AFTER]))
    pair = [hurt.start("--nolock", target) for _ in range(2)]
    texts = [running.communicate(timeout=500)[0] for running in pair]
    assert any(running.returncode == 0 for running in pair), texts[0][-2000:] + texts[1][-2000:]
    hurt.run("--nolock", target)
    for name in ("training/final/model.safetensors", "heldout/after.jsonl"):
        if (hurt.folder / RUN / name).exists():
            mine, first = (sha256_file(f / RUN / name) for f in (hurt.folder, finished.folder))
            assert mine == first


@pytest.mark.long
def test_the_port_is_in_use(hurt):
    hurt.remove(AFTER)
    settings = (hurt.folder / "mine.yaml").read_text()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        hurt.workflow.configure(retrieval={"port": port})
        text = hurt.run(AFTER, fails=True)
    assert "retrieval.port" in text and str(port) in text, text[-3000:]
    (hurt.folder / "mine.yaml").write_text(settings)


@pytest.mark.long
def test_the_temporary_folder_is_gone(hurt):
    hurt.remove(AFTER)
    hurt.run(AFTER, environment={"TMPDIR": "/nonexistent/tmp"})


@pytest.mark.long
def test_permission_is_lost(hurt):
    """The folder of the records may no longer be written to."""
    hurt.remove(AFTER)
    heldout = hurt.folder / RUN / "heldout"
    heldout.chmod(0o555)
    # Root may write everywhere, unless it gives up just that.
    as_anyone = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    try:
        text = hurt.run(
            AFTER, fails=True, plain=False, before=as_anyone if os.geteuid() == 0 else []
        )
    finally:
        heldout.chmod(0o755)
    assert re.search("(?i)permission", text), text[-3000:]


@pytest.mark.long
def test_hostile_environment(hurt):
    hurt.remove(f"{RUN}/training", AFTER)
    hurt.run(
        AFTER,
        environment={
            "PYTHONSTARTUP": "/nonexistent",
            "PYTHONHASHSEED": "12345",
            "LANG": "; touch hurt",
            "LC_ALL": "C",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "http_proxy": "http://127.0.0.1:9",
            "NO_PROXY": "",
            "TOKENIZERS_PARALLELISM": "$(touch hurt)",
            "HF_HOME": "/nonexistent/$(touch hurt)",
            "OMP_NUM_THREADS": "7",
            "COLUMNS": "-1",
        },
    )
    assert not (hurt.folder / "hurt").exists()


def test_stdin_is_closed(hurt):
    hurt.remove(REPORT, f"{RUN}/heldout/paired.json")
    running = subprocess.Popen(
        ["bash", "-c", 'exec "$@" <&- 2>&1', "bash", *hurt.workflow.command()],
        cwd=hurt.folder,
        env=hurt.workflow.environment | {MARK: hurt.mark, "TMPDIR": str(hurt.temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    text = running.communicate(timeout=300)[0]
    assert running.returncode == 0, text[-3000:]


HOSTILE = ("wörld", "with space", "'\"`", "$(touch hurt)", "; touch hurt |&*?[a]~", "a\nb")


def test_folders_with_hostile_names(hurt):
    """No shell ever sees a path of the config."""
    folder = hurt.folder.joinpath(*HOSTILE)
    shutil.copytree(hurt.folder / "world", folder)
    settings = (hurt.folder / "mine.yaml").read_text()
    results = "/".join(("found", *HOSTILE))
    hurt.workflow.configure(
        run="x", results=results, questions={"source": str(folder.relative_to(hurt.folder))}
    )
    hurt.run(f"{results}/x/assets/questions/manifest.json")
    assert list(hurt.folder.rglob("hurt")) == []
    (hurt.folder / "mine.yaml").write_text(settings)


@pytest.mark.long
def test_training_and_evaluation_in_a_folder_with_a_hostile_name(hurt):
    settings = (hurt.folder / "mine.yaml").read_text()
    results = "/".join(HOSTILE)
    hurt.remove(f"{RUN}/training", AFTER, REPORT)
    hurt.folder.joinpath(*HOSTILE[:-1]).mkdir(parents=True)
    (hurt.folder / "results").rename(hurt.folder / results)
    hurt.workflow.configure(results=results)
    hurt.run()
    assert list(hurt.folder.rglob("hurt")) == []
    (hurt.folder / results).rename(hurt.folder / "results")
    (hurt.folder / "mine.yaml").write_text(settings)
