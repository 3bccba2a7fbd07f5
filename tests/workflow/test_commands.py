"""The targets that the pages name, as they are typed there, on a finished run."""

import pytest


@pytest.mark.parametrize("target", [[], ["--cores", "all", "train"], ["heldout_report"]], ids=str)
def test_a_target_of_the_pages(finished, target):
    assert "Nothing to be done" in finished.run(*target)


def test_a_rule_is_run_anyway(finished):
    assert finished.stale("--forcerun", "report") == {"report"}


def test_preflight_of_the_embedded_default(workflow):
    """The one that makes something: a table for people, a verdict for machines."""
    said = workflow.run("preflight")
    assert (workflow.folder / "results/t/preflight.json").exists(), said[-2000:]
