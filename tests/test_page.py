"""The page is one file, asks nothing of anyone, and reads well in a real browser."""

import base64
import hashlib
import io
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from figure_frames import HOSTILE, PROMPT, readout_frame, writes_frame
from page_visit import Visit, browser, overlaps, settled, visit
from streamlens import plots, theme
from streamlens.errors import InputError
from streamlens.report import Section, page, write_page

__all__ = ["browser", "visit"]  # fixtures

CLOSURE = "The parts sum to +3.742 logits; the writes sum to the stream within 3.1e-07 of it."
PROVENANCE = {"model": "tiny <1>", "BOS": "none added", "versions": {"plotly": "6"}, "revision": None}


def a_page(tokens: list[str] | None = None, *, layers: int = 30, **kwargs) -> str:
    """All figures of one prompt, and its last token as a table."""
    writes, readout = (
        writes_frame(tokens, layers=layers, **kwargs),
        readout_frame(tokens, layers=layers, **kwargs),
    )
    sections = [
        Section(heading="Parts", figure=plots.contributions(readout), caption="Each bar starts at the last."),
        Section(heading="Map", figure=plots.heatmap(readout), caption="Parts by tokens."),
        Section(heading="Growth", figure=plots.norm_growth(writes), caption="Norms on a log axis."),
    ]
    last = readout[readout["position"] == readout["position"].max()]
    table = last[["position", "token", "component", "contribution"]]
    title = "".join(tokens or PROMPT)
    return page(sections, title=title, provenance=PROVENANCE, table=table, closure=CLOSURE)


@pytest.fixture(scope="module")
def plain() -> str:
    return a_page()


@pytest.fixture(scope="module")
def hostile() -> str:
    return a_page(HOSTILE, layers=3, special=(1,))


