"""SIGKILL at drawn moments: chains of killed runs in one folder, and what became of them.

`python -m tests.faults.kills --kills 60 --seed 0` writes a table. A chain starts from nothing; at
a moment drawn uniformly one process of the running workflow is killed, or all of them, and the same
command is given again, and so on until a run ends before its moment has come. Then its figures and
files must be those of a run that nobody hurt, and nothing finished may have been made twice.

Killed is one of the kinds that are there at that moment: the search service and its workers live
only while something is searched, the others nearly always.
"""

import argparse
import base64
import collections
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from glimmer.files import sha256_file
from tests.workflow.copies import SETTINGS, Workflow

RUN = "results/t"
MARK = "GLIMMER_FAULT_RUN"
KINDS = ("snakemake", "script", "service", "worker", "group")
# Two processes of the service, for the kind "worker", and the cache as in the embedded default.
HERE = {"retrieval": {"replicas": 2}, "cache": {"folder": "results/cache"}}
# What a run says while a script of the killed one still works.
ORPHAN = re.compile("is writing here already|another process is making this shard")
LEFT_OVER = re.compile(r"\.(part|whole|journal|incoming|away)$")


def figures(workflow: Workflow) -> dict:
    """What a run has found out, without times: equal runs have equal ones."""
    run = workflow.folder / RUN
    rows = [json.loads(line) for line in (run / "training/metrics.jsonl").read_text().splitlines()]
    timed = ("time", "seconds", "tokens_per_s")
    files = ["training/final/model.safetensors", "heldout/before.jsonl", "heldout/after.jsonl"]
    files += [f"retrieval/vectors/shard-{i:05d}-of-00002.npy" for i in range(2)]
    files += ["retrieval/index/index.faiss", "retrieval/index/index.json"]
    return {
        "paired": json.loads((run / "heldout/paired.json").read_text())["measured"],
        "metrics": [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows],
        "sha256": {name: sha256_file(run / name) for name in files},
        "report": (run / "report.html").exists(),
    }


def processes(mark: str) -> Iterator[psutil.Process]:
    """Everything that a run has started, orphans too."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != "zombie":
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def of_kind(mark: str, kind: str, root: int) -> list[psutil.Process]:
    found = []
    for process in processes(mark):
        try:
            command = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if kind == "group":
            found.append(process)
        elif "glimmer.retrieval.service" in command:
            own = "worker" if "--replica" in command else "service"
            found += [process] if kind == own else []
        elif ".snakemake/scripts/" in command:
            found += [process] if kind == "script" else []
        elif process.pid == root:
            found += [process] if kind == "snakemake" else []
    return found


def stage(mark: str) -> str:
    """Whose script runs."""
    for process in processes(mark):
        with contextlib.suppress(psutil.Error):
            if found := re.search(r"/scripts/\w+\.(\w+)\.py", " ".join(process.cmdline())):
                return found[1]
    return "between jobs"


def kill(found: list[psutil.Process]) -> None:
    for process in found:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def finished_outputs(workflow: Workflow) -> dict[Path, int]:
    """Outputs that Snakemake has recorded as made, with their times."""
    kept = {}
    for record in (workflow.folder / ".snakemake/metadata").glob("*"):
        if not (workflow.folder / ".snakemake/incomplete" / record.name).exists():
            path = workflow.folder / base64.b64decode(record.name, altchars=b"-_").decode()
            if path.exists():
                kept[path] = path.stat().st_mtime_ns
    return kept


def progress(workflow: Workflow) -> dict[str, int]:
    """Finished work inside of stages: checkpointed steps, rows embedded, questions answered."""
    run, done = workflow.folder / RUN, {}
    for state in run.glob("training/checkpoints/*/step-*/state.json"):
        done["train"] = max(done.get("train", 0), int(state.parent.name.removeprefix("step-")))
    for journal in run.glob("retrieval/vectors/.*.journal"):
        whole = journal.read_bytes()
        lines = whole[: whole.rfind(b"\n") + 1].splitlines()[1:]
        name = journal.name.removeprefix(".").removesuffix(".npy.journal")
        done[f"embedding {name}"] = sum(json.loads(line).get("rows", 0) for line in lines)
    for part in run.glob("heldout/.*.jsonl.part"):
        batch = SETTINGS["evaluation"]["batch"]
        rows = max(part.read_bytes().count(b"\n") - 1, 0)
        name = part.name.removeprefix(".").removesuffix(".jsonl.part")
        done[f"evaluate {name}"] = rows // batch * batch
    return {name: count for name, count in done.items() if count}


def repeated(before: dict[str, int], said: str) -> list[str]:
    """Finished work that a run did again, by its own words."""
    wrong = []
    for name, count in before.items():
        if name == "train":
            steps = [int(n) for n in re.findall(r"train: .*?(\d+)/\d+ \[", said)]
            wrong += [f"step {n} of {count} saved" for n in steps if n <= count]
        elif f"{name}:" in said:
            resumed = [int(n) for n in re.findall(rf"{name}: resuming after (\d+)", said)]
            if re.search(rf"{name}: +\d+%", said) and (not resumed or max(resumed) < count):
                wrong.append(f"{name}: {count} were finished, resumed after {resumed}")
    return wrong


def left_in(temporary: Path) -> list[Path]:
    """What a run left in the temporary folder. A killed Snakemake cannot remove its own empty
    folders, and torch makes one a user for its compiler's cache."""
    own = ("snakemake", "torchinductor_")
    empty = [p for p in temporary.iterdir() if p.is_dir() and not p.name.startswith(own)]
    return [*empty, *(p for p in temporary.rglob("*") if p.is_file())]


