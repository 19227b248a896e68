"""Figures are functions of frames: what they draw adds up, keeps its columns apart and says what it is."""

import html
import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest

from figure_frames import HOSTILE, PROMPT, READER, readout_frame, writes_frame
from streamlens import plots, theme
from streamlens.errors import InputError


def bars_of(figure) -> list[tuple[str, float, float]]:
    """(label, base, size) from the top down."""
    labels = figure.layout.yaxis.ticktext
    found = [(y, base, x) for bar in figure.data for y, base, x in zip(bar.y, bar.base, bar.x, strict=True)]
    return [(labels[y], base, x) for y, base, x in sorted(found)]


def title_of(figure) -> str:
    """The title as one line of text."""
    return html.unescape(re.sub(r"<[^>]*>", "", figure.layout.title.text.replace("<br>", " ")))


def grid_of(figure) -> np.ndarray:
    return np.array(figure.data[0].z, dtype=float)


@pytest.mark.parametrize(("name", "frame"), [("writes", writes_frame()), ("readout", readout_frame())])
def test_the_frames_of_these_tests_have_the_committed_schema(name, frame):
    from streamlens.frames import SCHEMAS

    assert {column: str(kind) for column, kind in frame.dtypes.items()} == {
        column: kind for column, (kind, _) in SCHEMAS[name].items()
    }


class TestContributions:
    def test_each_bar_starts_where_the_last_one_ended_and_they_end_at_the_total(self):
        *parts, total = bars_of(plots.contributions(readout_frame()))
        assert parts[0][1] == 0
        for (_, base, size), (_, following, _) in itertools.pairwise(parts):
            assert following == pytest.approx(base + size)
        assert parts[-1][1] + parts[-1][2] == pytest.approx(total[2])
        assert total == ("<b>total</b>", 0.0, pytest.approx(3.742, abs=1e-4))

    def test_the_largest_come_first_and_the_rest_is_one_bar(self):
        frame = readout_frame()
        labels = [label for label, _, _ in bars_of(plots.contributions(frame, top=5))]
        last = frame[frame["position"] == 9].set_index("component")["contribution"]
        largest = last.abs().sort_values(ascending=False).index[:5]
        assert labels == [*largest, "other (57)", "<b>total</b>"]

    def test_no_other_bar_when_all_have_their_own(self):
        figure = plots.contributions(readout_frame(layers=2), top=6)
        assert not any("other" in label for label in figure.layout.yaxis.ticktext)

    def test_signs_have_their_colours_and_words(self):
        figure = plots.contributions(readout_frame())
        colours = dict(zip(("adds", "subtracts"), theme.SIGN_COLOURS["RdBu"], strict=True))
        for bar in figure.data[:-1]:
            assert bar.marker.color == colours[bar.name]
            assert all((x >= 0) == (bar.name == "adds") for x in bar.x)

    def test_the_title_states_prompt_token_reader_unit_and_closure(self):
        title = title_of(plots.contributions(readout_frame()))
        for said in (
            READER,
            "+3.742 logits",
            "·bank (position 9)",
            "After crossing",
            "the model's own value within 4e-06",
            "3.1e-07",
            "tiny-model",
        ):
            assert said in title

    def test_a_frame_without_some_parts_claims_no_model_value(self):
        frame = readout_frame()
        title = title_of(plots.contributions(frame[frame["kind"] == "mlp"]))
        assert "model's own value" not in title
        assert "32 more parts are not in this frame" in title

    def test_a_position_may_be_counted_from_the_end(self):
        frame = readout_frame()
        assert "·the (position 8)" in title_of(plots.contributions(frame, position=-2))
        assert plots.contributions(frame, position=8) == plots.contributions(frame, position=-2)

    @pytest.mark.parametrize(
        ("kwargs", "text"),
        [
            ({"position": 10}, "position must be one this frame holds, 0 to 9; got 10"),
            ({"position": -11}, "got -11"),
            ({"top": 0}, "at least 1; got 0"),
            ({"prompt_id": 3}, "this frame holds 0, and got 3"),
            ({"reader": "logit( x)"}, r"holds 'logit\( river\) - logit\( money\)', and got 'logit\( x\)'"),
            ({"palette": "RdGn"}, "palette is one of RdBu, PuOr; got 'RdGn'"),
        ],
    )
    def test_a_wrong_choice_is_refused_with_the_right_ones(self, kwargs, text):
        with pytest.raises(InputError, match=text):
            plots.contributions(readout_frame(), **kwargs)

    def test_a_choice_between_several_is_not_guessed(self):
        one = readout_frame()
        two = pd.concat([one, one.assign(prompt_id=1)], ignore_index=True)
        with pytest.raises(InputError, match=r"holds 0, 1, and none was named. Pass prompt_id="):
            plots.contributions(two)
        assert plots.contributions(two, prompt_id=1).data

    def test_a_ledgers_frame_is_sent_back(self):
        with pytest.raises(InputError, match="draws the column 'contribution'"):
            plots.contributions(writes_frame())

    def test_it_needs_no_attrs(self):
        frame = readout_frame()
        frame.attrs = {}
        title = title_of(plots.contributions(frame))
        assert "After crossing the river" in title
        assert "the bars sum to the total." in title

    def test_an_all_zero_readout_is_drawn(self):
        frame = readout_frame().assign(contribution=np.float32(0))
        assert bars_of(plots.contributions(frame))[-1][2] == 0


