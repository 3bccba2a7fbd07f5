"""A run of another name takes what an earlier one has made."""

import re

from glimmer.files import sha256_file


def test_a_second_run_copies_corpus_vectors_index_and_gate(workflow):
    workflow.configure(run="a", cache={"folder": "results/cache"}, embedding={"shards": 1})
    first = workflow.run("results/a/gates/recall.json")
    assert "copied from the cache" not in first
    workflow.configure(run="b", training={"learning_rate": 1e-4}, evaluation={"seed": 9})
    second = workflow.run("results/b/gates/recall.json")
    copied = set(re.findall(r"glimmer.cache: (\S+).*?: copied from the cache", second))
    assert copied == {"corpus", "embed", "index", "gate_recall"}
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
    copied = set(re.findall(r"glimmer.cache: (\S+).*?: copied from the cache", third))
    assert copied == {"corpus", "embed"}
