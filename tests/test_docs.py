"""The documentation is true: its pages run, and it is built without a warning and without anything from elsewhere."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import streamlens
from docs_pages import blocks, calls, complaints, differs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
SLOW = {"depth", "see"}
NOT_RUN = {"zoo"}  # written by a script, and held by a test of its own


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, default_model) -> Path:
    """An empty folder, a terminal of 100 columns, and the session's model wherever the default one is loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("streamlens.cli.output._is_terminal", lambda stream: True)
    load = streamlens.load

    def loaded(name="smollm2-135m", **options):
        default = name == "smollm2-135m" and options.get("dtype", "float32") == "float32"
        return default_model if default else load(name, **options)

    monkeypatch.setattr("streamlens.models.load.load", loaded)
    monkeypatch.setattr(streamlens, "load", loaded)
    return tmp_path


@pytest.mark.model
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if page.stem in SLOW else [])
        for page in PAGES
        if page.stem not in NOT_RUN and any(block.language in ("python", "console") for block in blocks(page))
    ],
)
def test_a_page_gives_what_it_shows(page: Path, elsewhere: Path) -> None:
    assert list(complaints(page)) == []


@pytest.mark.model
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, elsewhere: Path) -> None:
    """Its cells, in order, in one namespace; a notebook's kernel would do the same."""
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{notebook.name}[{number}]", "exec"), names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_every_option_on_a_page_exists() -> None:
    from streamlens.cli import COMMANDS, main

    used = set()
    for page in PAGES:
        for block in blocks(page):
            for call in calls(block.text) if block.language == "console" else ():
                if not call.ours or call.words[1].startswith("-"):
                    continue
                _, name, *words = call.words
                assert name in COMMANDS, f"{page.name}: {name}"
                command = main.get_command(main.make_context("streamlens", ["--debug", name]), name)
                known = {option for parameter in command.params for option in parameter.opts}
                for inner in getattr(command, "commands", {}).values():
                    known |= {option for parameter in inner.params for option in parameter.opts}
                unknown = {word for word in words if re.match(r"--?[a-z]", word)} - known
                assert not unknown, f"{page.name}: {name} has no {unknown}"
                used.add(name)
    assert used == set(COMMANDS), "every command has its place in the how-to pages"


def test_the_reference_has_every_public_name() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"^::: streamlens\.(\S+)", text, flags=re.MULTILINE))
    whole = {name.partition(".")[0] for name in named}
    assert whole >= set(streamlens.__all__) - {"__version__"}
    assert {name.rpartition(".")[2] for name in named if name.startswith("plots.")} == set(streamlens.plots.__all__)
    assert {name.removeprefix("batch.") for name in named if name.startswith("batch.")} == set(streamlens.batch.__all__)


class Resources(HTMLParser):
    """What a browser fetches by itself when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "source", "video", "object", "embed", "form"):
            wanted = ("src", "href", "srcset", "data", "action")
            self.found += [value or "" for name, value in attrs if name in wanted]


def fetched(page: str) -> Iterator[str]:
    """Resources of other hosts."""
    parser = Resources()
    parser.feed(page)
    yield from (url for url in parser.found if re.match(r"\s*(https?:)?//", url))


def test_the_site_is_built_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(site.rglob("*.html"))
    assert {page.relative_to(site).as_posix() for page in pages} >= {"index.html", "tutorial.html", "api/ledgers.html"}
    for page in pages:
        assert list(fetched(page.read_text(encoding="utf-8"))) == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8")), style.name
    assert "decompose" in (site / "search" / "search_index.json").read_text(encoding="utf-8")


def test_what_a_page_fetches_is_seen() -> None:
    assert list(fetched('<script src="https://a.example/x.js"></script>')) == ["https://a.example/x.js"]
    assert list(fetched('<link rel="stylesheet" href="//a.example/x.css">')) == ["//a.example/x.css"]
    assert list(fetched('<a href="https://a.example">text</a><img src="x.png">')) == []


@pytest.mark.parametrize(
    ("shown", "got", "agree"),
    [
        ("3.742", "3.74215", True),
        ("3.742", "3.7456", False),
        ("+0.42 logits", "+0.41 logits", True),
        ("+0.42 logits", "-0.42 logits", False),
        ("60 variants", "61 variants", False),
        ("52%", "53%", True),
        ("1e-07", "8e-07", True),
        ("1e-07", "2e-05", False),
        ("L1.attn 0.4", "L2.attn 0.4", False),
        ("a\n...\nc", "a\nb\nb\nc", True),
        ("a\n...\nd", "a\nb\nc", False),
        ("a", "a\nb", False),
        ("a\n...", "a\nb", True),
        ("a\nb", "a", False),
    ],
)
def test_the_comparison_can_fail(shown: str, got: str, agree: bool) -> None:
    assert (differs(shown, got) is None) == agree


def test_a_page_that_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 2\nx + 1  # 3\nx + 1\n# 4\nprint('a', x)\n# a 2\n```\n"
        "```console\n$ streamlens --version\nstreamlens 0.0.0\n$ streamlens decomposed\n$ rm nothing\n```\n"
        '```text title="some.txt"\nhello\n```\n',
        encoding="utf-8",
    )
    found = list(complaints(page))
    assert [part in said for part, said in zip(("x + 1: shown '4'", "0.0.0", "ends with 2"), found, strict=True)] == [
        True
    ] * 3
    assert (tmp_path / "some.txt").read_text() == "hello\n"
