"""The report as JSON and Markdown."""

import json

from glimmer.heldout import compare
from glimmer.heldout.report_machine import report_json, report_markdown
from tests.heldout.pages import COMMIT, HOSTILE, Case


def machine(case):
    case.write()
    paired = compare(
        case.folder / "before.jsonl", case.folder / "after.jsonl", seed=0, resamples=300
    )
    return report_json(paired, case.config, case.metrics, case.gates, case.provenance)


def test_json_and_markdown_say_the_same(tmp_path):
    report = machine(Case(tmp_path / "run"))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["sentence"].startswith("After 50 GRPO steps")
    text = report_markdown(report)
    assert "answers 130 of 200 held-out questions, 80 before: +25.0 points" in text
    assert "| right before | 70 | 10 |\n| wrong before | 60 | 60 |" in text
    assert "| recall | passed |\n| model\\_parity | failed |" in text
    assert "| retrieval ceiling |" in text and COMMIT in text and text.endswith(".\n")
    for line in text.splitlines():
        assert line.count("|") in (0, 3, 4, 5, 7)


def test_hostile_text_stays_text(tmp_path):
    case = Case(tmp_path / "run")
    case.config["report"]["title"] = HOSTILE
    for row in (case.before[0], case.after[0]):
        row["type"] = HOSTILE + "|\n# x"
    text = report_markdown(machine(case))
    assert "<script" not in text and "\n# x" not in text and "&lt;/script\\>" in text


def test_without_steps_or_gates(tmp_path):
    case = Case(tmp_path / "run", questions=20, gained=5, lost=1, both=4)
    case.metrics, case.gates = [], {}
    report = machine(case)
    assert report["training"] is None
    assert "None was measured." in report_markdown(report)