class Chain:
    """One folder, killed and started again until it ends."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.workflow = Workflow.copy(folder, SETTINGS | HERE)
        self.draw = random.Random(seed)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.marks: list[str] = []
        self.kills: list[str] = []
        self.wrong: list[str] = []
        self.again: list[str] = []
        self.refused = 0

    def run(self, seconds: float, most: int, tries: int = 150) -> None:
        """Kill at most `most` times, each at a moment within `seconds`; then run to the end."""
        kept: dict[Path, int] = {}
        for _ in range(tries):
            before = progress(self.workflow)
            orphan = any(True for mark in self.marks for _ in processes(mark))
            code, said = self._once(seconds if len(self.kills) < most else None)
            # What an orphan finishes after its Snakemake has died is unfinished to the next one,
            # which removes it. From the cache it comes back; an evaluation does not.
            (self.again if orphan else self.wrong).extend(repeated(before, said))
            for path, then in kept.items():
                if not path.exists() or path.stat().st_mtime_ns != then:
                    self.wrong.append(f"{path.relative_to(self.workflow.folder)} was made twice")
            kept = finished_outputs(self.workflow)
            if code == 0:
                break
            if code is not None and code > 0 and not self.hurt:
                self.refused += 1
                if not ORPHAN.search(said):
                    self.wrong.append(f"a run failed by itself: {said[-3000:]}")
                time.sleep(3)
            self.workflow.run("--unlock")
        else:
            self.wrong.append(f"no end after {tries} runs: {said[-1500:]}")
        time.sleep(1)
        for mark in self.marks:
            self.wrong += [f"process left: {p.cmdline()}" for p in processes(mark)]
        files = (p for p in (self.workflow.folder / RUN).rglob("*") if LEFT_OVER.search(p.name))
        self.wrong += [f"file left: {p.relative_to(self.workflow.folder)}" for p in files]
        self.wrong += [f"temporary file left: {p}" for p in left_in(self.temporary)]

    def _once(self, seconds: float | None) -> tuple[int | None, str]:
        """(exit status, words) of one run; killed within `seconds`, if given."""
        self.hurt = False
        self.mark = uuid.uuid4().hex
        self.marks.append(self.mark)
        said = self.workflow.folder / "said.txt"
        with open(said, "wb") as out:
            running = subprocess.Popen(
                self.workflow.command(),
                cwd=self.workflow.folder,
                env=self.workflow.environment | {MARK: self.mark, "TMPDIR": str(self.temporary)},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        if seconds is not None:
            end = time.monotonic() + self.draw.uniform(0.5, seconds)
            while time.monotonic() < end and running.poll() is None:
                time.sleep(0.05)
            there = {kind: of_kind(self.mark, kind, running.pid) for kind in KINDS}
            there = {kind: found for kind, found in there.items() if found}
            if running.poll() is None and there:
                kind = self.draw.choice(list(there))
                during = stage(self.mark)
                kill(there[kind] if kind == "group" else [self.draw.choice(there[kind])])
                self.hurt = True
                self.kills.append(f"{kind} in {during}")
        running.wait(600)
        return running.returncode, said.read_text(errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, default=45, help="seconds of a run to draw from")
    parser.add_argument("--a-chain", type=int, default=20, help="most kills of one chain")
    parser.add_argument(
        "--reference",
        type=Path,
        help="keeps the undisturbed figures here, so that a set can be done in parts",
    )
    options = parser.parse_args()
    result = measure(
        options.kills, options.seed, options.within, options.a_chain, options.reference
    )
    print(json.dumps(result, indent=1))
    return int(bool(result["wrong"]))


def measure(
    kills: int, seed: int, within: float, a_chain: int, reference: Path | None = None
) -> dict:
    """Kill `kills` times; counts by kind, and everything that was not as it should be."""
    began = time.monotonic()
    killed: collections.Counter = collections.Counter()
    during: collections.Counter = collections.Counter()
    wrong, again, refused, chains = [], [], 0, 0
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        if reference is not None and reference.exists():
            expected = json.loads(reference.read_text())
        else:
            undisturbed = Workflow.copy(Path(folder) / "undisturbed", SETTINGS)
            undisturbed.run()
            expected = figures(undisturbed)
            if reference is not None:
                reference.write_text(json.dumps(expected))
        while killed.total() < kills:
            chain = Chain(Path(folder) / f"chain{chains}", f"{seed}/{chains}")
            chain.run(within, min(a_chain, kills - killed.total()))
            found = figures(chain.workflow)
            chain.wrong += [f"{k} differs" for k in expected if found[k] != expected[k]]
            killed.update(text.split(" in ")[0] for text in chain.kills)
            during.update(text.split(" in ")[1] for text in chain.kills)
            again += chain.again
            refused += chain.refused
            wrong += [f"chain {chains}: {text}" for text in chain.wrong]
            chains += 1
            print(
                f"{time.monotonic() - began:.0f} s, chain {chains}: {chain.kills} {chain.wrong}"
                f" {chain.again} {chain.refused}",
                file=sys.stderr,
                flush=True,
            )
            if not chain.wrong:
                subprocess.run(["rm", "-rf", str(chain.workflow.folder)], check=True)
    return {
        "kills": killed.total(),
        "by_kind": dict(sorted(killed.items())),
        "by_stage": dict(during.most_common()),
        "chains": chains,
        "refused_while_an_orphan_worked": refused,
        "made_again_what_an_orphan_finished": again,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "wrong": wrong,
    }


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
