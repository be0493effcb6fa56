"""Looks at the page of ``specdec serve`` in Chromium: ``python benchmarks/page.py [--pictures FOLDER] [--json]``, under a minute.

Starts the server with the embedded model on a free port, opens its page a few times in browsers that know nothing yet, and prints when the first
paint was, whatever the console said, and what one generation came to. ``--pictures`` writes what is seen on a wide and on a narrow screen, in light
and in dark.

It needs playwright, and a Chromium: that of the path, or the one that CHROMIUM names. Exit codes: 0 the first paint came within a second and the
console said nothing; 1 otherwise; 2 it could not be looked at.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FIGURES = ("per_pass", "acceptance", "speed", "count", "passes", "first")
LOADS = 7
MOST = 1000.0  # milliseconds to the first paint
SCREENS = {"wide": {"width": 1280, "height": 920}, "narrow": {"width": 390, "height": 844}}
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def main() -> int:
    """Looks, and says what was seen."""
    options = _options()
    chromium = os.environ.get("CHROMIUM") or next((path for path in map(shutil.which, NAMES) if path), None)
    if chromium is None or shutil.which(chromium) is None:
        return _refuse(f"no browser is {chromium or 'installed'}; expected one of {', '.join(NAMES)} on the path, or its file in CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return _refuse("playwright is not installed; expected it: pip install playwright")
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    with _served(options.model) as url, sync_playwright() as playwright:
        print(f"looking at {url}", file=sys.stderr)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        version = browser.version
        said: list[str] = []
        paints = [_painted(browser, url, said) for _ in range(LOADS)]
        figures = _generated(browser, url, said, options.pictures)
        browser.close()
    found = {"chromium": version, "first_paint_ms": {"median": statistics.median(paints), "worst": max(paints), "loads": LOADS}}
    found |= {"console": said, "generation": figures}
    passed = max(paints) <= MOST and not said
    print(json.dumps({**found, "passed": passed}) if options.json else _table(found, passed))
    return 0 if passed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Looks at the page of specdec serve in Chromium.")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="write what is seen there")
    parser.add_argument("--model", default="smollm2-135m", help="what is served")
    parser.add_argument("--json", action="store_true", help="print one object")
    return parser.parse_args()


def _refuse(why: str) -> int:
    print(f"page.py: {why}", file=sys.stderr)
    return 2


@contextmanager
def _served(model: str) -> Iterator[str]:
    """The server as users start it, on a free port."""
    command = [sys.executable, "-m", "specdec_fn", "serve", "--model", model, "--port", "0", "--json", "--quiet"]
    path = os.pathsep.join(str(ROOT / part) for part in ("", "kernels", "proofs"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            if not line:
                raise SystemExit(_refuse("the server did not start; what it said stands above"))
            yield json.loads(line)["url"]
        finally:
            server.send_signal(signal.SIGINT)


def _opened(browser: Any, url: str, said: list[str], **context: Any) -> Any:
    page = browser.new_context(**context).new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"uncaught: {error}"))
    page.goto(url)
    page.locator("#proposer option").first.wait_for(state="attached")
    return page


def _painted(browser: Any, url: str, said: list[str]) -> float:
    page = _opened(browser, url, said, viewport=SCREENS["wide"])
    paint: float = page.evaluate(PAINT)
    page.context.close()
    return round(paint, 1)


def _generated(browser: Any, url: str, said: list[str], pictures: Path | None) -> dict[str, str]:
    figures: dict[str, str] = {}
    for scheme in ("light", "dark"):
        for name, viewport in SCREENS.items():
            if figures and pictures is None:
                continue
            page = _opened(browser, url, said, viewport=viewport, color_scheme=scheme, has_touch=name == "narrow")
            if name == "narrow":
                page.locator("#settings summary").click()
            page.locator("#seed").fill("6")
            page.locator("#temperature").fill("0.6")
            page.locator("#max_tokens").fill("96")
            if name == "narrow":
                page.locator("#settings summary").click()
            page.locator("#send").click()
            page.locator("#status button").wait_for(timeout=120_000)
            figures = figures or {
                key: page.locator(f"#{key}").inner_text() for key in ("per_pass", "acceptance", "speed", "count", "passes", "first")
            }
            if pictures is not None:
                _picture(page, name, pictures / f"page-{name}-{scheme}.png")
            page.context.close()
    return figures


def _picture(page: Any, name: str, file: Path) -> None:
    """With the rejected drafts, and the card of a token that stands in place of one."""
    page.locator("#drafts").check()
    tokens = page.locator("#output .recovered[data-i]")
    token = tokens.nth(min(2, tokens.count() - 1)) if tokens.count() else page.locator("#output .t[data-i]").first
    if name == "narrow":
        token.tap()
    else:
        token.hover()
    page.locator("#card").wait_for()
    page.screenshot(path=file, animations="disabled")


def _table(found: dict[str, Any], passed: bool) -> str:
    paint, figures = found["first_paint_ms"], found["generation"]
    lines = [
        f"first paint     {paint['median']:.0f} ms, at worst {paint['worst']:.0f} of {paint['loads']} loads (at most {MOST:.0f})",
        f"console         {'; '.join(found['console']) or 'silent'}",
        f"one generation  {figures['count']} tokens in {figures['passes']} passes, {figures['per_pass']} a pass, {figures['speed']} tokens/s",
        f"chromium        {found['chromium']}",
        "passed" if passed else "FAILED",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
