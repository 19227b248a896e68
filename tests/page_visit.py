"""A page opened from disk in Chromium with no network, and everything that goes wrong on it.

`browser` and `visit` are fixtures: a test module imports them.
"""

import itertools
import shutil
from pathlib import Path

import pytest

from streamlens.report import write_page


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or "/usr/bin/chromium"
    if not Path(path).exists():
        pytest.fail("these tests look at the page in Chromium, which is missing: apt-get install chromium")
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=options)
        yield chromium
        chromium.close()


class Visit:
    """A page opened from disk with no network, and everything that went wrong on it."""

    def __init__(self, browser, path: Path, *, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, accept_downloads=True
        )
        self.tab = self.context.new_page()
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.faults.append(message.text))
        self.tab.on("pageerror", lambda error: self.faults.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.faults.append(dialog.message), dialog.dismiss()))
        self.tab.goto(path.as_uri())
        self.tab.wait_for_selector("html[data-drawn]", state="attached")

    def evaluate(self, script: str, *args):
        return self.tab.evaluate(script, *args)

    def until(self, condition: str) -> None:
        """Wait for a JavaScript condition; `wait_for_function` needs eval, which the policy forbids."""
        self.evaluate(
            f"""() => new Promise((done, fail) => {{
                const look = () => (({condition}) ? done() : requestAnimationFrame(look));
                setTimeout(() => fail(Error("still waiting")), 10000);
                look();
            }})"""
        )

    def boxes(self, selector: str) -> list[tuple[str, dict]]:
        """(text, bounding box) of each element."""
        return self.evaluate(
            """selector => [...document.querySelectorAll(selector)].map(
                 (e) => [e.textContent, e.getBoundingClientRect().toJSON()])""",
            selector,
        )

    def hover(self, plot: int, column: int, row: int) -> str:
        """The text that appears over one cell of a heatmap."""
        place = f"document.querySelectorAll('.plot')[{plot}]"
        self.evaluate(f"{place}.scrollIntoView()")
        x, y = self.evaluate(
            f"""([column, row]) => {{
                const {{ xaxis, yaxis }} = {place}._fullLayout, box = {place}.getBoundingClientRect();
                return [box.x + xaxis._offset + xaxis.l2p(column), box.y + yaxis._offset + yaxis.l2p(row)];
            }}""",
            [column, row],
        )
        label = self.tab.locator(f".plot >> nth={plot}").locator(".hoverlayer .hovertext")
        self.tab.mouse.move(0, 0)
        label.wait_for(state="detached")
        self.tab.mouse.move(x, y)
        label.wait_for(state="attached")
        return label.text_content() or ""


@pytest.fixture
def visit(browser, tmp_path):
    """Opens pages; whatever a test does on them, nothing may leave and nothing may go wrong."""
    visits = []

    def opened(source: str, **kwargs) -> Visit:
        visits.append(Visit(browser, write_page(tmp_path / f"{len(visits)}.html", source), **kwargs))
        return visits[-1]

    yield opened
    for done in visits:
        outside = [url for url in done.requests if not url.startswith(("file:", "data:", "blob:"))]
        faults = list(done.faults)
        done.context.close()
        assert outside == []
        assert faults == []


def overlaps(boxes: list[dict]) -> int:
    """How many pairs overlap by more than half a pixel."""
    return sum(
        min(one["right"], other["right"]) - max(one["left"], other["left"]) > 0.5
        and min(one["bottom"], other["bottom"]) - max(one["top"], other["top"]) > 0.5
        for one, other in itertools.combinations(boxes, 2)
    )


def settled(seen: Visit) -> None:
    """Two frames later everything asked for is drawn."""
    seen.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
