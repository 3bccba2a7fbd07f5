"""A run of another name takes what an earlier one has made."""

import json
import re

import pytest

from glimmer.files import sha256_file
from tests.workflow.copies import SETTINGS, Workflow


def copied(said):
    """Rules whose files came from the cache."""
    return set(re.findall(r"glimmer.cache: (\S+).*?: copied from the cache", said))


def test_a_second_run_copies_corpus_vectors_index_and_gate(workflow):
    workflow.configure(run="a", cache={"folder": "results/cache"}, embedding={"shards": 1})
    first = workflow.run("results/a/gates/recall.json")
    assert "copied from the cache" not in first
    workflow.configure(run="b", training={"learning_rate": 1e-4}, evaluation={"seed": 9})
    second = workflow.run("results/b/gates/recall.json")
    assert copied(second) == {"corpus", "embed", "index", "gate_recall"}
    # A hidden file is a stage's own note on what it fetched, no output.
    made = [p for p in (workflow.folder / "results/a").rglob("[!.]*") if p.is_file()]
    assert made
    for path in made:
        name = path.relative_to(workflow.folder / "results/a")
        if name.parts[0] not in ("logs", "benchmarks"):
            assert sha256_file(path) == sha256_file(workflow.folder / "results/b" / name), name
    # Another index shares what comes before it.
    workflow.configure(run="c", index={"ef_search": 64})
    third = workflow.run("results/c/retrieval/index/index.json")
    assert copied(third) == {"corpus", "embed"}


@pytest.mark.long
def test_two_clones_at_once_and_another_learning_rate(finished, tmp_path):
    """They share an empty cache, and each makes or copies all up to training."""
    cache = {"folder": str(tmp_path / "cache")}
    clones = [Workflow.copy(tmp_path / name, SETTINGS) for name in ("first", "second", "third")]
    for clone, rate in zip(clones, (2e-4, 2e-4, 1e-4), strict=True):
        clone.configure(cache=cache, training={"learning_rate": rate})
    gates = [
        f"results/t/gates/{name}.json"
        for name in ("recall", "renderer_parity", "logprob_parity", "model_parity")
    ]
    for running in [clone.start(*gates) for clone in clones[:2]]:
        text = running.communicate(timeout=400)[0]
        assert running.returncode == 0, text[-3000:]
    assert copied(clones[2].run(*gates)) == {
        *("checkpoint", "corpus", "embed", "index"),
        *("gate_recall", "gate_renderer", "gate_logprobs", "gate_model"),
    }
    for name in (
        *("assets/checkpoint/model.safetensors", "assets/corpus/corpus.jsonl"),
        *("retrieval/vectors/shard-00001-of-00002.npy", "retrieval/index/index.faiss"),
    ):
        made = {sha256_file(run.folder / "results/t" / name) for run in (finished, *clones)}
        assert len(made) == 1, name
    for entry in (tmp_path / "cache").iterdir():
        files = json.loads((entry / "entry.json").read_text())["files"]
        assert {p.name for p in entry.iterdir()} == {*files, "entry.json"}
