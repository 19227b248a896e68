"""Figures of tokens: the strip wraps like text, the lens writes what it says, sources are summed over heads."""

import html
import itertools
import re

import numpy as np
import pandas as pd
import pytest

from figure_frames import HOSTILE, PROMPT, READER, readout_frame, writes_frame
from streamlens import plots
from streamlens.errors import InputError
from study_frames import small_study


def title_of(figure) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", figure.layout.title.text.replace("<br>", " ")))


def grid_of(figure) -> np.ndarray:
    return np.array(figure.data[0].z, dtype=float)


def boxes_of(figure, what: str) -> list:
    """What the boxes of a strip hold, line by line."""
    return [value for trace in figure.data if trace.type == "heatmap" for value in trace[what][0][::2]]


class TestStrip:
    def test_boxes_stand_side_by_side_and_wrap(self):
        figure = plots.token_strip(writes_frame(PROMPT * 4, layers=1))
        lines = [trace for trace in figure.data if trace.type == "heatmap"]
        assert len(lines) > 1
        for line in lines:
            assert all(left < right for left, right in itertools.pairwise(line.x))
            assert line.x[-1] <= figure.layout.xaxis.range[1]
            assert len(line.z[0]) == len(line.x) - 1
            assert all(value is None for value in line.z[0][1::2])  # between two boxes
        assert all(one.y[1] < other.y[0] for one, other in itertools.pairwise(lines))
        assert boxes_of(figure, "text")[:2] == ["After", "·crossing"]
        assert len(boxes_of(figure, "z")) == 40

    def test_the_colour_is_the_value_that_is_read_and_sinks_set_no_limit(self):
        frame = readout_frame(sinks=(0,))
        frame.loc[(frame["position"] == 0) & (frame["component"] == "embed"), "contribution"] += 1000
        figure = plots.token_strip(frame)
        assert boxes_of(figure, "z")[0] > 1000
        assert figure.layout.coloraxis.cmax == pytest.approx(3.742, abs=1e-3)
        assert figure.layout.coloraxis.cmin == -figure.layout.coloraxis.cmax
        assert "1 of 10 cells clipped" in title_of(figure)

    def test_a_ledger_is_coloured_by_its_norm(self):
        frame = writes_frame(sinks=())
        figure = plots.token_strip(frame)
        final = frame[frame["component"] == "rounding"].sort_values("position")["stream_norm"]
        assert boxes_of(figure, "z") == pytest.approx(final.tolist())
        assert figure.layout.coloraxis.cmin == 0

    def test_the_token_that_is_looked_at_and_sinks_are_marked(self):
        figure = plots.token_strip(writes_frame(sinks=(0,)), position=-1)
        edges = [(shape.line.width, shape.line.dash) for shape in figure.layout.shapes]
        assert edges[0] == (1, "dot")
        assert edges[9] == (3, "solid")
        assert set(edges[1:9]) == {(1, "solid")}
        assert "Looked at: ·bank (position 9)." in figure.layout.meta["summary"]

    def test_hostile_tokens_are_inert(self):
        figure = plots.token_strip(writes_frame(HOSTILE, layers=1, special=(1,)))
        shown = "".join(boxes_of(figure, "text"))
        assert "<" not in shown
        assert "\u202e" not in shown
        assert "╌&lt;/s&gt;╌" in shown


class TestLens:
    def test_the_likeliest_token_is_in_its_cell_and_its_probability_is_the_colour(self):
        frame = small_study(layers=2).frames["lens"]
        figure = plots.lens(frame)
        last = frame[frame["position"] == 9].sort_values("order")
        assert grid_of(figure)[:, 9] == pytest.approx(last["probability"].to_numpy(), abs=1e-4)
        assert [row[9] for row in figure.data[0].text] == ["·and", "·and", "·of", "·of", "·of"]
        assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 1)

    def test_the_title_says_from_where_on_it_is_the_final_token(self):
        figure = plots.lens(small_study(layers=3).frames["lens"])
        assert "After ·bank (position 9) it is the final one, “·of”, from L2.attn on." in title_of(figure)

    def test_only_the_first_rank_is_drawn(self):
        frame = small_study(layers=1).frames["lens"]
        second = frame.assign(rank=1, top_token="never", probability=0.01)
        both = pd.concat([frame, second], ignore_index=True)
        assert np.array_equal(grid_of(plots.lens(both)), grid_of(plots.lens(frame)))

    def test_another_frame_is_refused(self):
        with pytest.raises(InputError, match="the frame of a logit lens"):
            plots.lens(writes_frame(layers=1))


class TestSources:
    def test_the_first_row_is_the_sum_over_all_heads_of_the_frame(self):
        frame = small_study(layers=1).frames["sources"]
        figure = plots.sources(frame, top=2)
        sums = frame.groupby("source")["contribution"].sum().to_numpy()
        assert grid_of(figure)[-1] == pytest.approx(sums)
        assert list(figure.layout.yaxis.ticktext)[-1] == "all 3 heads"
        assert len(figure.layout.yaxis.ticktext) == 3

    def test_rows_are_the_heads_that_bring_most(self):
        frame = small_study(layers=1).frames["sources"]
        sizes = frame.assign(head=frame["component"].str.partition("<")[0])
        size = sizes["contribution"].abs().groupby(sizes["head"]).sum()
        figure = plots.sources(frame, top=2)
        assert set(figure.layout.yaxis.ticktext[:2]) == set(size.sort_values().index[-2:])

    def test_attention_is_written_where_it_is_not_small(self):
        frame = small_study(layers=1).frames["sources"]
        frame = frame.assign(attention=np.where(frame["source"] == 3, 0.83, 0.05))
        texts = np.array(plots.sources(frame).data[0].text)
        assert set(texts[:-1, 3]) == {".83"}
        assert set(np.delete(texts, 3, axis=1).ravel()) == {""}

    def test_the_title_names_reader_token_and_closure(self):
        title = title_of(plots.sources(small_study(layers=1).frames["sources"]))
        assert READER in title
        assert "wrote into ·bank (position 9)" in title
        assert "3.1e-07" in title

    def test_shares_of_a_ledger_are_drawn_without_a_reader(self):
        frame = small_study(layers=1).frames["sources"]
        shares = frame.rename(columns={"contribution": "share"}).drop(columns=["reader", "unit"])
        shares.attrs = {"prompts": ["A prompt"]}
        figure = plots.sources(shares)
        assert title_of(figure).startswith("From which tokens attention wrote into ·bank")
        assert "share of the stream: blue adds" in figure.layout.coloraxis.colorbar.title.text

    def test_a_frame_of_another_level_is_refused(self):
        with pytest.raises(InputError, match="another level than source"):
            plots.sources(readout_frame(layers=1))


def test_a_prompt_that_is_not_whole_is_not_shown_as_if_it_were() -> None:
    frame = readout_frame(layers=1)
    frame.attrs = {}
    assert "“After crossing" in title_of(plots.contributions(frame))
    assert "“… bank”" in title_of(plots.contributions(frame[frame["position"] == 9]))


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_has_a_summary_and_the_theme(dark: bool) -> None:
    frames = small_study(layers=1).frames
    for figure in (
        plots.token_strip(frames["writes"], dark=dark),
        plots.lens(frames["lens"], dark=dark),
        plots.sources(frames["sources"], dark=dark),
    ):
        assert len(figure.layout.meta["summary"]) > 60
        assert figure.layout.template.layout.paper_bgcolor == ("#15181d" if dark else "#ffffff")
