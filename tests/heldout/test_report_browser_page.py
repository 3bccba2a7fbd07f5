"""Pages in headless Chromium: axe-core, print, log-probabilities, strange text, several runs."""

from __future__ import annotations

import base64
import copy
import zlib

import pytest

from glimmer.files import read_json, write_text
from glimmer.heldout.pooled import compare_runs
from glimmer.heldout.runs_page import runs_page
from tests.heldout.browsing import colours, open_all, visit
from tests.heldout.pages import CURVE, Case

STRANGE = [
    "</textarea></title></style>",
    "<script>document.title='pwned'</script>",
    "quotes \" ' ` and & &amp; &lt;",
    "من أخرج فيلم Staidrus؟",
    "👩🏽‍🚀🦊 emoji and \u202eoverride\u202c",
    "line\u2028separator\x00null\x1bescape",
]


def findings(browser, axe):
    """axe-core's violations as (rule, impact, first element)."""
    browser.execute_script(axe)
    found = browser.execute_async_script(
        "const done = arguments[0];"
        "axe.run(document, {resultTypes: ['violations']}).then((r) => done(r.violations));"
    )
    return [(one["id"], one["impact"], one["nodes"][0]["html"][:120]) for one in found]


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (360, "dark")])
def test_axe_finds_nothing(browser, axe, tmp_path, width, scheme):
    case = Case(tmp_path / "run", questions=30, gained=10, lost=3, both=9)
    case.curve = CURVE
    case.write()
    colours(browser, scheme)
    find = visit(browser, case.folder / "report.html", width)
    find("#list li button")[1].click()
    open_all(browser, find)
    assert findings(browser, axe) == []


def test_axe_sees_faults(browser, axe, tmp_path):
    case = Case(tmp_path / "run", questions=10, gained=3, lost=1, both=3)
    case.write()
    visit(browser, case.folder / "report.html", 1400)
    browser.execute_script(
        "document.getElementById('search').parentNode.replaceWith(document.createElement('input'))"
    )
    assert ("label", "critical") in [fault[:2] for fault in findings(browser, axe)]


def test_the_first_screen(browser, case):
    """Sentence, noise floor, gates and flow stand above the fold of a desktop screen."""
    case.write()
    colours(browser, "light")
    find = visit(browser, case.folder / "report.html", 1400)
    for selector in (".result", ".noise", ".verdicts", "header .flow svg"):
        (element,) = find(selector)
        box = element.rect
        assert box["height"] > 0 and box["y"] + box["height"] <= 900, selector
    assert "±" in find(".noise")[0].text
    assert len(find(".verdicts li")) == 2 and "failed model parity" in find(".verdicts")[0].text
    assert find("header .flow path.ribbon.gained") and find("header .flow path.ribbon.lost")


def test_print_to_pdf(browser, case):
    """It prints: several pages, the result's text on them, no tool that paper cannot use."""
    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    find("#list li button")[0].click()
    printed = base64.b64decode(browser.print_page())
    assert printed.startswith(b"%PDF-") and printed.rstrip().endswith(b"%%EOF")
    assert 3 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 60
    assert len(printed) > 20_000 and streams(printed)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = browser.execute_script(
            "return Object.fromEntries(arguments[0].map("
            "(s) => [s, document.querySelector(s).checkVisibility()]))",
            [".result", ".flow", "#transcript", ".controls", "nav", "#list"],
        )
        wide = browser.execute_script(
            "return [...document.querySelectorAll('.scroll')].every("
            "(e) => getComputedStyle(e).overflowX === 'visible')"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown == {
        ".result": True, ".flow": True, "#transcript": True,
        ".controls": False, "nav": False, "#list": False,
    }  # fmt: skip
    assert wide


def streams(pdf):
    """How many of a PDF's compressed streams unpack."""
    count = 0
    for part in pdf.split(b"stream\n")[1:]:
        try:
            zlib.decompressobj().decompress(part)
            count += 1
        except zlib.error:
            continue
    return count


def test_log_probabilities_on_demand(browser, case):
    from selenium.webdriver.support.ui import WebDriverWait

    case.before[1]["turns"][0]["logprobs"] = [-0.05, -0.5, -1.5, -4.25] + [-0.01] * 5
    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    find("#list li button")[1].click()
    assert not find("#transcript .token")
    find("#transcript .side.before .logprobs summary")[0].click()
    # The list is made by an event, which comes after the click has returned.
    WebDriverWait(browser, 10).until(lambda _: find("#transcript .side.before .token"))
    tokens = find("#transcript .side.before .token")
    assert len(tokens) == 9
    assert tokens[0].text.split() == ["␣t90001", "-0.05"] and "-4.25" in tokens[3].text
    kinds = [token.get_attribute("class").split("-")[-1] for token in tokens[:4]]
    assert kinds == ["0", "1", "2", "3"]
    assert "9 tokens, sum -6.35 nats" in find("#transcript .side.before .logprobs p")[0].text
    assert browser.get_log("browser") == []


def test_strange_text_is_text(browser, case):
    for text, *rows in zip(STRANGE, case.before, case.after, strict=False):
        for row in rows:
            row["question"] = row["prediction"] = row["type"] = text
            row["golden_answers"] = [text]
            row["turns"][-1]["content"] = row["turns"][-1]["text"] = text
            passage = {"id": text, "title": text, "text": text, "score": 1.0}
            result = {"query": text, "error": text, "passages": [passage]}
            row["turns"][-1]["tool_results"] = [result]
    case.write()
    find = visit(browser, case.folder / "report.html", 1400)

    def said(selector):
        return browser.execute_script(
            "return document.querySelector(arguments[0]).textContent", selector
        )

    for place, text in enumerate(STRANGE):
        find("#list li button")[place].click()
        assert said("#transcript h3") == text
        assert said("#transcript .answer .body") == text
        assert said("#transcript .side.after .turn:last-child .found li strong") == text
        assert find("#transcript .side.after .turn:last-child .found li mark.golden")
        directions = {e.get_attribute("dir") for e in find("#transcript h3, #transcript .body")}
        assert directions == {"auto"}
        assert browser.title != "pwned" and not find("textarea, #transcript script")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [360, 1400])
def test_the_page_of_several_runs(browser, axe, case, width):
    case.write()
    report = read_json(case.folder / "report.json")
    other = copy.deepcopy(report)
    other["run"] = other["config"]["run"] = "another-run-with-quite-a-long-name"
    other["config"]["training"]["seed"] = 1
    path = case.folder / "runs.html"
    write_text(path, runs_page(compare_runs([report, other], seed=0, resamples=200)))
    colours(browser, "dark" if width == 360 else "light")
    find = visit(browser, path, width)
    assert "pooled: 2 seeds" in find("svg")[0].text
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert findings(browser, axe) == []
    assert browser.get_log("browser") == []
