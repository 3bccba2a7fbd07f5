"""What a finished run says of its result, and several runs on one page, through the real DAG."""

import base64
import json
import re
import shutil
from collections import Counter

from pyarrow import Table, parquet

from glimmer.assets import read_questions
from glimmer.files import read_json, read_jsonl, sha256_file, write_json
from glimmer.heldout.timings import read_timings

RUN = "results/t"


def ids(path):
    return [row["id"] for _, row in read_jsonl(path)]


def test_a_finished_run_has_everything_a_reviewer_asks_for(finished):
    folder = finished.folder / RUN
    chosen = [q.id for q in read_questions(folder / "heldout/questions.jsonl")]
    assert len(chosen) == 12
    for when in ("before", "after"):  # fault 26: both evaluations asked the stored list
        assert ids(folder / f"heldout/{when}.jsonl") == chosen
        passes = [row for _, row in read_jsonl(folder / f"heldout/{when}.repeats.jsonl")]
        assert {row["pass"] for row in passes} == {1, 2} and len(passes) == 8
        timed = read_timings(folder / f"heldout/{when}.timings.jsonl")
        assert list(timed) == chosen
        assert 0 < sum(t["search_seconds"] for t in timed.values())
        assert 0 < min(t["seconds"] for t in timed.values())
    report = read_json(folder / "report.json")
    measured = report["paired"]["measured"]
    assert measured["noise"]["before"]["passes"] == 3
    assert measured["leakage"]["counts"]["exact"] == 0 and measured["leakage"]["train"] > 100
    assert set(report["gates"]) == {"recall", "renderer_parity", "logprob_parity", "model_parity"}
    assert {"grpo", "evaluate-before"} <= {row["rule"] for row in report["benchmarks"]}
    assert report["timings"]["after"]["questions"] == 12
    page, text = ((folder / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert report["noise"].split(".")[0] in text
    shown = json.loads(page.split('id="data-transcripts">')[1].split("</script>")[0])
    assert shown["pieces"] and "lp" in shown["questions"][0]["after"]["turns"][0]


def test_an_id_list_decides_what_is_asked(workflow):
    wanted = ids(workflow.folder / RUN / "heldout/questions.jsonl")[3:5]
    (workflow.folder / "ids.txt").write_text("\n".join(wanted) + "\n")
    workflow.configure(evaluation={"ids": "ids.txt", "questions": None})
    target = f"{RUN}/heldout/questions.jsonl"
    workflow.run(target)
    assert ids(workflow.folder / target) == wanted
    assert "evaluate" in workflow.stale()
    (workflow.folder / "ids.txt").write_text(f"{wanted[0]}\nnobody\n")
    text = workflow.run(target, fails=True)
    assert "evaluation.ids: 1 of 2 ids are not in" in text and "'nobody'" in text


def test_search_r1s_seven_sets_by_config(workflow):
    """So many of each set, of Parquet files made like Search-R1's; then two of them by name."""
    sets = ["nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"]
    folder = workflow.folder / "sets"
    folder.mkdir()
    for name, first in (("train", 500), ("test", 0)):
        rows = [
            {
                "id": f"{name}_{i}",
                "question": f"What is fact {first + i} of {dataset}?",
                "golden_answers": [f"{dataset} {i}"],
                "data_source": dataset,
                "reward_model": {"ground_truth": {"target": [f"{dataset} {i}"]}, "style": "rule"},
            }
            for dataset in sets
            for i in range(9)
        ]
        parquet.write_table(Table.from_pylist(rows), folder / f"{name}.parquet")
    files = {"train": "train.parquet", "heldout": "test.parquet", "overlap": "keep"}
    workflow.configure(
        questions={"source": "sets", **files}, evaluation={"questions": 4, "datasets": None}
    )
    target = f"{RUN}/heldout/questions.jsonl"
    for named in (None, ["musique", "popqa"]):
        workflow.configure(evaluation={"datasets": named})
        workflow.run(target)
        chosen = read_questions(workflow.folder / target)
        assert Counter(q.dataset for q in chosen) == dict.fromkeys(named or sets, 4)
        assert all(q.id == f"{q.dataset}/test_{q.golden_answers[0].split()[-1]}" for q in chosen)


def test_runs_side_by_side(workflow):
    text = workflow.run("compare_runs", fails=True)
    assert "found the runs t, expected two or more different ones" in text
    shutil.copytree(workflow.folder / RUN, workflow.folder / "results/u")
    other = read_json(workflow.folder / "results/u/report.json")
    other["run"] = other["config"]["run"] = "u"
    other["config"]["training"]["seed"] = 1
    write_json(workflow.folder / "results/u/report.json", other)
    workflow.run("compare_runs")
    found = read_json(workflow.folder / "results/compare_runs.json")
    assert [run["run"] for run in found["runs"]] == ["t", "u"]
    assert found["pooled"][0]["runs"] == ["t", "u"]
    assert (workflow.folder / "results/compare_runs.html").stat().st_size > 10_000
    assert "## Seeds pooled" in (workflow.folder / "results/compare_runs.md").read_text()
    assert "Nothing to be done" in workflow.run("compare_runs")
    workflow.configure(compare_runs={"runs": ["t", "gone"]})
    assert "found no results/gone/report.json" in workflow.run("compare_runs", fails=True)


def test_snakemakes_own_report_holds_ours(workflow):
    """`snakemake --report`: the three files as they are, each with its caption."""
    workflow.run("--report", "all.html")
    text = (workflow.folder / "all.html").read_text()
    for caption in (
        "paired, with every gate, curve and transcript",
        "as JSON, for machines: every figure, verdict, setting and hash",
        "as Markdown: sentence, noise floor, gates, tables, commands",
    ):
        assert caption in text, caption
    held = re.findall(r"data:[\w/]+;charset=utf8;filename=([\w.]+);base64,([\w+/=]+)", text)
    files = {name: base64.b64decode(content) for name, content in held}
    for name in ("report.html", "report.json", "report.md"):
        assert files[name] == (workflow.folder / RUN / name).read_bytes(), name


def test_held_out_questions_on_the_way(workflow):
    """Asked for, each kept checkpoint is evaluated and nothing else is done again."""
    workflow.configure(report={"heldout_curve": True})
    assert workflow.stale() == {"step_checkpoint", "evaluate", "heldout_curve", "report"}
    workflow.run()
    run = workflow.folder / RUN
    points = read_json(run / "heldout/curve.json")["points"]
    assert [point["step"] for point in points] == [0, 1, 2]
    measured = read_json(run / "heldout/paired.json")["measured"]
    assert points[2]["correct"] == measured["after"]["correct"]
    assert points[2]["mcnemar_p"] == measured["mcnemar_p"]
    assert ids(run / "heldout/step-000001.jsonl") == ids(run / "heldout/before.jsonl")
    # Step 1's weights are neither those before nor those after.
    folders = ("assets/checkpoint", "training/steps/step-000001", "training/final")
    weights = [sha256_file(run / name / "model.safetensors") for name in folders]
    assert len(set(weights)) == 3
    assert read_json(run / "report.json")["curve"]["points"] == points
    assert "Held-out questions by step" in (run / "report.html").read_text()
    assert "Nothing to be done" in workflow.run()
    # Another learning rate: training, what comes of it, and each of its checkpoints.
    workflow.configure(training={"learning_rate": 1e-4})
    again = {"grpo", "step_checkpoint", "evaluate", "compare", "heldout_curve", "report"}
    assert workflow.stale() == again
    workflow.configure(training={"learning_rate": 2e-4}, report={"heldout_curve": False})
    assert workflow.stale() == {"report"}  # as before, and less to show
