"""Killed runs end as undisturbed ones do (`make test-faults`)."""

import shutil

import pytest

from tests.faults.kills import Chain, figures, measure


@pytest.mark.long
def test_a_chain_of_kills(finished, tmp_path):
    chain = Chain(tmp_path / "chain", "sample")
    for name in ("results", ".snakemake"):
        shutil.copytree(finished.folder / name, chain.workflow.folder / name)
    # From the index on: what comes before is killed in the full set.
    for name in (
        "retrieval/index",
        "retrieval/search.json",
        "gates",
        "training",
        "heldout",
        "report.html",
        "report.json",
        "report.md",
        "provenance.json",
    ):
        path = chain.workflow.folder / "results/t" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    chain.run(seconds=20, most=3)
    assert chain.wrong == []
    assert len(chain.kills) >= 1
    assert figures(chain.workflow) == figures(finished)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_sixty_kills():
    result = measure(kills=60, seed=0, within=45, a_chain=20)
    print(result)
    assert result["wrong"] == []
    assert result["kills"] >= 60
    assert len(result["by_kind"]) == 5
