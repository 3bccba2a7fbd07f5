"""The report: its sentence, its figures, and that data cannot do anything on the page."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from glimmer.errors import DataError
from glimmer.files import write_json, write_jsonl
from glimmer.heldout import compare, write_report
from glimmer.heldout.report import difference, result_sentence
from glimmer.heldout.report_figures import curves, flow, nice_ticks
from glimmer.heldout.report_tables import benchmarks, clock, number, points, settings, show
from glimmer.heldout.report_transcripts import MAX_OTHERS, transcripts
from glimmer.provenance.code import code_parts

HOSTILE = (
    "</script><script>document.title='pwned'</script><!-- "
    "<img src=x onerror=\"document.title='pwned'\"> 'single' \"double\" & 🦊 مرحبا\u202e\u2028"
)
CONFIG = {
    "run": "test",
    "results": "results",
    "threads": 2,
    "checkpoint": {"source": "bundled:tiny_glimmer", "revision": None, "sha256": {}},
    "training": {"steps": 50, "learning_rate": 2.0e-4, "control": "none", "seed": 0},
    "evaluation": {"questions": 400, "seed": 0},
    "report": {"title": "Search-R1 on Muse Glimmer", "resamples": 300, "seed": 0},
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROVENANCE = {
    "glimmer": "0.1.0",
    "commit": COMMIT,
    "dirty": False,
    "changed": 0,
    "lock": {"name": "workflow.txt", "sha256": "ab" * 32},
    "python": "3.11.2",
    "packages": {"torch": "2.9.0", "vllm": None},
    "seeds": {"evaluation": 0, "report": 0, "training": 0},
    "files": {"corpus": {"sha256": "cd" * 32, "bytes": 123456}},
    "machine": {
        "platform": "Linux 6.1 x86_64",
        "libc": "glibc 2.36",
        "cpu": "Some CPU",
        "cores": 2,
        "memory_bytes": 8 * 2**30,
        "gpus": [],
    },
}


def passage(rng, answer):
    k = rng.randrange(50)
    text = f"The Glass Crown is film number {k}. It was filmed in {answer} and elsewhere. " * 3
    return {"id": f"p{k}{answer}", "title": f"Film {k}", "text": text, "score": rng.random()}


def record(i, right, rng, *, outcome=None, searched=True):
    answer = f"Staidrus{i % 7}"
    outcome = outcome or ("correct" if right else "wrong")
    said = answer if right else "Mokruth"
    turns = []
    if searched:
        turns.append(
            {
                "prompt_ids": [1, 2],
                "completion_ids": list(range(90001, 90010)),
                "logprobs": [-0.123456] * 9,
                "text": "<raw/>",
                "reasoning": "I should look this up.",
                "content": None,
                "tool_calls": [
                    {"name": "search", "arguments": {"query": f"film {i}"}, "status": "ok"}
                ],
                "tool_results": [
                    {
                        "query": f"film {i}",
                        "passages": [passage(rng, answer) for _ in range(3)],
                        "error": None,
                    }
                ],
            }
        )
    turns.append(
        {
            "prompt_ids": [3],
            "completion_ids": [90020] * 4,
            "logprobs": [-0.123456] * 4,
            "text": said,
            "reasoning": None,
            "content": said,
            "tool_calls": [],
            "tool_results": [],
        }
    )
    return {
        "id": f"q{i:04d}",
        "question": f"In which city was film {i} shot?",
        "golden_answers": [answer],
        "type": ("film.location", "novel.author", "person.birthplace", None)[i % 4],
        "outcome": outcome,
        "prediction": None if outcome in ("no_answer", "truncated") else said,
        "scores": {"exact_match": int(right), "f1": float(right), "contains": int(right)},
        "searches": int(searched),
        "failed_searches": 0,
        "status": "completed",
        "turns": turns,
        "hashes": {"question": f"h{i}", "settings": "s", "prompt": "p"},
    }


class Case:
    """The inputs of a report in a folder; tests change them before `write`."""

    def __init__(self, folder: Path, *, questions=200, gained=60, lost=10, both=70):
        rng = random.Random(0)
        self.folder = folder
        self.before, self.after = [], []
        for i in range(questions):
            k = i * 37 % questions
            was = k < both + lost
            became = k < both or both + lost <= k < both + lost + gained
            bad = (None, "no_answer", "truncated", "turn_limit", None)
            self.before.append(
                record(i, was, rng, outcome=None if was else bad[i % 5], searched=i % 3 > 0)
            )
            self.after.append(record(i, became, rng, outcome=None if became else bad[i % 3 % 2]))
        self.metrics = [
            {
                "step": step,
                "time": 1.7e9 + step,
                "reward": 0.4 + 0.01 * step,
                "exact_match": 0.4 + 0.008 * step + 0.05 * rng.random(),
                "searches": 0.6 + 0.01 * step,
                "turns": 1.6 + 0.01 * step,
                "response_tokens": 30.0 - 0.1 * step + rng.random(),
                "group_zero_std_frac": rng.random(),
                "grad_norm": 1 + rng.random(),
                "entropy": 1.2 - 0.02 * step,
                "loss": 0.1 * (rng.random() - 0.5),
                "logprob_diff_max": 1e-6 * rng.random(),
                "tokens_per_s": 1500 + 100 * rng.random(),
                "failed_searches": 0.0,
            }
            for step in range(1, 51)
        ]
        self.gates = {
            "recall": {
                "gate": "recall",
                "passed": True,
                "measured": {
                    "recall": 0.99612345,
                    "recall_by_ef_search": {"16": 0.9, "128": 0.99612345},
                    "smallest_ef_search": None,
                },
                "threshold": {"min_recall": 0.98},
                "measured_on": {"queries": 400, "index_sha256": "ef" * 32},
                "details": [{"query": "a film", "recall": 0.333}],
            },
            "model_parity": {
                "gate": "model_parity",
                "passed": False,
                "measured": {"transformers_vs_engine": 1.234567e-3, "sequences": 1234},
                "threshold": {"max_logit_diff": 1e-4},
                "measured_on": {"dtype": "float32"},
                "details": [],
            },
        }
        self.config = copy.deepcopy(CONFIG)
        self.defaults = copy.deepcopy(CONFIG)
        self.provenance = copy.deepcopy(PROVENANCE)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "benchmarks").mkdir()
        head = "s\th:m:s\tmax_rss\tmean_load\n"
        (folder / "benchmarks/grpo.tsv").write_text(f"{head}3661.5\t1:01:01\t2048.4\t150\n")
        (folder / "benchmarks/index.tsv").write_text(f"{head}2.25\t0:00:02\t-\t90\n")

    def write(self, name="report.html") -> str:
        f = self.folder
        write_jsonl(f / "before.jsonl", self.before)
        write_jsonl(f / "after.jsonl", self.after)
        write_jsonl(f / "metrics.jsonl", self.metrics)
        for gate, verdict in self.gates.items():
            write_json(f / f"{gate}.json", verdict)
        paired = compare(f / "before.jsonl", f / "after.jsonl", seed=0, resamples=300)
        write_report(
            f / name,
            paired=paired,
            before=f / "before.jsonl",
            after=f / "after.jsonl",
            metrics=f / "metrics.jsonl",
            gates={gate: f / f"{gate}.json" for gate in self.gates},
            provenance=self.provenance,
            config=self.config,
            defaults=self.defaults,
            benchmarks=f / "benchmarks",
        )
        return (f / name).read_text(encoding="utf-8")


class Page(HTMLParser):
    """Elements, attributes and text of a page, as a browser's parser splits them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text, self.scripts = [], [], [], {}
        self._script = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag == "script":
            self._script = dict(attrs).get("id") or "code"
            assert self._script not in self.scripts
            self.scripts[self._script] = ""

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None

    def handle_data(self, data):
        if self._script:
            self.scripts[self._script] += data
        else:
            self.text.append(data)


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path / "run")


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
    titles = re.findall(r"<h2 [^>]*>([^<]+)</h2>", html)
    assert titles == [
        "Before and after",
        "Gates",
        "Training",
        "Transcripts",
        "Settings",
        "Time and memory",
        "Provenance",
        "Reproduce",
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
    text = " ".join(" ".join(Page(case.write()).text).split())
    assert "answers 130 of 200 held-out questions, 80 before: +25.0 points" in text
    for shown in ("60 gained", "10 lost", "70 both right", "0.9961", "1,234", "0.001235"):
        assert shown in text, shown
    assert "All 60 questions gained and all 10 lost are here, and 60 of the 130 others" in text
    assert "grpo 3,661.5 1:01:02 2,048" in text and "all rules 3,663.8 1:01:04 2,048" in text
    assert COMMIT in text and "8.0 GiB" in text and "working tree clean" in text
    assert "make run" in text
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


@pytest.mark.parametrize("count", [0, 1])
def test_few_steps(case, count):
    case.metrics = case.metrics[:count]
    html = case.write()
    assert ("No training step was recorded" in html) == (count == 0)
    assert ("After 1 GRPO step the" in html) == (count == 1)


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


def test_without_benchmarks_and_with_odd_ones(case):
    shutil.rmtree(case.folder / "benchmarks")
    assert "No benchmark file was found" in case.write()
    (case.folder / "benchmarks").mkdir()
    (case.folder / "benchmarks/empty.tsv").write_text("")
    (case.folder / "benchmarks/odd.tsv").write_text("s\tmax_rss\nNA\tNA\n")
    assert "<td>–</td>" in benchmarks(case.folder / "benchmarks")


def test_changed_settings_are_marked_and_reproduced(case):
    case.config["training"]["steps"] = 10
    case.config["run"] = "mine"
    case.provenance |= {"dirty": True, "changed": 3}
    html = case.write()
    assert '<mark>10</mark> <span class="default">default: 50</span>' in html
    assert "snakemake --configfile run.yaml" in html and "training:\n  steps: 10" in html
    assert "3 files differed from the commit" in html
    assert difference(CONFIG, CONFIG) == {}
    quoted = settings({"a": {"b": "5", "c": "text"}}, {"a": {"b": 5, "c": "text"}})
    assert "1 of 2 settings differ" in quoted and "<td>text</td>" in quoted
    assert "<mark>&quot;5&quot;</mark>" in quoted and "default: 5<" in quoted


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


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    yield session
    session.quit()


def visit(browser, path, width):
    # Windows have a smallest width; the emulated screen has none.
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(path.as_uri())
    return lambda selector: browser.find_elements("css selector", selector)


def test_in_a_browser(browser, case):
    from selenium.webdriver import ActionChains

    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    assert len(find("#list li:not([hidden])")) == 130
    find('button[data-kind="lost"]')[0].click()
    assert len(find("#list li:not([hidden])")) == 10
    assert not find("#list li[hidden]")[0].is_displayed()
    assert find("#count")[0].text == "10 questions"
    find("#list li:not([hidden]) button")[1].click()
    assert find("#transcript h3")[0].text == find("#list button[aria-current] .text")[0].text
    sides = find("#transcript .side")
    assert [s.find_element("tag name", "h4").text for s in sides] == ["before", "after"]
    assert "I should look this up." in sides[1].text and "Mokruth" in sides[1].text
    assert find("#transcript .side.after mark.golden")
    find("#search")[0].send_keys("no such text anywhere")
    assert find("#count")[0].text == "0 questions" and not find("#transcript .side")

    curve = find('figure.curve[data-metric="reward"]')[0]
    svg = curve.find_element("tag name", "svg")
    browser.execute_script("arguments[0].scrollIntoView({block:'center',behavior:'instant'})", svg)
    ActionChains(browser).move_to_element(svg).perform()
    shown = re.fullmatch(r"step (\d+): ([\d.]+)", curve.find_element("tag name", "output").text)
    assert shown and 15 < int(shown[1]) < 35
    assert float(shown[2]) == pytest.approx(0.4 + 0.01 * int(shown[1]))
    browser.execute_script("arguments[0].focus()", svg)
    before = int(shown[1])
    ActionChains(browser).send_keys("\ue014").perform()
    assert curve.find_element("tag name", "output").text.startswith(f"step {before + 1}:")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [400, 1400])
def test_no_sideways_scrolling(browser, case, width):
    case.before[0]["question"] = case.after[0]["question"] = "long" * 60
    case.write()
    find = visit(browser, case.folder / "report.html", width)
    for summary in find("summary"):
        browser.execute_script("arguments[0].parentNode.open = true", summary)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


def test_hostile_text_does_not_run_in_a_browser(browser, case):
    case.config["report"]["title"] = HOSTILE
    for row in (case.before[0], case.after[0]):
        row["question"] = HOSTILE
        row["golden_answers"] = [HOSTILE]
        row["turns"][-1]["content"] = HOSTILE
    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    find("#search")[0].send_keys("onerror")
    time.sleep(0.2)
    assert find("#count")[0].text == "1 question"
    assert HOSTILE.split()[0] in find("#transcript h3")[0].text
    assert browser.title != "pwned" and not find("#transcript img, body script + img")
    assert browser.get_log("browser") == []
