"""The explorer from end to end, on the default model, in Chromium."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import pandas as pd
import pytest

import streamlens
from explorer_tabs import settled

pytestmark = [pytest.mark.browser, pytest.mark.model]
HOSTILE = "<img src=x onerror=alert(1)> </s> \u202eevil %{x} $x$ &amp; <b>"


def number(page, name: str) -> float:
    """A number of the table of effects, in full."""
    return float(page.get_attribute(f"#effect-{name}", "title"))


def switch(page, label: str, state: str = "on"):
    return page.get_by_role("button", name=f"{label}: {state}", exact=True)


@pytest.fixture(scope="module")
def own(default_model, bank: str):
    """The library's own answer to switching L9.attn off at “ bank”."""
    reader = streamlens.Reader.logit_diff(default_model, " river", " money")
    return streamlens.ablate(default_model, bank, "L9.attn@bank", readers=reader, position="bank").effects().iloc[0]


def test_from_typing_the_sentence_to_the_librarys_numbers(visit, bank: str, own, tmp_path) -> None:
    page = visit("?prompt=nothing+yet").page
    settled(page)
    page.fill("#prompt", bank)
    page.fill("#for", " river")
    page.fill("#against", " money")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("button", name="·bank").click()
    switch(page, "L9.attn").click()
    page.wait_for_selector("#effect-total")
    settled(page)
    for name in ("direct", "indirect", "rescale", "total", "observed"):
        assert number(page, name) == pytest.approx(float(own[name]), abs=1e-4)
    assert float(own["total"]) == pytest.approx(0.154, abs=0.001)
    assert page.inner_text("#effect-total") == "+0.154"
    assert "The parts sum to it within" in page.inner_text("#effects-table")
    assert switch(page, "L9.attn", "off").get_attribute("aria-pressed") == "false"
    assert page.locator("#guesses tbody tr").count() == 10

    page.wait_for_selector('[aria-label^="L9.attn@9 edited; change of logit"]')
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save CSV").click()
    rows = pd.read_csv(Path(saved.value.path()))
    assert len(rows) == 61
    assert rows.loc[rows["status"] == "edit", "component"].tolist() == ["L9.attn"]
    assert "streamlens.ablate(model, clean, ['L9.attn@9'], readers=reader, position=9)" in page.text_content("#python")


def test_half_undo_and_reset(visit) -> None:
    page = visit().page
    settled(page)
    switch(page, "L9.attn").click()
    switch(page, "L9.attn", "off").click()  # faster than the server: the last press counts
    settled(page)
    page.wait_for_selector("#effect-total")
    assert page.evaluate("new URLSearchParams(location.search).get('edits')") == "L9.attn=0.5"
    assert switch(page, "L9.attn", "half").get_attribute("aria-pressed") == "mixed"
    half = number(page, "direct")
    page.get_by_role("button", name="Undo").click()
    settled(page)
    assert switch(page, "L9.attn", "off").count() == 1
    assert number(page, "direct") == pytest.approx(2 * half, rel=1e-3)
    page.get_by_role("button", name="Reset", exact=True).click()
    settled(page)
    assert switch(page, "L9.attn").count() == 1
    assert page.locator("#effect-total").count() == 0


def test_it_is_marked_as_busy_until_the_answer_is_there(visit) -> None:
    page = visit().page
    settled(page)
    marks = page.evaluate(
        """() => new Promise((done) => {
            const main = document.querySelector("#explore"), marks = [];
            new MutationObserver(() => {
                marks.push([main.getAttribute("aria-busy"), document.querySelector("#status").textContent]);
                if (marks.at(-1)[0] === "false") done(marks);
            }).observe(main, { attributes: true, attributeFilter: ["aria-busy"] });
            document.querySelector("[data-act='write'][data-label='L9.attn']").click();
        })"""
    )
    assert marks == [["true", "Computing …"], ["false", ""]]
    assert page.locator("#effect-total").count() == 1


def test_what_is_being_typed_survives_a_press(visit, bank: str) -> None:
    page = visit().page
    settled(page)
    page.fill("#prompt", "another sentence")
    switch(page, "L9.attn").click()
    page.wait_for_selector("#effect-total")
    settled(page)
    assert page.input_value("#prompt") == "another sentence"
    assert bank in page.text_content("#python")


