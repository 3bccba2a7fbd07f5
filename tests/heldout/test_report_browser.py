"""The report in headless Chromium: viewer, fragments, narrow pages, accessibility."""

from __future__ import annotations

import re
import time

import pytest

from tests.heldout.browsing import choose, visit
from tests.heldout.pages import CURVE, HOSTILE


def test_in_a_browser(browser, case):
    from selenium.webdriver import ActionChains

    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    assert len(find("#list li")) == 200
    find('button[data-kind="lost"]')[0].click()
    assert len(find("#list li")) == 10
    assert find("#count")[0].text == "10 questions"
    find("#list li button")[1].click()
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


def test_smoothing_is_off_until_asked_for(browser, case):
    case.metrics = case.metrics[:5]
    for row, value in zip(case.metrics, (0.0, 3.0, None, 6.0, 0.0), strict=True):
        row["reward"] = value
    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    line, smooth = ('figure.curve[data-metric="reward"] .' + name for name in ("line", "smooth"))
    raw = find(line)[0].get_attribute("d")
    assert find("#smoothing")[0].get_attribute("value") == "0"
    assert find(smooth)[0].get_attribute("d") == "" and not find(".smoothed")
    find("#smoothing")[0].send_keys("\ue014")  # one step to the right
    assert find("output[for=smoothing]")[0].text.startswith("mean of 3 steps")
    # Means of the neighbours that are known: 1.5, 1.5, a gap, 3, 3. The axis goes from 0 to 6.
    path = find(smooth)[0].get_attribute("d")
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]
    top, down, low, high = map(
        float, find('figure.curve[data-metric="reward"]')[0].get_attribute("data-y").split()
    )
    assert (low, high) == (0, 6)
    expected = [top + down * (1 - v / 6) for v in (1.5, 1.5, 3, 3)]
    assert heights == pytest.approx(expected, abs=0.01)
    assert path.count("M") == 2
    assert find(line)[0].get_attribute("d") == raw
    find("#smoothing")[0].send_keys("\ue012")
    assert find(smooth)[0].get_attribute("d") == "" and browser.get_log("browser") == []


def test_filters_by_outcome_and_type_in_a_browser(browser, case):
    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    pairs = list(zip(case.before, case.after, strict=True))
    choose(find, "before", "truncated")
    choose(find, "after", "correct")
    wanted = [b for b, a in pairs if (b["outcome"], a["outcome"]) == ("truncated", "correct")]
    assert 0 < len(wanted) == len(find("#list li"))
    choose(find, "type", "film.location")
    wanted = [b for b in wanted if b["type"] == "film.location"]
    assert find("#count")[0].text.startswith(f"{len(wanted)} question")
    choose(find, "type", "")
    find("#search")[0].send_keys(wanted[0]["question"])
    assert find("#count")[0].text == "1 question"


def test_a_fragment_opens_one_question_in_a_browser(browser, case):
    odd = "q ü&#%?<b>"
    case.before[150]["id"] = case.after[150]["id"] = odd
    case.write()
    path = case.folder / "report.html"
    find = visit(browser, path, 1400)
    find("#list li button")[3].click()
    shown = find("#list button[aria-current] .text")[0].text
    url = browser.current_url
    assert url.endswith("#question=q0003")
    browser.get("about:blank")
    browser.get(url)
    assert find("#transcript h3")[0].text == shown
    choose(find, "after", "correct")
    browser.execute_script(f"location.hash = 'question=' + encodeURIComponent({odd!r})")
    time.sleep(0.3)
    assert odd in find("#transcript .facts")[0].text
    assert len(find("#list li")) == 200
    assert find("#transcript .permalink")[0].get_attribute("href") == browser.current_url
    browser.execute_script("location.hash = 'question=gone'")
    time.sleep(0.3)
    assert find("#count")[0].text == "Question gone is not on this page."
    browser.execute_script("location.hash = 'question=%E0%A4%A'")
    time.sleep(0.3)
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [360, 1400])
def test_no_sideways_scrolling(browser, case, width):
    case.before[0]["question"] = case.after[0]["question"] = "long" * 60
    case.curve = CURVE
    case.config["report"]["title"] += " with " + "a title that is longer than a phone is wide, " * 2
    case.config["run"] = "a-run-of-a-name-that-is-longer-than-a-phone-is-wide-and-has-no-spaces"
    case.config["checkpoint"]["source"] = "/a/folder/" + "of/many/others/" * 9
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


