"""Only what is stale runs again: one change each, and the exact set of rules that it calls for."""

import pytest

AFTER_TRAINING = {"evaluate", "compare", "report"}
FROM_TRAINING = {"grpo", *AFTER_TRAINING}


def test_a_finished_run_has_nothing_to_do(finished):
    assert finished.stale() == set()
    assert "Nothing to be done" in finished.run()


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"training": {"learning_rate": 1e-4}}, FROM_TRAINING),
        ({"search": {"topk": 2}}, {"gate_logprobs", *FROM_TRAINING}),
        ({"evaluation": {"questions": 18}}, AFTER_TRAINING),
        ({"recall": {"queries": 30}}, {"gate_recall", *FROM_TRAINING}),
        ({"report": {"resamples": 300}}, {"compare", "report"}),
        ({"retrieval": {"start_timeout_s": 99}}, {"report"}),
        ({"search": {"timeout_s": 77}}, {"report"}),
        ({"training": {"keep_checkpoints": 1}}, {"report"}),
        (
            {"embedding": {"max_length": 64}},
            {"embed", "index", "gate_recall", *FROM_TRAINING},
        ),
        ({"index": {"ef_search": 64}}, {"index", "gate_recall", *FROM_TRAINING}),
        (
            {"renderer": {"current_date": "2026-08-15"}},
            {"gate_renderer", "gate_logprobs", "gate_model", *FROM_TRAINING},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "runs",
)
def test_a_setting_runs_its_stage_and_what_follows(workflow, sections, expected):
    workflow.configure(**sections)
    assert workflow.stale() == expected | {"report"}


def test_a_code_edit_runs_what_imports_it(workflow):
    workflow.edit(
        "glimmer/renderer/muse_glimmer.py",
        "class MuseGlimmerRenderer",
        "_X = 1\n\n\nclass MuseGlimmerRenderer",
    )
    assert workflow.stale() == {
        "gate_renderer",
        "gate_logprobs",
        "gate_model",
        *FROM_TRAINING,
    }


def test_a_comment_runs_nothing(workflow):
    for name in (
        "glimmer/renderer/muse_glimmer.py",
        "glimmer/training/local/engine.py",
        "glimmer/retrieval/embed.py",
        "workflow_scripts/train.py",
        "rules/training.smk",
    ):
        path = workflow.folder / name
        path.write_text(path.read_text() + "\n# a remark\n")
    assert workflow.stale() == set()


def test_a_deleted_report_runs_only_the_report(workflow):
    (workflow.folder / "results/t/report.html").unlink()
    assert workflow.stale() == {"report"}


def test_a_changed_corpus_byte_in_the_source_embeds_again(workflow):
    path = workflow.folder / "world/corpus.jsonl"
    path.write_text(path.read_text().replace("film", "play", 1))
    assert {"corpus", "embed", "index", "grpo"} <= workflow.stale()
