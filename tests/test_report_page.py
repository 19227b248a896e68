"""The report of a study, opened from disk in a real browser: every ablation is in it, and nothing leaves."""

import io
import json
import re

import numpy as np
import pandas as pd
import pytest

from figure_frames import HOSTILE, PROMPT
from page_visit import Visit, browser, overlaps, settled, visit
from streamlens import plots, theme
from streamlens.display import display_token
from streamlens.report import Section, page, responses_of, sentences, study_page
from streamlens.report.compact import pooled, rounded
from streamlens.report.study import SECTIONS
from streamlens.report.told import Told, saved
from study_frames import small_study

__all__ = ["browser", "visit"]  # fixtures

LAYERS = 4


@pytest.fixture(scope="module")
def study():
    return small_study(layers=LAYERS)


@pytest.fixture(scope="module")
def report(study) -> str:
    return study_page(study)


def data_of(source: str) -> dict:
    found = re.search(r'id="streamlens-data">(.*?)</script>', source, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def put(value, pool):
    """What the page's script does with references into the pool."""
    if isinstance(value, list):
        return [put(item, pool) for item in value]
    if isinstance(value, dict):
        return pool[value["$"]] if "$" in value else {key: put(item, pool) for key, item in value.items()}
    return value


class TestFile:
    def test_thirty_layers_and_twelve_tokens_fit_five_and_a_half_megabytes(self):
        source = study_page(small_study([*PROMPT, " of", " the"], layers=30))
        assert len(data_of(source)["switches"][0]["choices"]) == 60
        assert len(source.encode()) <= 5_500_000

    def test_every_ablation_is_in_it_with_its_own_figures(self, study, report):
        data = data_of(report)
        switch = put(data["switches"][0], data["pool"])
        effects, changes = study.frames["effects"], study.frames["changes"]
        assert len(switch["choices"]) == len(effects) == 2 * LAYERS
        for choice, number in zip(switch["choices"], reversed(range(len(effects))), strict=True):
            row = effects.iloc[[number]]
            assert choice["says"] == sentences.switched(row.iloc[0], "logits")
            variant = str(row["variant"].iloc[0])
            drawn = plots.downstream(changes[changes["variant"] == variant], variant=variant)
            bars = {trace.get("name"): trace for trace in choice["figures"][1]["data"]}
            for trace in drawn.data:
                if trace.type == "bar":
                    assert bars[trace.name]["x"] == pytest.approx(list(trace.x), rel=1e-4)
                    assert bars[trace.name]["y"] == list(trace.y)

    def test_it_starts_with_the_strongest(self, study, report):
        data = data_of(report)
        switch = put(data["switches"][0], data["pool"])
        strongest = study.frames["effects"]["total"].abs().idxmax()
        assert str(study.frames["effects"]["variant"][strongest]) in switch["choices"][switch["start"]]["says"]

    def test_sections_can_be_chosen_and_their_links_lead_to_them(self, study, report):
        assert report.count("<section ") == len(SECTIONS)
        ids = set(re.findall(r' id="(section-\d+)"', report))
        assert set(re.findall(r'href="#(section-\d+)"', report)) == ids
        two = study_page(study, sections=["parts", "tables"])
        assert re.findall(r"<h2 id=[^>]*>([^<]*)", two) == ["What each part contributes", "Tables"]

    def test_a_study_without_a_reader_shows_the_output(self):
        source = study_page(small_study(layers=2, reader=False))
        assert "the likeliest next token stays" in source
        assert "<dt>no readout</dt><dd>Nothing is read.</dd>" in source
        assert "Who answers whom" not in source

    def test_it_says_what_each_figure_shows_in_numbers_of_the_frames(self, study, report):
        assert "logit( river) - logit( money) is +3.742 logits, the sum of 10 parts" in report
        assert "It adds up." in report
        assert "It is the likeliest first after L0.mlp and stays so from L3.attn on." in report

    def test_no_token_becomes_an_element(self, report):
        hostile = study_page(small_study(HOSTILE, layers=1, special=(1,)))
        tags = [
            set(re.findall(r"<([a-z0-9]+)", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)))
            for text in (hostile, report)
        ]
        assert tags[0] == tags[1]


class TestPool:
    def test_what_is_repeated_is_stored_once_and_comes_back(self):
        values = [{"a": ["a long text that is repeated"] * 2, "b": list(range(20)), "c": n} for n in range(5)]
        pool, short = pooled(values)
        assert put(short, pool) == values
        assert json.dumps(short).count("repeated") == 0
        assert len(json.dumps([pool, short])) < len(json.dumps(values)) / 2

    def test_what_stands_once_or_is_short_stays(self):
        values = [{"only": list(range(30))}, {"x": [1, 2]}, {"x": [1, 2]}]
        assert pooled(values) == ([], values)

    def test_numbers_keep_five_digits(self):
        assert rounded({"a": [1.23456789, 3, None, "1.23456789", True]}) == {"a": [1.2346, 3, None, "1.23456789", True]}


