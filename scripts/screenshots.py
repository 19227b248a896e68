"""The pictures of the README: parts of a report, in a browser, as small PNG files in docs/images/.

    python scripts/screenshots.py [STUDY]

1. The worked example is studied, or a study that `streamlens report --save` wrote is loaded.
2. Its page is opened in Chromium, and the parts that `SHOTS` names are taken.
3. A picture over 150 KB is an error: the repository holds them.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import streamlens as sl
from streamlens.report import study_page, write_page

BANK = "After crossing the river, she rested on the bank"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
LARGEST = 150_000  # bytes
#: name -> (the section's heading, what of it stands at the top, theme, height of the picture)
SHOTS = {
    "contributions": ("What each part contributes", "h2", "light", 600),
    "ablation": ("Switch a branch off", ".switch", "light", 720),
    "lens": ("What it would say if it stopped", "h2", "dark", 700),
}


def main() -> int:
    found = sl.Study.load(sys.argv[1]) if len(sys.argv) > 1 else studied()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = write_page(Path(folder) / "bank.html", study_page(found))
        too_large = [name for name in SHOTS if take(page, name) > LARGEST]
    for name in too_large:
        print(f"docs/images/{name}.png is larger than {LARGEST} bytes", file=sys.stderr)
    return 1 if too_large else 0


def studied() -> sl.Study:
    """The worked example."""
    model = sl.load("smollm2-135m")
    return sl.study(model, BANK, position="bank", reader=sl.Reader.logit_diff(model, " river", " money"))


def take(page: Path, name: str) -> int:
    """Takes one picture; its size in bytes."""
    heading, top, scheme, height = SHOTS[name]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1120, "height": height}, color_scheme=scheme)
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
        tab.get_by_role("region", name=heading, exact=True).locator(top).evaluate("node => node.scrollIntoView()")
        target = IMAGES / f"{name}.png"
        tab.screenshot(path=target)
        browser.close()
    print(f"docs/images/{name}.png {target.stat().st_size:,} bytes")
    return target.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
