"""Several runs side by side, and seeds pooled by question, against simulation and by hand."""

import copy

import numpy as np
import pytest

from glimmer.errors import DataError
from glimmer.heldout import compare
from glimmer.heldout.pooled import compare_runs, pool_seeds
from glimmer.heldout.report_machine import report_json
from glimmer.heldout.runs_page import runs_markdown, runs_page
from tests.heldout.pages import HOSTILE, Case, Page


def seeds(table):
    """Verdicts of a table [seeds, questions] of -1, 0 and 1."""
    return [
        {
            "measured": {
                "questions": len(row),
                "before": {"correct": 10},
                "after": {"correct": 10 + int(sum(row))},
            },
            "details": {
                "gained": [f"q{i}" for i, x in enumerate(row) if x > 0],
                "lost": [f"q{i}" for i, x in enumerate(row) if x < 0],
            },
        }
        for row in table
    ]


def test_pooled_by_hand():
    found = pool_seeds(seeds([[1, 1, 0, -1], [1, 0, 0, -1], [1, 0, 0, 1]]), seed=0, resamples=500)
    assert found["seeds"] == 3 and found["questions"] == 4
    assert found["difference"]["mean"] == pytest.approx((1 + 1 / 3 + 0 - 1 / 3) / 4)
    assert found["difference"]["sd_seeds"] == pytest.approx(np.std([1 / 4, 0, 2 / 4], ddof=1))
    assert found["gained_in"] == {"1": 2, "3": 1} and found["lost_in"] == {"2": 1}


def test_equal_seeds_are_one_run():
    row = [1] * 20 + [-1] * 5 + [0] * 75
    found = pool_seeds(seeds([row, row]), seed=0, resamples=4000)["difference"]
    half = 1.98 * np.std(row, ddof=1) / 10
    assert found["ci95"] == pytest.approx([0.15 - half, 0.15 + half], abs=1e-3)
    assert found["ci95_questions"] == pytest.approx(found["ci95"], abs=0.015)
    assert found["sd_seeds"] == 0 == found["components"]["seeds"]


def test_seeds_that_differ_widen_the_interval_over_seeds():
    rng = np.random.default_rng(0)
    table = [np.where(rng.random(200) < share, 1, 0) for share in (0.05, 0.3, 0.55)]
    found = pool_seeds(seeds(table), seed=0, resamples=2000)["difference"]
    assert np.diff(found["ci95"]) > 4 * np.diff(found["ci95_questions"])
    assert found["components"]["seeds"] == pytest.approx(found["sd_seeds"], rel=0.05)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    case = Case(tmp_path_factory.mktemp("runs") / "run")
    case.write()
    paths = (case.folder / f"{name}.jsonl" for name in ("before", "after"))
    paired = compare(*paths, seed=0, resamples=300)
    return report_json(paired, case.config, case.metrics, case.gates, case.provenance)


def changed(report, run, **training):
    made = copy.deepcopy(report)
    made["run"] = made["config"]["run"] = run
    made["config"]["training"] |= training
    return made


def test_seeds_are_pooled_and_other_settings_shown(report):
    reports = [
        report,
        changed(report, "seed1", seed=1),
        changed(report, "lr", learning_rate=1e-4, seed=2),
    ]
    found = compare_runs(reports, seed=0, resamples=200)
    (pool,) = found["pooled"]
    assert pool["runs"] == ["test", "seed1"] and pool["difference"]["mean"] == pytest.approx(0.25)
    assert found["settings"] == {
        "training.learning_rate": ["0.0002", "0.0002", "0.0001"],
        "training.seed": ["0", "1", "2"],
    }
    html, text = runs_page(found), runs_markdown(found)
    for shown in ("+25.0", "pooled: 2 seeds", "training.learning_rate"):
        assert shown in html, shown
    assert "failed: model" in html and "same questions" not in html
    assert "| test | 80 of 200 | 130 of 200 | +25.0 |" in text
    assert "script" not in Page(html).tags


