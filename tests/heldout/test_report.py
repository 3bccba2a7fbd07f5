"""The report: its sentence, its figures, and that data cannot do anything on the page."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from glimmer.errors import DataError
from glimmer.files import read_json
from glimmer.heldout.report_figures import (
    Plot,
    curves,
    entropy_against_length,
    nice_ticks,
    recall_sweep,
)
from glimmer.heldout.report_gates import gate_figure
from glimmer.heldout.report_outcome import flow
from glimmer.heldout.report_points import heldout_points
from glimmer.heldout.report_reproduce import difference
from glimmer.heldout.report_tables import (
    benchmark_rows,
    benchmarks,
    clock,
    number,
    points,
    settings,
    show,
)
from glimmer.heldout.report_transcripts import MAX_OTHERS, fitting, page_bytes, transcripts
from glimmer.heldout.report_words import gain_sentence, result_sentence
from glimmer.provenance.code import code_parts
from tests.heldout.pages import COMMIT, CONFIG, CURVE, HOSTILE, Case, Page

PLENTY = 10**9  # bytes


def paired(before, after, questions, mean, ci, p):
    return {
        "measured": {
            "questions": questions,
            "before": {"correct": before},
            "after": {"correct": after},
            "difference": {"mean": mean, "ci95": ci},
            "mcnemar_p": p,
        }
    }


def test_sentence_of_a_gain():
    sentence = result_sentence(
        paired(199, 335, 400, 0.34, [0.29, 0.39], 1.23e-30), CONFIG, [{"step": 1}, {"step": 50}]
    )
    assert sentence == (
        "After 50 GRPO steps the model answers 335 of 400 held-out questions, 199 before: +34.0 "
        "points [+29.0, +39.0] (95 % paired bootstrap), exact McNemar p = 1.2e-30."
    )


def test_sentence_without_a_difference():
    sentence = result_sentence(
        paired(199, 201, 400, 0.005, [-0.02, 0.03], 0.8), CONFIG, [{"step": 50}]
    )
    assert "201 of 400 held-out questions, 199 before: no difference that this many" in sentence
    assert "+0.5 points [−2.0, +3.0]" in sentence and "p = 0.8)" in sentence


@pytest.mark.parametrize(("ci", "p"), [([0.001, 0.06], 0.06), ([-0.001, 0.06], 0.04)])
def test_sentence_claims_nothing_if_interval_and_test_disagree(ci, p):
    sentence = result_sentence(paired(199, 211, 400, 0.03, ci, p), CONFIG, [{"step": 50}])
    assert "no difference that this many questions can show" in sentence


def test_sentence_of_a_loss():
    sentence = result_sentence(
        paired(199, 150, 400, -0.1225, [-0.16, -0.08], 1e-5), CONFIG, [{"step": 1}]
    )
    assert sentence.startswith("After 1 GRPO step the model answers fewer questions than before")
    assert "−12.2 points [−16.0, −8.0]" in sentence


def test_sentence_of_a_control_and_without_steps():
    config = {**CONFIG, "training": {"control": "shuffled_rewards"}}
    sentence = result_sentence(paired(1, 1, 4, 0.0, [0.0, 0.0], 1.0), config, [])
    assert sentence.startswith("This is a control run: rewards were shuffled")
    assert "no step is recorded" in sentence and "(0.0 points [0.0, 0.0]" in sentence
    tiny = result_sentence(paired(1, 3, 4, 0.5, [0.1, 0.9], 0.0), CONFIG, [{"step": 2}])
    assert "p < 1e-300" in tiny


def test_page_has_every_section_in_order_and_asks_for_nothing(case):
    html = case.write()
    titles = re.findall(r"<h2 id[^>]*>([^<]+)</h2>", html)
    assert titles == [
        "Before and after",
        "Gates",
        "Training",
        "Transcripts",
        "Settings",
        "Time and memory",
        "Provenance",
        "Reproduce and cite",
    ]
    page = Page(html)
    links = [v for _, k, v in page.attributes if k in ("src", "href", "srcset", "action", "data")]
    assert links and all(link.startswith("#") for link in links)
    assert not re.search(r"https?://|@import|url\(", html)
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not any(key == "style" or key.startswith("on") for _, key, _ in page.attributes)
    policy = next(v for _, k, v in page.attributes if k == "content" and "default-src" in v)
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_page_shows_the_figures(case):
    html = case.write()
    text = " ".join(" ".join(Page(html).text).split())
    assert "answers 130 of 200 held-out questions, 80 before: +25.0 points" in text
    for shown in ("60 gained", "10 lost", "70 both right", "0.9961", "1,234", "0.001235"):
        assert shown in text, shown
    assert "All 60 questions gained and all 10 lost are here, and 130 of the 130 others" in text
    assert "grpo 3,661.5 1:01:02 2,048" in text and "all rules 3,663.8 1:01:04 2,048" in text
    assert COMMIT in text and "8.0 GiB" in text and "working tree clean" in text
    assert "make run" in text
    first = text[: text.index("Contents") if "Contents" in text else text.index("Before and after")]
    assert "Noise floor: ±" in first and "the difference is" in first
    assert "1 of 2 gates failed" in first and "failed model parity" in first
    assert "Outcomes before (left) and after (right). gained 60 lost 10 other 130" in first
    assert "99.6 % of what exact search finds, at least 98.0 %" in first
    assert "±" in text[text.index("Exact match by type") :]
    assert "near, by word n-grams 2 1" in text and "2 of 2 matches" in text
    assert text.index("ngram 0.90 yes") < text.index("ngram 0.90 no In which city was film 0 shot")
    assert "recall against exact search" in text and "efSearch 128: 0.9961" in html
    assert "seconds until a question was answered, median" in text
    assert "entropy, nats a token" in text and "@misc{glimmer-test" in text
    assert "right if found" in text and "p, Holm" in text
    assert "a true difference of" in text and "Duffy 1984" in text


def test_same_inputs_same_bytes(case):
    assert case.write("a.html") == case.write("b.html")


def test_hostile_text_stays_text(case):
    plain = Page(case.write())
    case.config["report"]["title"] = HOSTILE
    case.config["checkpoint"]["source"] = HOSTILE
    case.provenance["machine"]["cpu"] = HOSTILE
    case.gates["recall"]["measured_on"][HOSTILE] = HOSTILE
    case.gates["recall"]["details"] = [{HOSTILE: HOSTILE}]
    for row in (case.before[0], case.after[0]):
        row["question"] = row["type"] = row["prediction"] = HOSTILE
        row["golden_answers"] = [HOSTILE, "("]
        turn = row["turns"][-1]
        turn["content"] = turn["reasoning"] = HOSTILE
        turn["tool_calls"] = [{"name": HOSTILE, "arguments": HOSTILE, "status": HOSTILE}]
        turn["tool_results"] = [
            {
                "query": HOSTILE,
                "error": HOSTILE,
                "passages": [{"id": HOSTILE, "title": HOSTILE, "text": HOSTILE, "score": 1.0}],
            }
        ]
    html = case.write()
    page = Page(html)
    assert page.tags.count("script") == plain.tags.count("script") == 3
    assert "img" not in page.tags
    assert not any(key.startswith("on") for _, key, _ in page.attributes)
    shown = json.loads(page.scripts["data-transcripts"])
    assert "<" not in page.scripts["data-transcripts"]
    first = next((q for q in shown["questions"] if q["id"] == "q0000"), None)
    assert first is not None and first["question"] == HOSTILE
    assert page.scripts["code"] == plain.scripts["code"]


def test_half_a_surrogate_pair_does_not_stop_the_report(case):
    case.config["report"]["title"] = "half \ud83d pair"
    assert "half ? pair" in case.write()
    assert "half ? pair" in (case.folder / "report.md").read_text()
    assert "half ? pair" in (case.folder / "report.json").read_text()


@pytest.mark.parametrize("count", [0, 1])
def test_few_steps(case, count):
    case.metrics = case.metrics[:count]
    html = case.write()
    assert ("No training step was recorded" in html) == (count == 0)
    assert ("After 1 GRPO step the" in html) == (count == 1)


@pytest.mark.parametrize(
    ("measured", "threshold", "text"),
    [
        (
            {"recall": 0.5},
            {"min_recall": 0.98},
            "50.0 % of what exact search finds, at least 98.0 %",
        ),
        ({"cases": 1750, "differing": 2}, {"differing": 0}, "2 of 1,750 conversations differ"),
        (
            {"trainer_vs_sampler": 5.2e-6},
            {"max_logprob_diff": 1e-4},
            "trainer and sampler at most 5.2e-06 nats apart, allowed 0.0001",
        ),
        (
            {"max_delta": {"a": {"x": 0.0, "y": 0.25}, "b": {"x": 0.0}}},
            {"max_delta": 0.0},
            "trainer and generator at most 0.25 nats apart, allowed 0",
        ),
        (
            {
                "transformers_vs_torchtitan": 2.3e-5,
                "transformers_vs_engine": 1e-6,
                "logit_std": 4.0,
            },
            {"max_logit_diff": 1e-4},
            "logits at most 2.3e-05 apart, allowed 0.0001",
        ),
        ({"something": 1}, {"else": 2}, ""),
    ],
)
def test_a_gates_figure_in_words(measured, threshold, text):
    assert gate_figure({"measured": measured, "threshold": threshold}).replace("\xa0", " ") == text


def test_where_the_gain_is_from():
    """The reference run: most of what was gained had never been completed before."""
    outcomes = {
        "correct": {"correct": 33, "wrong": 7},
        "no_answer": {"correct": 45, "wrong": 20},
        "truncated": {"correct": 4},
        "wrong": {"correct": 10, "wrong": 81},
    }
    assert gain_sentence(outcomes) == (
        "Of the 59 questions gained, 49 had ended without an answer before training (no answer 45, "
        "truncated 4) and 10 with a wrong one. Of the 40 that were right before, 7 were lost."
    )
    assert gain_sentence({"wrong": {"wrong": 3}}) == (
        "No question was gained. Of the 0 that were right before, 0 were lost."
    )


def test_metrics_without_a_step_are_named(case):
    case.metrics[1] = {"reward": 1.0}
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        case.write()
    assert not (case.folder / "report.html").exists()


def test_curves_leave_gaps_and_unknown_metrics_out():
    html, data = curves(
        [
            {"step": 1, "reward": 1.0, "other": 1.0},
            {"step": 2, "reward": None},
            {"step": 3, "reward": float("nan"), "loss": -1.0},
        ]
    )
    assert data == {
        "steps": [1, 2, 3],
        "series": {"reward": [1.0, None, None], "loss": [None, None, -1.0]},
    }
    assert "NaN" not in html and "nan" not in html


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (0.0, 1.0), (-0.03, 0.02), (0.0, 3.1e-6), (0.0, 1599.0)]
)
def test_ticks_enclose_the_values(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low and ticks[-1] >= high and 2 <= len(ticks) <= 6


def test_without_repeated_passes_the_noise_is_said_to_be_unknown(case):
    case.repeats = {"before": [], "after": []}
    html = case.write()
    assert html.count("Noise floor: not measured") == 2 and "±" not in html
    assert "not measured" in (case.folder / "report.md").read_text()


def test_several_samples_are_shown(case):
    for row in case.before + case.after:
        other = {k: row[k] for k in ("outcome", "prediction", "scores", "turns")}
        row["samples"] = [other | {"scores": {"exact_match": 0, "f1": 0.0, "contains": 0}}]
    html = case.write()
    text = " ".join(" ".join(Page(html).text).split())
    assert "2 samples a question" in text and "pass@1 20.0 % 32.5 %" in text
    assert "pass@2 40.0 % 65.0 %" in text and "40.0 % 65.0 % +25.0" in text
    assert "pass@1 of 2 | 20.0 % | 32.5 % | +12.5" in (case.folder / "report.md").read_text()
    assert "pass@2 of 2 | 40.0 % | 65.0 %" in (case.folder / "report.md").read_text()


def test_without_benchmarks_and_with_odd_ones(case):
    shutil.rmtree(case.folder / "benchmarks")
    assert "No benchmark file was found" in case.write()
    (case.folder / "benchmarks").mkdir()
    (case.folder / "benchmarks/empty.tsv").write_text("")
    (case.folder / "benchmarks/odd.tsv").write_text("s\tmax_rss\nNA\tNA\n")
    assert "<td>–</td>" in benchmarks(benchmark_rows(case.folder / "benchmarks"))


def test_changed_settings_are_marked_and_reproduced(case):
    case.config["training"]["steps"] = 10
    case.config["run"] = "mine"
    case.provenance |= {"dirty": True, "changed": 3}
    html = case.write()
    assert '<th scope="row">training.steps</th><td>10</td><td>50</td>' in html
    assert "<mark>10</mark>" in html and "<mark>50</mark>" not in html
    assert "snakemake --configfile run.yaml" in html and "training:\n  steps: 10" in html
    assert "3 files differed from the commit" in html
    assert difference(CONFIG, CONFIG) == {}
    quoted = settings({"a": {"b": "5", "c": "text"}}, {"a": {"b": 5, "c": "text"}})
    assert "1 of 2 settings differ" in quoted and "<td>text</td>" in quoted
    assert "<td>&quot;5&quot;</td><td>5</td>" in quoted


def test_unknown_commit(case):
    case.provenance |= {"commit": None, "dirty": None, "changed": None, "lock": None}
    html = case.write()
    assert "The commit is unknown" in html and "git checkout" not in html


def test_transcripts_keep_all_changes_and_few_others(case):
    shown = transcripts(
        {r["id"]: r for r in case.before},
        {r["id"]: r for r in case.after},
    )
    assert shown["totals"] == {"gained": 60, "lost": 10, "both_right": 70, "both_wrong": 60}
    assert shown["shown"] == {"gained": 60, "lost": 10, "both_right": 30, "both_wrong": 30}
    assert sum(shown["shown"].values()) == len(shown["questions"]) == 70 + MAX_OTHERS
    assert "90001" not in json.dumps(shown) and "-0.123456" not in json.dumps(shown)
    few = Case(case.folder / "few", questions=100, gained=0, lost=0, both=95)
    shown = transcripts({r["id"]: r for r in few.before}, {r["id"]: r for r in few.after})
    assert shown["shown"] == {"gained": 0, "lost": 0, "both_right": 55, "both_wrong": 5}


def test_transcripts_fit_into_their_budget(case):
    sides = [{r["id"]: r for r in rows} for rows in (case.before, case.after)]
    whole = fitting(*sides, budget=PLENTY)
    assert whole["shown"] == whole["totals"]
    size = page_bytes(whole)
    less = fitting(*sides, budget=int(0.9 * size))
    assert page_bytes(less) <= 0.9 * size
    assert less["shown"]["gained"] == 60 and 30 < less["shown"]["both_right"] < 70
    least = page_bytes(transcripts(*sides))
    fewer = fitting(*sides, budget=least - 1)
    assert page_bytes(fewer) < least
    assert 0 < fewer["shown"]["gained"] < 60 and fewer["shown"]["both_right"] == 30
    assert fitting(*sides, budget=1)["questions"] == []


def test_a_page_stays_below_ten_megabytes_whatever_it_holds(case):
    """All questions changed, with more text than a page may have, markup that is written in six
    bytes a sign, and the curves of a long training."""
    case.before = [row for row in case.before if not row["scores"]["exact_match"]][:90]
    ids = {row["id"] for row in case.before}
    case.after = [row for row in case.after if row["id"] in ids]
    for k, row in enumerate(case.after):
        row["outcome"] = "correct"
        row["scores"] = {"exact_match": 1, "f1": 1.0, "contains": 1}
        row["turns"][0]["reasoning"] = f"{k}<" * 20_000
    case.metrics = [case.metrics[k % 50] | {"step": k + 1} for k in range(3000)]
    case.repeats = {"before": [], "after": []}
    html = case.write()
    assert len(html.encode()) < 10_000_000
    text = " ".join(" ".join(Page(html).text).split())
    found = re.search(r"Of 90 questions gained (\d+) are here, of 0 lost 0, and 0 of the 0", text)
    assert found and 10 < int(found[1]) < 90


def test_log_probabilities_go_first_to_what_changed(case):
    sides = [{r["id"]: r for r in rows} for rows in (case.before, case.after)]
    piece = str
    whole = fitting(*sides, budget=PLENTY, piece=piece)
    assert len(whole["pieces"]) == len(set(whole["pieces"])) == 10
    turn = whole["questions"][1]["before"]["turns"][0]
    assert len(turn["lp"]) == 2 * turn["tokens"]
    assert whole["pieces"][turn["lp"][0]] == "90001" and turn["lp"][1] == -12
    without = len(json.dumps(fitting(*sides, budget=PLENTY), separators=(",", ":")))
    less = fitting(*sides, budget=without + 20_000, piece=piece)
    kinds = {q["kind"] for q in less["questions"] if "lp" in q["after"]["turns"][0]}
    assert kinds == {"gained", "lost"} and less["shown"] == whole["shown"]
    assert "pieces" not in fitting(*sides, budget=without + 100, piece=piece)
    case.before[1]["turns"][0]["logprobs"].pop()  # of another length: left out, not shifted
    broken = fitting(*sides, budget=PLENTY, piece=piece)["questions"][1]["before"]["turns"][0]
    assert "lp" not in broken


def test_heldout_points_stand_at_their_rates():
    """Of a figure whose axes go from 0 to 1 and from step 0 to 4."""
    rows = [{"step": step, "exact_match": rate} for step, rate in ((1, 0.3), (2, None), (4, 1.0))]
    measured = {
        "before": {"exact_match": 0.25, "ci95": [0.0, 0.5]},
        "after": {"exact_match": 0.5, "ci95": [0.25, 0.75]},
    }
    figure = heldout_points(rows, measured).replace("\xa0", " ")
    left, top = Plot.left, Plot.top
    across, down = 360 - left - Plot.right, 232 - top - Plot.bottom
    found = re.findall(r'class="held (\w+)" cx="([\d.]+)" cy="([\d.]+)"', figure)
    assert found == [
        ("before", f"{left:g}", f"{top + down * 0.75:g}"),
        ("after", f"{left + across:g}", f"{top + down * 0.5:g}"),
    ]
    assert f'class="whisker" d="M{left} {top + down:g}V{top + down * 0.5:g}"' in figure
    first = f"M{left + across / 4:g} {top + down * 0.7:g}"
    assert f'd="{first}L{left + across:g} {top}"' in figure  # steps 1 and 4
    assert "after, step 4: 50.0 %, interval 25.0 % to 75.0 %" in figure
    assert heldout_points([], measured) == ""
    assert "nan" not in heldout_points([{"step": 3}], measured)


def test_steps_on_the_way_are_in_figure_table_and_json(case):
    case.curve = CURVE
    page = case.write()
    assert page.count('class="held ') == 3 and "after, step 20: 50.0" in page
    assert "Held-out questions by step" in page and "its result needs others" in page
    row = "| 20 | 100 | 50.0 % | 25.0–75.0 % | +10.0 | "
    assert row in (text := (case.folder / "report.md").read_text())
    assert (
        "| 0 | 80 | 40.0 % | 25.0–75.0 % | – |" in text and "| 30 | 10 | 0.0022 | 0.0044 |" in text
    )
    assert read_json(case.folder / "report.json")["curve"] == case.curve


def test_plots_of_nothing_are_nothing():
    assert entropy_against_length([{"step": 1, "entropy": 1.0}]) == ""
    verdict = {"measured": {"recall_by_ef_search": {"16": 0.9}}, "threshold": {}}
    assert recall_sweep(verdict) == "" and recall_sweep({"measured": {}, "threshold": {}}) == ""
    flat = [{"step": k, "entropy": 0.0, "response_tokens": 30} for k in (1, 2)]
    assert entropy_against_length(flat).count("<circle") == 2
    verdict["measured"]["recall_by_ef_search"]["32"] = 0.9
    assert "nan" not in recall_sweep(verdict)


def test_raw_completion_only_where_it_says_more(case):
    row = case.before[1]
    row["turns"][0]["tool_calls"][0]["status"] = "invalid_json"
    shown = transcripts({"a": row}, {"a": row})["questions"][0]["before"]["turns"]
    assert shown[0]["raw"] == "<raw/>" and "raw" not in shown[1]


def test_flow_counts_every_question():
    html = flow({"wrong": {"correct": 3, "wrong": 1}, "correct": {"truncated": 2}})
    assert html.count("<path") == 3 and "wrong to correct 3" in html and "correct 2" in html
    assert flow({}) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567, "1,234,567"), (0.123456, "0.1235"), (1e-6, "1e-06"), (3.0, "3"), (True, "yes"),
     (None, "none"), (12345.6, "12,345.6"), (float("inf"), "inf")],
)  # fmt: skip
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_style_makes_only_the_report_stale():
    assert "glimmer/heldout/page/style.css" in code_parts("glimmer.heldout.report")
    assert "glimmer/heldout/page/viewer.js" in code_parts("glimmer.heldout.report")
    assert not [p for p in code_parts("glimmer.heldout.evaluation") if "heldout/page" in p]


def test_small_helpers():
    assert points(-0.0001) == "0.0" and points(-0.01) == "−1.0" and points(0.5) == "+50.0"
    assert clock(3599.6) == "1:00:00"
    assert ">abababababab…<" in show("ab" * 32)