def test_a_head_behind_its_attention(visit, default_model, bank: str) -> None:
    page = visit().page
    settled(page)
    opener = page.get_by_role("button", name="9 heads of L9.attn")
    assert opener.get_attribute("aria-expanded") == "false"
    assert not switch(page, "L9H2").is_visible()
    opener.click()
    switch(page, "L9H2").click()
    page.wait_for_selector("#effect-total")
    settled(page)
    reader = streamlens.Reader.logit_diff(default_model, " river", " money")
    own = streamlens.ablate(default_model, bank, "L9H2@bank", readers=reader, position="bank").effects()
    assert number(page, "total") == pytest.approx(float(own["total"].iloc[0]), abs=1e-4)
    page.reload()
    page.wait_for_selector("#effect-total")
    assert switch(page, "L9H2", "off").is_visible()


def test_two_tabs_are_apart_and_a_reload_restores(visit) -> None:
    tab = visit()
    first, second = tab.page, tab.another("")
    settled(first)
    settled(second)
    switch(first, "L9.attn").click()
    first.wait_for_selector("#effect-total")
    switch(second, "L20.mlp").click()
    second.wait_for_selector("#effect-total")
    settled(first)
    settled(second)
    assert switch(second, "L9.attn").count() == 1
    assert switch(first, "L20.mlp").count() == 1
    before = number(first, "total")
    assert number(second, "total") != before
    first.reload()
    first.wait_for_selector("#effect-total")
    assert number(first, "total") == before
    assert switch(first, "L9.attn", "off").count() == 1
    assert first.input_value("#against") == " money"
    first.go_back()
    settled(first)
    assert switch(first, "L9.attn").count() == 1


def test_with_the_keyboard_alone(visit, own) -> None:
    page = visit().page
    settled(page)
    keys = page.keyboard
    page.focus("#prompt")
    keys.press("End")
    keys.type(" again")
    keys.press("Control+Enter")
    page.wait_for_selector("#strip button:nth-of-type(11)")
    settled(page)
    for _ in range(2):
        keys.press("Tab")  # to Run, to the first token
    assert page.evaluate("document.activeElement.dataset.act") == "token"
    for _ in range(9):
        keys.press("ArrowRight")
    keys.press("Enter")
    settled(page)
    assert page.evaluate("document.activeElement.textContent") == "·bank9"
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    for _ in range(30):
        keys.press("Tab")
        if page.evaluate("document.activeElement.dataset.act") == "write":
            break
    while page.evaluate("document.activeElement.dataset.label") != "L9.attn":
        keys.press("ArrowDown")
    keys.press("Space")
    page.wait_for_selector("#effect-total")
    settled(page)
    # nothing after “ bank” can reach it
    assert number(page, "total") == pytest.approx(float(own["total"]), abs=1e-4)


def test_a_click_on_a_bar_keeps_its_numbers(visit) -> None:
    page = visit("?" + urlencode({"prompt": "She sat by the river bank", "edits": "L9.attn", "for": " of"})).page
    page.wait_for_selector("#effect-total")
    graph = page.locator(".figure", has_text="How every write changed").locator(".js-plotly-plot")
    graph.locator(".bars .point").first.wait_for(state="attached")
    graph.scroll_into_view_if_needed()
    x, y = graph.evaluate(
        """(plot) => {
            const row = plot.layout.yaxis.ticktext.indexOf("L29.mlp");
            const trace = plot.data.find((t) => t.type === "bar" && t.y.includes(row));
            const at = trace.y.indexOf(row);
            const { xaxis, yaxis } = plot._fullLayout, box = plot.getBoundingClientRect();
            window.scrollBy(0, box.y - 100);
            const seen = plot.getBoundingClientRect();
            const place = [xaxis._offset + xaxis.l2p(trace.x[at] / 2), yaxis._offset + yaxis.l2p(trace.y[at])];
            return [seen.x + place[0], seen.y + place[1]];
        }"""
    )
    page.mouse.move(x, y)
    page.mouse.click(x, y)
    page.wait_for_selector("#pinned table")
    assert page.inner_text("#pinned caption").startswith("L29.mlp at ·bank (position 5): response")
    assert "norm of its change" in page.inner_text("#pinned")
    assert page.input_value("#pin") == "L29.mlp"


