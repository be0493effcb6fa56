"""Chromium, where there is one, and pages in it whose console is watched."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = "no Chromium: neither CHROMIUM nor the path names one"

# How many texts are seen, and those that stand out too little from what is behind them, with the contrast of each.
POOR = """() => {
  const parse = (colour) => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = (front, back) => front.slice(0, 3).map((part, i) => part * front[3] + back[i] * (1 - front[3]));
  const linear = (part) => ((part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = (rgb) => 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
  const behind = (el) => (el ? over(parse(getComputedStyle(el).backgroundColor), behind(el.parentElement)) : [255, 255, 255]);
  const poor = [];
  let seen = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const el = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !el.checkVisibility({ visibilityProperty: true }) || el.closest(':disabled, noscript, .hidden')) continue;
    seen += 1;
    const back = behind(el), [a, b] = [luminance(over(parse(getComputedStyle(el).color), back)), luminance(back)].sort((x, y) => x - y);
    const ratio = (b + 0.05) / (a + 0.05);
    if (ratio < 4.5) poor.push([el.className || el.tagName, walk.currentNode.data.trim(), ratio]);
  }
  return [seen, poor];
}"""


def chromium() -> str | None:
    """The program, which CHROMIUM may name."""
    return os.environ.get("CHROMIUM") or next((path for path in map(shutil.which, NAMES) if path), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser; without one the test is skipped."""
    program = chromium()
    if program is None:
        pytest.skip(MISSING)
    expect.set_options(timeout=30_000)  # far more than anything takes, on a machine that is busy, too
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, *, script: str = "", expected: str | None = None, **context: Any) -> Iterator[Page]:
    """A page that has loaded; whatever its console says fails the test, but for messages that have ``expected`` in them."""
    said: list[str] = []
    made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    made.set_default_timeout(30_000)
    try:
        page = made.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"uncaught: {error}"))
        page.on("requestfailed", lambda request: said.append(f"failed: {request.url} {request.failure}"))
        if script:
            page.add_init_script(script)
        page.goto(url)
        yield page
    finally:
        made.close()
    assert [line for line in said if expected is None or expected not in line] == []


def send(page: Page, prompt: str, **fields: Any) -> None:
    """Fills in the form as it is on a wide screen, for completions, sends it, and waits for the end."""
    fill(page, prompt, **fields)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_contain_text("Finished")


def fill(page: Page, prompt: str, **fields: Any) -> None:
    """Fills in the form, for completions."""
    expect(page.locator("#proposer option").first).to_be_attached()  # the server has said what it has
    page.get_by_text("Completion", exact=True).click()
    page.get_by_label("Prompt", exact=True).fill(prompt)
    if not page.locator("#temperature").is_visible():
        page.get_by_text("Settings", exact=True).click()
    for name, value in fields.items():
        field = page.locator(f"#{name}")
        if field.evaluate("el => el.tagName") == "SELECT":
            field.select_option(str(value))
        else:
            field.fill(str(value))
