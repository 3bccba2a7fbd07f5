"""Opening pages and using them, for tests in a browser."""

from __future__ import annotations


def visit(browser, path, width):
    """Open a page at this width; returns a function from CSS selector to elements."""
    # Windows have a smallest width; the emulated screen has none.
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(path.as_uri())
    return lambda selector: browser.find_elements("css selector", selector)


def choose(find, field, value):
    """Pick a value in one of the viewer's choices."""
    from selenium.webdriver.support.select import Select

    Select(find(f'select[data-field="{field}"]')[0]).select_by_value(value)


def colours(browser, scheme):
    """Ask for light or dark colours."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )


def open_all(browser, find):
    """Unfold everything that is folded."""
    for summary in find("summary"):
        browser.execute_script("arguments[0].parentNode.open = true", summary)