def test_a_second_sentence_is_compared(visit, default_model, bank: str) -> None:
    other = "She checked her savings account balance at the bank"
    page = visit("?" + urlencode({"prompt": bank, "for": " river", "against": " money", "second": other})).page
    page.wait_for_selector('[aria-label*="A minus B"]')
    reader = streamlens.Reader.logit_diff(default_model, " river", " money")
    own = streamlens.compare(default_model, bank, other, token=" bank", readers=reader)
    drawn = page.locator('[aria-label*="A minus B"]').get_attribute("aria-label")
    said = float(re.search(r"sum to ([+−]\d+\.\d+)", drawn)[1].replace("−", "-"))
    assert said == pytest.approx(float(own.readings[0].total[0]), abs=0.001)
    page.fill("#second", "nothing of that kind")
    page.press("#second", "Enter")
    page.wait_for_selector("#comparison-error:not(:empty)")
    assert "Two contexts are compared at a token of each" in page.inner_text("#comparison-error")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"for": "riverbankish"}, "A reader's token is one token"),
        ({"prompt": "a " * 300}, "A prompt here has up to 200 tokens, to stay quick; this one has"),
        ({"edits": "L99.attn"}, "No write is called 'L99.attn' here"),
        ({"pos": "77"}, "77"),
    ],
)
def test_an_error_is_a_sentence_in_its_place(visit, change: dict[str, str], said: str) -> None:
    page = visit("?" + urlencode({"prompt": "the bank", **change})).page
    page.wait_for_selector("#error:not(:empty)")
    assert said in page.inner_text("#error")
    page.fill("#prompt", "the other bank")
    page.fill("#for", "")
    page.get_by_role("button", name="Run").click()
    if "edits" in change:
        page.get_by_role("button", name="Reset", exact=True).click()
    page.wait_for_selector("#guesses tbody tr")
    assert page.inner_text("#error") == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_hostile_tokens_are_legible_and_inert(visit, scheme: str, width: int) -> None:
    query = {"prompt": HOSTILE, "edits": "L9.attn,L2.mlp=0.5", "second": HOSTILE + " bank", "pin": "<b>"}
    page = visit("?" + urlencode(query), width=width, scheme=scheme).page
    page.wait_for_selector("#effect-total")
    page.wait_for_selector(".js-plotly-plot .gtitle")
    texts = page.locator("#strip .text").all_inner_texts()
    assert "⟨E2⟩⟨80⟩⟨AE⟩" in "".join(texts)  # the override is three tokens of this tokenizer
    assert "</s>" in "".join(texts)
    assert "\u202e" not in page.inner_text("#explore")
    assert page.locator("#page img, #page b:not(.gtitle *)").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = page.evaluate("[...document.querySelectorAll('.gtitle')].map((e) => e.textContent).join(' ')")
    assert "<img src=x onerror=alert(1)>" in shown.replace("\u2068", "").replace("\u2069", "")


def test_the_theme_follows_the_reader_and_the_button_overrules_it(visit) -> None:
    page = visit(scheme="dark").page
    settled(page)
    page.wait_for_selector(".js-plotly-plot .gtitle")
    button = page.get_by_role("button", name="Dark theme")
    assert button.get_attribute("aria-pressed") == "true"
    backgrounds = """() => {
        const figures = document.querySelectorAll('.figure:not([hidden]) .main-svg:first-of-type');
        return [document.body, ...figures].map((e) => getComputedStyle(e).backgroundColor);
    }"""
    assert set(page.evaluate(backgrounds)) == {"rgb(21, 24, 29)"}
    button.click()
    page.wait_for_selector('html[data-theme="light"]')
    page.wait_for_timeout(500)
    assert set(page.evaluate(backgrounds)) == {"rgb(255, 255, 255)"}
    page.reload()
    page.wait_for_selector('html[data-theme="light"]')


