"""The report as JSON and Markdown."""

import json

from glimmer.files import read_json
from glimmer.heldout.report_markdown import report_markdown
from tests.heldout.pages import COMMIT, HOSTILE, Case


def machine(case):
    case.write()
    return read_json(case.folder / "report.json")


WHEN = ("before", "after")


def passes(report):
    return report["paired"]["measured"]["noise"]["before"]["correct"]


def test_json_and_markdown_say_the_same(tmp_path):
    case = Case(tmp_path / "run")
    case.config["training"]["steps"] = 10
    report = machine(case)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["sentence"].startswith("After 50 GRPO steps")
    text = report_markdown(report)
    assert "answers 130 of 200 held-out questions, 80 before: +25.0 points" in text
    assert "| right before | 70 | 10 |\n| wrong before | 60 | 60 |" in text
    both = "by the exact McNemar test, which decides"
    assert both in text and "mid-p, nearer to 5 %: p = " in text
    assert both in (tmp_path / "run/report.html").read_text()
    assert "| recall | passed | 99.6 % of what exact search finds" in text
    assert "| model\\_parity | failed |" in text
    assert "| retrieval ceiling |" in text and COMMIT in text and text.endswith("|\n")
    assert text == (tmp_path / "run/report.md").read_text()
    assert "±" in report["noise"] and report["noise"] in text
    assert "| ngram | 2 | 1 | " in text and " of 198 |" in text
    shown = {name: f"{100 * report['paired']['measured'][name]['f1']:.1f} %" for name in WHEN}
    assert f"| F1 | {shown['before']} | {shown['after']} | +" in text
    assert "| exact match | 40.0 % | 65.0 % | +25.0" in text
    assert "| reward, mean of rollouts | 0.41 | 0.9 |" in text
    assert "| wrong | " in text and "p, Holm" in text and "Duffy 1984" in text
    assert "| 90 % within |" in text and "| torch | 2.9.0 |" in text and "cdcd" in text
    assert f"| before | 3 | 40 | {', '.join(map(str, passes(report)))} |" in text
    assert "| training.steps | 10 |" in text
    assert report["benchmarks"][0] == {"rule": "grpo", "seconds": 3661.5, "max_rss_mb": 2048.4}
    assert report["reproduce"]["commands"] == [
        f"git checkout {COMMIT}",
        "make .venv/installed",
        ".venv/bin/snakemake --configfile run.yaml",
    ]
    assert COMMIT in report["cite"] and report["cite"].startswith("@misc{glimmer-test,")
    assert f"    git checkout {COMMIT}" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") - line.count("\\|") in (3, 4, 5, 6, 7, 8)


def test_hostile_text_stays_text(tmp_path):
    case = Case(tmp_path / "run")
    case.config["report"]["title"] = HOSTILE
    for row in (case.before[0], case.after[0]):
        row["type"] = HOSTILE + "|\n# x"
    text = report_markdown(machine(case))
    # What is indented is code, in which nothing is markup.
    outside = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert "<script" not in outside and "\n# x" not in text and "&lt;/script\\>" in outside


def test_without_steps_or_gates(tmp_path):
    case = Case(tmp_path / "run", questions=20, gained=5, lost=1, both=4)
    case.metrics, case.gates = [], {}
    report = machine(case)
    assert report["training"] is None
    assert "None was measured." in report_markdown(report)