def test_the_pooled_sentence_and_floor(report):
    """Two seeds of equal results; passes that differ before and after in known shares."""
    for made, after in ((report, 0.02), (again := changed(report, "seed1", seed=1), 0.06)):
        made["paired"]["measured"]["noise"] = {
            "difference": 0.01,
            "before": {"pair_rate": 0.01, "pair_rate_at_most": 0.09},
            "after": {"pair_rate": after, "pair_rate_at_most": 0.08},
        }
    (pool,) = compare_runs([report, again], seed=0, resamples=500)["pooled"]
    expected = 1.959964 * np.sqrt((0.01 + 0.04 / 2) / 2 / 200)
    assert pool["floor"] == pytest.approx(expected)
    most = 1.959964 * np.sqrt((0.09 + 0.08 / 2) / 2 / 200)
    assert pool["floor_at_most"] == pytest.approx(most)
    assert (
        f"by ±{100 * expected:.1f} points in 95 % of cases (at most ±{100 * most:.1f} by"
        in (pool["noise"])
    )
    assert pool["noise"].endswith("the difference exceeds it.")
    assert pool["sentence"].startswith(
        "Over 2 training seeds (test, seed1) the model answers on average 130.0 of 200 held-out "
        "questions, 80.0 before: +25.0 points ["
    )
    # Equal seeds: as many degrees of freedom as one run has.
    assert pool["sentence"].endswith(
        "(95 % interval over questions and seeds, 199 degrees of freedom), "
        f"p = {pool['difference']['p']:.2g}."
    )
    assert pool["difference"]["p"] < 1e-9
    html, text = (
        make(compare_runs([report, again], seed=0, resamples=500))
        for make in (runs_page, runs_markdown)
    )
    assert "no difference" not in html and f"±{100 * expected:.1f}" in html
    assert "Over 2 training seeds (test, seed1)" in text
    for shown in (html, text):
        assert shown.count("crossed random effects of questions and seeds") == 1
    del report["paired"]["measured"]["noise"]
    (pool,) = compare_runs([report, again], seed=0, resamples=100)["pooled"]
    assert pool["floor"] is None and "not measured in every run" in pool["noise"]


def test_seeds_that_disagree_claim_nothing(report):
    worse = changed(report, "seed1", seed=1)
    details = worse["paired"]["details"]
    details["gained"], details["lost"] = details["lost"], details["gained"]
    (pool,) = compare_runs([report, worse], seed=0, resamples=500)["pooled"]
    assert pool["sentence"].endswith("p = 1.") and pool["difference"]["p"] == 1
    assert "no difference that 2 seeds and this many questions can show, 0.0" in pool["sentence"]


def test_a_second_run_of_a_seed_is_not_another_seed(report):
    runs = [report, changed(report, "again"), changed(report, "seed1", seed=1)]
    (pool,) = compare_runs(runs, seed=0, resamples=50)["pooled"]
    assert pool["runs"] == ["test", "seed1"] and pool["seeds"] == 2
    assert compare_runs(runs[:2], seed=0, resamples=50)["pooled"] == []


def test_what_changes_no_result_may_differ(report):
    other = changed(report, "seed1", seed=1, keep_checkpoints=9)
    other["config"]["report"] = other["config"]["report"] | {"heldout_curve": True}
    (pool,) = compare_runs([report, other], seed=0, resamples=50)["pooled"]
    assert pool["runs"] == ["test", "seed1"]


def test_a_single_question_is_not_pooled(report):
    runs = [changed(report, "seed0"), changed(report, "seed1", seed=1)]
    for run in runs:
        run["paired"]["measured"]["questions"] = 1
    assert compare_runs(runs, seed=0, resamples=50)["pooled"] == []


def test_other_questions_are_said_and_not_pooled(report):
    other = changed(report, "other", seed=1)
    other["paired"]["measured_on"]["questions_sha256"] = "x"
    found = compare_runs([report, other], seed=0, resamples=50)
    assert found["pooled"] == []
    assert "did not all ask the same questions" in runs_page(found)


def test_hostile_names_stay_text(report):
    found = compare_runs([report, changed(report, HOSTILE, seed=1)], seed=0, resamples=50)
    page = Page(runs_page(found))
    assert not {"script", "img"} & set(page.tags)
    assert "<script" not in runs_markdown(found)


def test_too_few_runs_and_other_formats(report):
    with pytest.raises(DataError, match="found the runs test, expected two or more"):
        compare_runs([report], seed=0, resamples=9)
    with pytest.raises(DataError, match="found the runs test, test"):
        compare_runs([report, report], seed=0, resamples=9)
    with pytest.raises(DataError, match="another format"):
        compare_runs([report, {"format": 0}], seed=0, resamples=9)