class TestHeatmap:
    @pytest.mark.parametrize("layers", [30, 100])
    def test_every_row_is_labelled_in_stream_order_from_the_bottom(self, layers):
        axis = plots.heatmap(writes_frame(layers=layers)).layout.yaxis
        assert axis.ticktext[:3] == ("embed", "L0.attn", "L0.mlp")
        assert axis.ticktext[-1] == "rounding"
        assert axis.tickvals == tuple(range(2 * layers + 2))
        assert axis.range[0] < axis.range[1]

    def test_its_height_grows_with_rows_and_its_width_with_tokens(self):
        heights = [plots.heatmap(writes_frame(layers=n)).layout.height for n in (30, 100)]
        assert heights[1] - heights[0] == 140 * 15
        wide = plots.heatmap(writes_frame(PROMPT * 20, layers=2))
        assert wide.layout.width == wide.layout.meta["min_width"] >= 200 * 20

    def test_repeated_tokens_stay_apart(self):
        figure = plots.heatmap(writes_frame([" the", " bank", " the"], sinks=()))
        assert figure.data[0].x == (0, 1, 2)
        assert figure.layout.xaxis.ticktext == ("·the 0", "·bank 1", "·the 2")

    def test_a_cell_holds_the_value_of_its_row_and_column(self):
        frame = readout_frame()
        cells = grid_of(plots.heatmap(frame))
        for _, row in frame.sample(20, random_state=0).iterrows():
            assert cells[row["order"], row["position"]] == pytest.approx(row["contribution"])

    def test_very_many_tokens_are_all_drawn_and_every_nth_labelled(self):
        figure = plots.heatmap(writes_frame(PROMPT * 120, layers=1, sinks=(0, 7)))
        assert grid_of(figure).shape[1] == 1200
        assert figure.layout.xaxis.tickvals[:5] == (0, 3, 6, 7, 9)

    def test_limits_are_symmetric_and_no_sink_sets_them(self):
        axis = plots.heatmap(readout_frame()).layout.coloraxis
        assert axis.cmin == -axis.cmax
        without = readout_frame()
        without = without[~without["sink"]]
        assert axis.cmax == pytest.approx(np.percentile(without["contribution"].abs(), 98))

    def test_clipped_cells_are_counted_and_keep_their_value(self):
        figure = plots.heatmap(readout_frame())
        cells, limit = grid_of(figure), figure.layout.coloraxis.cmax
        beyond = int((np.abs(cells) > limit).sum())
        assert beyond > 0
        assert f"{beyond} of 620 cells clipped at ±" in title_of(figure)
        assert "%{z" in figure.data[0].hovertemplate

    def test_norms_are_sequential_and_start_at_zero(self):
        figure = plots.heatmap(writes_frame())
        assert figure.layout.coloraxis.cmin == 0
        assert figure.layout.meta["scale"] == "sequential"

    @pytest.mark.parametrize(("palette", "words"), [("RdBu", "blue adds, red"), ("PuOr", "purple adds, orange")])
    def test_the_sign_is_in_words_on_the_colour_bar(self, palette, words):
        figure = plots.heatmap(writes_frame(), value="share", palette=palette)
        assert words in figure.layout.coloraxis.colorbar.title.text

    def test_the_summary_names_the_largest_cell_outside_the_sinks(self):
        frame = writes_frame()
        frame.loc[(frame["component"] == "L3.mlp") & (frame["position"] == 4), "norm"] = 5000
        assert (
            "L3.mlp at , (position 4), 5,000. Sinks, marked: After (position 0)"
            in plots.heatmap(frame).layout.meta["summary"]
        )

    def test_what_is_missing_is_grey(self):
        frame = writes_frame()
        frame = frame[~((frame["component"] == "L3.mlp") & (frame["position"] == 4))]
        figure = plots.heatmap(frame)
        assert np.argwhere(np.isnan(grid_of(figure))).tolist() == [[8, 4]]
        assert figure.layout.plot_bgcolor == theme.NAN_GREY

    def test_sinks_are_marked_on_axis_and_cells(self):
        figure = plots.heatmap(writes_frame(sinks=(0, 4)))
        assert [text for text in figure.layout.xaxis.ticktext if "(sink)" in text] == [
            "After (sink) 0",
            ", (sink) 4",
        ]
        assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(-0.5, 0.5), (3.5, 4.5)]

    def test_all_sinks_and_all_zeros_still_have_a_scale(self):
        assert plots.heatmap(writes_frame(["a", "b"], sinks=(0, 1))).layout.coloraxis.cmax > 0
        assert plots.heatmap(writes_frame().assign(share=np.float32(0)), value="share").layout.coloraxis.cmax == 1

    def test_an_unknown_value_is_refused(self):
        with pytest.raises(InputError, match="value is one of contribution, norm, share; got 'size'"):
            plots.heatmap(writes_frame(), value="size")