BASICS = """
const faults = [];
const name = (e) => (e.getAttribute("aria-label") || e.textContent || "").trim() ||
  [...(e.labels || [])].map((l) => l.textContent).join("").trim();
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push("id twice: " + id);
for (const e of document.querySelectorAll("button, a[href], summary, input, select, [role=region]"))
  if (!name(e)) faults.push("no name: " + e.outerHTML.slice(0, 90));
for (const e of document.querySelectorAll("input, select"))
  if (!e.labels.length) faults.push("no label: " + e.id);
for (const e of document.querySelectorAll("[aria-labelledby]"))
  if (!document.getElementById(e.getAttribute("aria-labelledby"))) faults.push("label of " + e.id);
for (const e of document.querySelectorAll("svg[role=img]"))
  if (!name(e)) faults.push("figure without a name");
for (const e of document.querySelectorAll("thead th"))
  if (!e.scope) faults.push("th without scope");
for (const e of document.querySelectorAll("*"))
  if (e.tabIndex > 0) faults.push("tabindex above 0: " + e.outerHTML.slice(0, 90));
for (const e of document.querySelectorAll("th"))
  if (!e.textContent.trim()) faults.push("empty th: " + e.parentNode.outerHTML.slice(0, 90));
const regions = [...document.querySelectorAll("[role=region], section[aria-labelledby]")]
  .map((e) => e.getAttribute("aria-label") ||
    document.getElementById(e.getAttribute("aria-labelledby")).textContent);
for (const r of regions) if (regions.indexOf(r) !== regions.lastIndexOf(r)) faults.push("two " + r);
let level = 0;
for (const e of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
  const here = Number(e.tagName[1]);
  if (here > level + 1) faults.push("heading skipped before: " + e.textContent);
  level = here;
}
if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
if (!document.documentElement.lang) faults.push("no language");
for (const tag of ["main", "header", "nav"])
  if (document.querySelectorAll(tag).length !== 1) faults.push("not one " + tag);
const channels = (c) => c.match(/[\\d.]+/g).map(Number);
const light = (c) => {
  const [r, g, b] = c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const c = channels(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] === 1) return c;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const seen = new Set();
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || seen.has(e) || !e.checkVisibility()) continue;
  if (e.closest("script, style")) continue;
  seen.add(e);
  const style = getComputedStyle(e);
  const colour = channels(e.closest("svg") ? style.fill : style.color);
  const [a, b] = [light(colour), light(behind(e))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) faults.push(ratio.toFixed(2) + " contrast: " + e.outerHTML.slice(0, 90));
}
return [faults, seen.size];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_basics_in_a_browser(browser, case, scheme):
    """Names, labels, headings, landmarks, unique ids, and WCAG's contrast of 4.5 for all text."""
    case.write()
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    find = visit(browser, case.folder / "report.html", 1400)
    find('button[data-kind="gained"]')[0].click()
    for summary in find("summary"):
        browser.execute_script("arguments[0].parentNode.open = true", summary)
    page = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (page == "rgb(255, 255, 255)") is (scheme == "light")
    faults, texts = browser.execute_script(BASICS)
    assert faults == [] and texts > 300
    # The check itself sees faults.
    browser.execute_script(
        "const h1 = document.querySelector('h1');"
        "h1.style.color = getComputedStyle(document.body).backgroundColor;"
        "document.getElementById('search').parentNode.replaceWith(document.createElement('input'))"
    )
    faults, _ = browser.execute_script(BASICS)
    assert any("contrast: <h1" in fault for fault in faults) and "no label: " in faults


def test_tab_reaches_every_control_in_its_order(browser, case):
    """Nothing but the Tab key, from the top: links, curves, filters, list, transcript, each with a
    visible outline, and out of the page again at the end."""
    from selenium.webdriver import ActionChains

    case.before, case.after = case.before[:6], case.after[:6]
    kept = {row["id"] for row in case.before}
    case.repeats = {
        name: [row for row in rows if row["id"] in kept] for name, rows in case.repeats.items()
    }
    case.write()
    visit(browser, case.folder / "report.html", 1400)
    seen = []
    for _ in range(200):
        ActionChains(browser).send_keys("\ue004").perform()
        found = browser.execute_script(
            "const e = document.activeElement; return e === document.body ? null :"
            "[e.tagName.toLowerCase(), e.id || e.dataset.kind || e.dataset.field || '',"
            "getComputedStyle(e).outlineStyle !== 'none']"
        )
        if found is None:
            break
        seen.append(tuple(found))
    else:
        raise AssertionError("Tab never left the page")
    assert all(outlined for *_, outlined in seen)
    names = [name for _, name, _ in seen if name]
    wanted = ["gained", "lost", "both_right", "both_wrong", "all", "before", "after", "type"]
    start = names.index("gained")
    assert names[start : start + 9] == [*wanted, "search"]
    assert sum(tag == "svg" for tag, *_ in seen) == 12
    after = seen[[name for _, name, _ in seen].index("search") + 1 :]
    # One stop for all questions, then the transcript.
    assert [tag for tag, *_ in after[:3]] == ["button", "a", "summary"]


def test_the_keyboard_reaches_the_viewer(browser, case):
    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    button = find("#list button")[2]
    browser.execute_script("arguments[0].focus()", button)
    button.send_keys("\ue007")
    assert find("#transcript h3")[0].text == button.find_element("css selector", ".text").text


def test_arrow_keys_walk_the_list(browser, case):
    from selenium.webdriver import ActionChains

    def shown():
        return browser.execute_script(
            "const e = document.activeElement;"
            "return [e.querySelector('.text').textContent, document.querySelector('#transcript h3')"
            ".textContent, location.hash, e.tabIndex,"
            "document.querySelectorAll('#list button[tabindex=\"0\"]').length]"
        )

    case.write()
    find = visit(browser, case.folder / "report.html", 1400)
    find('button[data-kind="lost"]')[0].click()
    lost = [element.text for element in find("#list .text")]
    browser.execute_script("document.querySelector('#list button[tabindex=\"0\"]').focus()")
    for keys, place in (
        ("\ue015", 1), ("\ue015", 2), ("\ue013", 1), ("\ue010", 9), ("\ue015", 9),
        ("\ue011", 0), ("\ue013", 0), ("\ue00f", 9), ("\ue00e", 0),
    ):  # fmt: skip
        ActionChains(browser).send_keys(keys).perform()
        text, title, fragment, tab, stops = shown()
        assert text == title == lost[place] and fragment.startswith("#question=")
        assert (tab, stops) == (0, 1)
    assert browser.get_log("browser") == []