def pressed(seen: Visit) -> list[str]:
    return seen.evaluate(
        """() => [...document.querySelectorAll(".branches [aria-pressed=true] span")].map((e) => e.textContent)"""
    )


def handed_out(seen: Visit, table: int, kind: str) -> str:
    """What a button would save: browsers stop a page that saves many files, so the file is taken from its hands."""
    return seen.evaluate(
        """async ([table, kind]) => {
            const blobs = [], make = URL.createObjectURL, click = HTMLAnchorElement.prototype.click;
            URL.createObjectURL = (blob) => (blobs.push(blob), "data:,");
            HTMLAnchorElement.prototype.click = () => {};
            document.querySelector(`button[data-table="${table}"][data-kind=${kind}]`).click();
            [URL.createObjectURL, HTMLAnchorElement.prototype.click] = [make, click];
            return await blobs[0].text();
        }""",
        [table, kind],
    )


@pytest.mark.browser
class TestInABrowser:
    def test_a_branch_is_switched_within_300_ms_on_thirty_layers(self, visit):
        seen = visit(study_page(small_study(layers=30), sections=["ablations"]))
        took = []
        for number in (3, 20, 45, 5, 33):
            seen.evaluate(f"document.querySelectorAll('.branches button')[{number}].click()")
            seen.until(f"document.querySelector('.switch').dataset.shown === '{number}'")
            took.append(float(seen.evaluate("document.querySelector('.switch').dataset.took")))
        assert min(took) < 300  # the number; the best of five, since the machine is shared

    def test_the_first_figure_is_there_within_five_seconds(self, visit):
        source, took = study_page(small_study(layers=30), sections=["parts", "map", "ablations"]), []
        while len(took) < 3 and min(took, default=9e9) >= 5000:  # the best of three, since the machine is shared
            took.append(float(visit(source).evaluate("document.documentElement.dataset.first")))
        assert min(took) < 5000

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_choosing_a_branch_changes_sentence_figures_and_summary(self, visit, study, report, scheme):
        seen = visit(report, scheme=scheme)
        row = study.frames["effects"].iloc[2]  # L1.attn
        before = seen.evaluate("document.querySelector('.answer .plot').getAttribute('aria-label')")
        seen.tab.get_by_role("toolbar", name="Switch off").get_by_role("button", name="L1.attn").click()
        seen.until("document.querySelector('.switch').dataset.shown === '5'")
        assert pressed(seen) == ["L1.attn"]
        assert seen.tab.locator(".headline").text_content() == sentences.switched(row, "logits")
        assert seen.evaluate("document.querySelector('.answer .plot').getAttribute('aria-label')") != before
        title = seen.tab.locator(".answer .title").nth(1).text_content() or ""
        assert title.startswith("L1.attn@9 edited")
        still = seen.evaluate("document.querySelectorAll('.answer .plot')[1].data.at(-1).y")
        assert still == [0, 1, 2]  # embed, L0.attn, L0.mlp
        background = seen.evaluate("getComputedStyle(document.querySelector('.answer .main-svg')).backgroundColor")
        assert background == rgb(theme.palette(scheme == "dark").background)

    def test_pressing_again_switches_everything_on(self, visit, report):
        seen = visit(report)
        seen.tab.locator(".branches button[aria-pressed=true]").click()
        assert pressed(seen) == []
        assert "With every branch on" in (seen.tab.locator(".headline").text_content() or "")
        assert not seen.tab.locator(".answer .plot").first.is_visible()
        seen.tab.locator(".branches button").first.click()
        seen.until("document.querySelector('.switch').dataset.shown === '0'")
        assert seen.tab.locator(".answer .plot").first.is_visible()
        assert min(box["width"] for _, box in seen.boxes(".answer .main-svg")) > 300

    def test_the_keyboard_is_enough(self, visit, report):
        seen = visit(report)
        place = "document.activeElement.closest('.branches') !== null"
        for _ in range(60):
            seen.tab.keyboard.press("Tab")
            if seen.evaluate(f"() => {place}"):
                break
        first = seen.evaluate("document.activeElement.textContent")
        assert seen.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        seen.tab.keyboard.press("Home")
        seen.tab.keyboard.press("ArrowDown")
        assert seen.evaluate("document.activeElement.textContent") != first
        assert seen.evaluate("document.activeElement.matches(':focus-visible')")
        seen.tab.keyboard.press("Enter")
        seen.until("document.querySelector('.switch').dataset.shown === '1'")
        assert pressed(seen) == [f"L{LAYERS - 1}.attn"]
        seen.tab.keyboard.press("Tab")  # one stop for the whole column
        assert not seen.evaluate(f"() => {place}")

    def test_what_is_saved_is_the_frame(self, visit):
        study = small_study(['"quoted", and\nbroken', "nan", "", "\u202eback", " 1"], layers=2)
        seen = visit(study_page(study))
        tables = saved(Told(study))
        assert len(tables) == 7
        for number, (_, frame) in enumerate(tables):
            got = {kind: handed_out(seen, number, kind) for kind in ("csv", "json")}
            csv = pd.read_csv(io.StringIO(got["csv"]), keep_default_na=False, dtype=str)
            rows = pd.DataFrame(json.loads(got["json"]))
            assert list(csv.columns) == list(rows.columns) == list(frame.columns)
            for name in frame.columns:
                if pd.api.types.is_float_dtype(frame[name]):
                    for read in (pd.to_numeric(csv[name]), rows[name]):
                        assert np.array_equal(read.astype(frame[name].dtype), frame[name], equal_nan=True)
                else:
                    expected = [str(value) for value in frame[name]]
                    assert list(csv[name]) == expected
                    assert [str(value) for value in rows[name]] == expected

    @pytest.mark.parametrize("width", [1280, 420])
    def test_hostile_tokens_are_legible_and_do_nothing(self, visit, width):
        seen = visit(study_page(small_study(HOSTILE, layers=1, special=(1,))), width=width)
        chips = [text for text, _ in seen.boxes(".chip span")]
        expected = [display_token(token, special=place == 1) for place, token in enumerate(HOSTILE)]
        assert chips == expected
        assert "⟨U+202E⟩evil" in chips
        assert seen.evaluate("document.querySelectorAll('script').length") == 3
        assert seen.evaluate("document.documentElement.scrollWidth") <= width

    @pytest.mark.parametrize("width", [1280, 420])
    def test_two_hundred_tokens_overlap_nowhere(self, visit, width):
        study = small_study(PROMPT * 20, layers=2)
        seen = visit(study_page(study, sections=["tokens", "map", "lens", "sources", "ablations"]), width=width)
        assert seen.evaluate("document.documentElement.scrollWidth") <= width
        chips = [box for _, box in seen.boxes(".chip")]
        assert len(chips) == 200
        assert overlaps(chips) == 0
        for section in (2, 3, 4):
            ticks = seen.boxes(f"section:nth-of-type({section}) .plot .xaxislayer-above .xtick text")
            assert len({text for text, _ in ticks}) == 200
            assert overlaps([box for _, box in ticks]) == 0

    @pytest.mark.parametrize("layers", [30, 100])
    @pytest.mark.parametrize("width", [1280, 420])
    def test_every_row_is_labelled_and_nothing_overlaps(self, visit, layers, width):
        study = small_study(layers=layers)
        changes = study.frames["changes"]
        variant = f"L{layers // 2}.attn@9"
        drawn = {
            "downstream": plots.downstream(changes[changes["variant"] == variant], variant=variant),
            "visibility": plots.visibility(study.frames["visibility"]),
            "lens": plots.lens(study.frames["lens"]),
            "responses": plots.responses(responses_of(study)),
        }
        sections = [Section(heading=name, figure=figure, caption="x") for name, figure in drawn.items()]
        seen = visit(page(sections, title="t", provenance={}), width=width)
        for number, name in enumerate(drawn, 1):
            ticks = seen.boxes(f"section:nth-of-type({number}) .plot .yaxislayer-above .ytick text")
            assert len({text for text, _ in ticks}) == 2 * layers + (name != "responses")
            assert overlaps([box for _, box in ticks]) == 0
        titles = [box for _, box in seen.boxes(".title p")]
        assert all(box["right"] <= width for box in titles)
        assert overlaps(titles) == 0

    def test_printing_leaves_the_buttons_out_and_is_light(self, visit, report):
        seen = visit(report, scheme="dark")
        seen.tab.emulate_media(media="print")
        seen.evaluate("dispatchEvent(new Event('beforeprint'))")
        settled(seen)
        assert not seen.tab.locator(".branches").is_visible()
        assert seen.tab.locator(".headline").is_visible()
        assert max(box["width"] for _, box in seen.boxes(".main-svg")) <= 700


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"