class Elements(HTMLParser):
    """Every element with its attributes, and the text of each script and style."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.raw: list[str] = []
        self.text: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.raw.append("")

    def handle_data(self, data):
        if self.cdata_elem:
            self.raw[-1] += data
        else:
            self.text.append(data)

    def of(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.found if name == tag]


class TestFile:
    def test_it_names_no_outside_resource(self, plain):
        elements = Elements(plain)
        loaded = [attrs[name] for _, attrs in elements.found for name in ("src", "href") if name in attrs]
        assert loaded == ["data:,"]
        assert "url(" not in elements.raw[0]
        assert "@import" not in elements.raw[0]

    def test_plotly_is_embedded_once(self, plain):
        assert len(re.findall(r"\* plotly\.js v\d", plain)) == 1

    def test_the_policy_allows_its_own_scripts_by_hash_and_no_fetch(self, plain):
        elements = Elements(plain)
        policy = next(meta["content"] for meta in elements.of("meta") if "http-equiv" in meta)
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        scripts = [raw for raw in elements.raw[1:] if not raw.startswith("{")]
        assert set(rules["script-src"].split()) == {digest(script) for script in scripts}
        assert rules["default-src"] == "'none'"
        assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}

    def test_its_data_cannot_close_the_script_element(self):
        source = page([], title="t", provenance={}, table=readout_frame(HOSTILE, layers=1))
        data = next(raw for raw in Elements(source).raw if raw.startswith("{"))
        assert "<" not in data
        tokens = next(column for column in json.loads(data)["tables"][0]["columns"] if column["name"] == "token")
        assert HOSTILE[0] in tokens["texts"]

    def test_no_token_becomes_an_element(self, plain, hostile):
        assert {tag for tag, _ in Elements(hostile).found} == {tag for tag, _ in Elements(plain).found}
        assert not any(name.startswith("on") for _, attrs in Elements(hostile).found for name in attrs)

    def test_it_holds_no_control_or_bidi_character(self, hostile):
        text = "".join(Elements(hostile).text)
        assert not set(text) & {"\x1b", "\u202e", "\u200d"}

    def test_closure_stands_under_the_title_and_the_table(self, plain):
        assert plain.count(CLOSURE) == 2

    def test_it_says_what_made_it(self, plain):
        assert "<dt>model</dt><dd>tiny &lt;1&gt;</dd>" in plain
        assert "<dt>versions</dt><dd>plotly 6</dd>" in plain
        assert "<dt>revision</dt><dd>not recorded</dd>" in plain

    def test_every_figure_has_heading_caption_and_summary(self, plain):
        shown = [attrs for attrs in Elements(plain).of("div") if attrs.get("class") == "plot"]
        assert len(shown) == 3
        assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 40 for attrs in shown)
        assert plain.count("<figcaption>") == 3

    def test_a_title_with_a_lone_surrogate_can_be_written(self, tmp_path):
        text = page([], title="\ud800 \u202e", provenance={})
        assert "⟨U+D800⟩ ⟨U+202E⟩" in write_page(tmp_path / "a.html", text).read_text(encoding="utf-8")

    def test_the_same_input_gives_the_same_bytes(self):
        assert a_page(layers=2) == a_page(layers=2)


def digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


class TestWriting:
    def test_a_failed_write_leaves_the_old_page_and_no_other_file(self, tmp_path):
        target = write_page(tmp_path / "a.html", "old")
        with pytest.raises(UnicodeEncodeError):
            write_page(target, "new \ud800")
        assert target.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [target]

    def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"a file in an existing folder; got .*nowhere"):
            write_page(tmp_path / "nowhere" / "a.html", "x")


HEATMAP = "section:nth-of-type(2) "


@pytest.mark.browser
class TestInABrowser:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [1280, 600])
    def test_hostile_tokens_are_shown_and_do_nothing(self, visit, hostile, width, scheme):
        seen = visit(hostile, width=width, scheme=scheme)
        labels = [text for text, _ in seen.boxes(HEATMAP + ".xaxislayer-above .xtick text")]
        assert labels[2] == "&amp; 2"
        assert labels[1] == "╌</s>╌ 1"
        assert "%{x} 7" in labels
        assert "$x$ 8" in labels
        assert "<b> 9" in labels
        assert "⟨U+202E⟩evil 5" in labels
        assert seen.evaluate("document.querySelectorAll('script').length") == 3

    def test_hover_shows_the_whole_token_and_the_true_value(self, visit):
        tokens = ["a token that is much too long <b>for</b> an axis", "%{x}", "$x$"]
        frame = readout_frame(tokens, layers=3, sinks=())
        frame.loc[frame["position"] == 0, "contribution"] = 1000.5
        figure = plots.heatmap(frame)
        assert figure.layout.coloraxis.cmax <= 1000.5
        seen = visit(page([Section(heading="x", figure=figure, caption="y")], title="t", provenance={}))
        text = seen.hover(0, 0, 2)
        assert "L0.mlp" in text
        assert tokens[0] in text
        assert "1000.5" in text.replace(",", "") or "1001" in text
        assert "%{x} (position 1)" in seen.hover(0, 1, 1)
        assert "$x$ (position 2)" in seen.hover(0, 2, 1)

    @pytest.mark.parametrize("layers", [30, 100])
    @pytest.mark.parametrize("width", [1280, 600])
    def test_every_row_is_labelled_and_no_label_overlaps(self, visit, layers, width):
        seen = visit(a_page(layers=layers), width=width)
        found = seen.boxes(HEATMAP + ".yaxislayer-above .ytick text")
        assert [text for text, _ in found][:3] == ["embed", "L0.attn", "L0.mlp"]
        assert len({text for text, _ in found}) == 2 * layers + 2
        assert overlaps([box for _, box in found]) == 0
        assert all(box["height"] > 8 and box["left"] >= 0 for _, box in found)

    def test_repeated_tokens_are_separate_columns(self, visit):
        seen = visit(a_page([" the", " bank", " the", " the"], layers=3))
        found = seen.boxes(HEATMAP + ".xaxislayer-above .xtick text")
        assert [text for text, _ in found] == ["·the (sink) 0", "·bank 1", "·the 2", "·the 3"]
        lefts = [box["left"] for _, box in found]
        assert all(right - left > 15 for left, right in itertools.pairwise(lefts))

    @pytest.mark.parametrize("width", [1280, 600])
    def test_two_hundred_tokens_scroll_in_their_panel_and_the_row_labels_stay(self, visit, width):
        seen = visit(a_page(PROMPT * 20), width=width)
        assert seen.evaluate("document.documentElement.scrollWidth") <= width
        panel = f"document.querySelector('{HEATMAP}.panel')"
        tokens = [box for _, box in seen.boxes(HEATMAP + ".xaxislayer-above .xtick text")]
        assert overlaps(tokens) == 0
        before = seen.boxes(HEATMAP + ".rows .ytick text")
        seen.evaluate(f"{panel}.scrollLeft = 1000")
        after = seen.boxes(HEATMAP + ".rows .ytick text")
        cells = seen.boxes(HEATMAP + ".plot .ytick text")
        assert len(after) == 62
        for (name, old), (_, new), (own, row) in zip(before, after, cells, strict=True):
            assert name == own
            assert new["left"] == pytest.approx(old["left"], abs=1)
            assert new["top"] == pytest.approx(row["top"], abs=1)  # still beside its cells
            assert row["left"] == pytest.approx(new["left"] - 1000, abs=1)  # which have moved
        assert 0 < after[0][1]["left"] < width

    def test_the_panel_scrolls_with_the_keyboard(self, visit):
        seen = visit(a_page(PROMPT * 20, layers=3), width=600)
        panel = seen.tab.locator(HEATMAP + ".panel")
        panel.focus()
        seen.tab.keyboard.press("ArrowRight")
        seen.until(f"document.querySelector('{HEATMAP}.panel').scrollLeft > 0")

    def test_it_follows_the_readers_theme_and_the_button_overrules_it(self, visit, plain):
        seen = visit(plain, scheme="dark")
        button = seen.tab.get_by_role("button", name="Dark theme")
        assert colours(seen) == {rgb(theme.DARK.background)}
        assert button.get_attribute("aria-pressed") == "true"
        dark_cells = seen.evaluate("document.querySelector('.plot .hm image').href.baseVal")

        seen.tab.emulate_media(color_scheme="light")
        seen.until("document.documentElement.dataset.theme === 'light'")
        settled(seen)
        assert colours(seen) == {rgb(theme.LIGHT.background)}
        assert seen.evaluate("document.querySelector('.plot .hm image').href.baseVal") != dark_cells

        button.focus()
        seen.tab.keyboard.press("Enter")
        settled(seen)
        assert button.get_attribute("aria-pressed") == "true"
        assert colours(seen) == {rgb(theme.DARK.background)}
        assert seen.evaluate("document.querySelector('.plot .hm image').href.baseVal") == dark_cells

    def test_the_table_can_be_saved_raw_and_whole(self, visit, hostile):
        seen = visit(hostile)
        saved = {}
        for name in ("CSV", "JSON"):
            with seen.tab.expect_download() as download:
                seen.tab.get_by_role("button", name=f"Save {name}").click()
            saved[name] = Path(download.value.path()).read_text(encoding="utf-8")
        rows = json.loads(saved["JSON"])
        assert len(rows) == 8
        assert {row["token"] for row in rows} == {HOSTILE[-1]}
        csv = pd.read_csv(io.StringIO(saved["CSV"]))
        assert list(csv["component"]) == [row["component"] for row in rows]

    def test_printing_is_light_and_fits_the_paper(self, visit):
        seen = visit(a_page(PROMPT * 20, layers=3), scheme="dark")
        seen.evaluate("dispatchEvent(new Event('beforeprint'))")
        settled(seen)
        assert colours(seen) == {rgb(theme.LIGHT.background)}
        assert max(box["width"] for _, box in seen.boxes(".main-svg")) <= 700
        seen.evaluate("dispatchEvent(new Event('afterprint'))")
        settled(seen)
        assert colours(seen) == {rgb(theme.DARK.background)}
        assert max(box["width"] for _, box in seen.boxes(HEATMAP + ".main-svg")) > 4000

    def test_the_policy_stops_what_escaping_might_miss(self, visit, plain):
        """The positive control: put markup in by force and see it do nothing."""
        seen = visit(plain)
        stopped = seen.evaluate(
            """async () => {
                const stopped = [];
                const note = (event) => stopped.push(event.effectiveDirective);
                addEventListener("securitypolicyviolation", note);
                const image = "<img src='data:,' onerror='window.ran = 1'>";
                document.body.insertAdjacentHTML("beforeend", image);
                const script = document.createElement("script");
                script.textContent = "window.ran = 2";
                document.body.append(script);
                await fetch("https://example.org/").catch(() => {});
                await new Promise((done) => setTimeout(done, 200));
                return [window.ran ?? null, stopped.sort()];
            }"""
        )
        assert stopped[0] is None
        assert {"connect-src", "script-src-attr", "script-src-elem"} <= set(stopped[1])
        assert all("Content Security Policy" in fault for fault in seen.faults)
        assert not any(url.startswith("https:") for url in seen.requests)
        seen.faults.clear()


def colours(seen: Visit) -> set[str]:
    """The backgrounds of the page and of its figures."""
    return set(
        seen.evaluate(
            """() => [document.body, ...document.querySelectorAll(".plot .main-svg:first-of-type")].map(
                 (e) => getComputedStyle(e).backgroundColor)"""
        )
    )


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"