class TestNormGrowth:
    def test_one_point_after_every_sublayer_for_every_token(self):
        figure = plots.norm_growth(writes_frame())
        assert len(figure.data) == len(PROMPT)
        assert all(line.x == tuple(range(61)) for line in figure.data)  # all but the rounding row
        assert figure.layout.yaxis.type == "log"

    def test_sinks_are_dashed(self):
        figure = plots.norm_growth(writes_frame(sinks=(0, 4)))
        assert [i for i, line in enumerate(figure.data) if line.line.dash == "dash"] == [0, 4]

    def test_of_very_many_tokens_an_even_choice_is_drawn_and_said(self):
        figure = plots.norm_growth(writes_frame(PROMPT * 50, layers=1, sinks=(0, 7)))
        assert len(figure.data) == 169
        assert "169 of 500 tokens" in title_of(figure)
        assert figure.data[-1].name == "·bank 499"
        assert [line.name for line in figure.data if line.line.dash == "dash"][1] == "·on (sink) 7"

    def test_many_tokens_get_a_short_legend(self):
        figure = plots.norm_growth(writes_frame(PROMPT * 20, layers=2, sinks=(0, 7)))
        assert [i for i, line in enumerate(figure.data) if line.showlegend] == [0, 7, 199]

    def test_the_axis_names_layers_where_sublayers_do_not_fit(self):
        assert plots.norm_growth(writes_frame(layers=3)).layout.xaxis.ticktext[0] == "embed"
        ticks = plots.norm_growth(writes_frame(layers=100)).layout.xaxis.ticktext
        assert ticks[0] == "L0"
        assert len(ticks) <= 14


FIGURES = {
    "contributions": lambda **kwargs: plots.contributions(readout_frame(**frame_of(kwargs)), **kwargs),
    "heatmap": lambda **kwargs: plots.heatmap(readout_frame(**frame_of(kwargs)), **kwargs),
    "norm": lambda **kwargs: plots.heatmap(writes_frame(**frame_of(kwargs)), value="norm", **kwargs),
    "norm_growth": lambda **kwargs: plots.norm_growth(writes_frame(**frame_of(kwargs)), **kwargs),
}


def frame_of(kwargs: dict) -> dict:
    return {"tokens": kwargs.pop("tokens", None), "layers": kwargs.pop("layers", 30)}


def strings(node) -> list[str]:
    """Every text in a figure."""
    if isinstance(node, dict):
        return [text for value in node.values() for text in strings(value)]
    if isinstance(node, list):
        return [text for value in node for text in strings(value)]
    return [node] if isinstance(node, str) else []


@pytest.mark.parametrize("name", FIGURES)
class TestEveryFigure:
    def test_themes_differ_and_data_does_not(self, name):
        light, dark = FIGURES[name](), FIGURES[name](dark=True)
        assert light.layout.template.layout.paper_bgcolor == theme.LIGHT.background
        assert dark.layout.template.layout.paper_bgcolor == theme.DARK.background
        assert light.data == dark.data

    def test_it_has_a_summary(self, name):
        assert len(FIGURES[name]().layout.meta["summary"]) > 40

    def test_no_token_is_markup_a_template_or_a_formula(self, name):
        figure = json.loads(FIGURES[name](tokens=HOSTILE, layers=2).to_json())
        figure["layout"].pop("meta")  # plain text, escaped by whoever shows it
        figure["layout"].pop("template")
        texts = strings(figure)
        assert any("&lt;script&gt;" in text for text in texts)
        for text in texts:
            assert "<script" not in text
            assert "<img" not in text
            assert "$x$" not in text
            assert "%{x}" not in text
            assert "\u202e" not in text
            assert "\x1b" not in text

    def test_it_is_drawn_from_a_filtered_and_shuffled_frame(self, name):
        maker = {"norm": plots.heatmap, "norm_growth": plots.norm_growth}.get(name, getattr(plots, name, None))
        frame = (writes_frame if name.startswith("norm") else readout_frame)()
        shuffled = frame.sample(frac=1, random_state=1)
        shuffled.attrs = frame.attrs
        assert maker(frame).data == maker(shuffled).data


def test_both_sign_colours_read_on_both_backgrounds():
    for colours in (*theme.SIGN_COLOURS.values(), theme.position_colours(9), (theme.NEUTRAL,)):
        for colour in colours:
            assert min(contrast(colour, page.background) for page in (theme.LIGHT, theme.DARK)) >= 3


def test_text_reads_on_both_backgrounds():
    for page in (theme.LIGHT, theme.DARK):
        for text in (page.text, page.muted, page.accent):
            assert min(contrast(text, page.background), contrast(text, page.surface)) >= 4.5


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.1."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_an_unknown_scale_is_refused():
    with pytest.raises(InputError, match="one of RdBu, PuOr, sequential; got 'Reds'"):
        theme.scale("Reds")