def test_the_policy_stops_what_escaping_might_miss(visit) -> None:
    """The positive control: put markup in by force and see it do nothing."""
    tab = visit()
    settled(tab.page)
    stopped = tab.page.evaluate(
        """async () => {
            const stopped = [];
            addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
            document.body.insertAdjacentHTML("beforeend", "<img src='data:,' onerror='window.ran = 1'>");
            const script = document.createElement("script");
            script.textContent = "window.ran = 2";
            document.body.append(script);
            await fetch("https://example.org/").catch(() => {});
            await new Promise((done) => setTimeout(done, 300));
            return [window.ran ?? null, stopped.sort()];
        }"""
    )
    assert stopped[0] is None
    assert {"connect-src", "script-src-attr", "script-src-elem"} <= set(stopped[1])
    assert all("Content Security Policy" in fault for fault in tab.faults)
    tab.faults.clear()
    tab.outside.clear()


def test_another_page_and_another_name_are_turned_away(explorer: str) -> None:
    data = json.dumps({"output": "request.data"}).encode()
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        asked = urllib.request.Request(
            explorer + "_dash-update-component", data, {"Content-Type": "application/json", **headers}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked)
        assert refused.value.code == 403
        refused.value.close()


class TestLab:
    def test_the_second_branch_reads_what_the_first_left(self, visit) -> None:
        page = visit("?tab=lab").page
        page.wait_for_selector("#lab-branches-says >> text=ends at (-1, 3)")
        page.get_by_role("button", name="branch one").click()
        page.wait_for_selector("#lab-branches-says >> text=ends at (1, 1)")
        assert "Branch two reads (2, 1)" in page.inner_text("#lab-branches-says")
        assert page.get_by_role("button", name="branch one").get_attribute("aria-pressed") == "false"
        arrow = """() => { for (const plot of document.querySelectorAll('.js-plotly-plot')) {
            const found = plot.data.find((t) => t.name === 'branch two');
            if (found) return [found.x[0], found.y[0]];
        } }"""
        assert page.evaluate(arrow) == [2, 1]

    def test_a_prediction_is_asked_for_before_h_is_one(self, visit) -> None:
        page = visit("?tab=lab").page
        page.wait_for_selector("#lab-euler-says p")
        slider = page.get_by_label("step size h")
        slider.fill("0.75")
        page.wait_for_selector("#lab-euler-says >> text=Step 16: 1.53e-5")
        assert page.locator("#lab-question").is_hidden()
        slider.fill("1.2")
        page.wait_for_selector("#lab-question:not([hidden])")
        assert "grows" not in page.inner_text("#lab-euler-says")
        page.get_by_role("button", name="decays").click()
        page.wait_for_selector("#lab-euler-says >> text=It grows.")
        assert "You expected that it decays: it does not." in page.inner_text("#lab-euler-says")
        assert page.locator("#lab-question").is_hidden()

    def test_the_pixel_under_the_pointer(self, visit) -> None:
        page = visit("?tab=lab").page
        page.wait_for_selector("#lab-pixel >> text=Row 0, column 0: 0.388 + 0.512 = 0.900")
        page.get_by_label("column =").fill("1")
        page.wait_for_selector("#lab-pixel >> text=0.541 − 0.441 = 0.100")
        graph = page.locator(".figure", has_text="Input, signed correction, result").locator(".js-plotly-plot")
        graph.scroll_into_view_if_needed()
        graph.locator(".hm").first.wait_for(state="attached")
        box = graph.locator(".subplot.xy .hm image, .subplot.xy .plot").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.83, box["y"] + box["height"] / 2)
        page.wait_for_selector("#lab-pixel >> text=column 2: 0.100 + 0.000")

    def test_weights_move_the_head(self, visit) -> None:
        page = visit("?tab=lab").page
        page.wait_for_selector("#lab-attention-says >> text=(2, 1) becomes (0.5, 3)")
        page.get_by_label("W_Q[1,1]").fill("0")
        page.wait_for_selector("#lab-attention-table >> text=0.333")
        page.get_by_role("button", name="As on paper").click()
        page.wait_for_selector("#lab-attention-says >> text=(2, 1) becomes (0.5, 3)")

    @pytest.mark.parametrize("width", [1400, 420])
    def test_nothing_is_wider_than_the_window(self, visit, width: int) -> None:
        page = visit("?tab=lab", width=width, scheme="dark").page
        page.wait_for_selector("#lab-stack-says p")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
