"""Figures of gradients: what they draw is what the frames hold, on the axes that it asks for."""

import numpy as np
import pytest
import torch

import paper_model
import streamlens
import zoo
from streamlens import Reader, backward, paths, plots
from streamlens.errors import InputError


@pytest.fixture(scope="module")
def paper():
    model = streamlens.load(paper_model.PaperModel().double())
    return backward(model, torch.tensor(paper_model.PROMPT), Reader.direction([1.0, 0.0])).to_frame()


@pytest.fixture(scope="module")
def lengths():
    model = streamlens.load(zoo.build("gpt2"))
    ids = torch.tensor([[5, 9, 11, 30]])
    return paths(model, ids, Reader.logit_diff(model, 5, 7), samples=2).to_frame()


def traces(figure) -> dict:
    return {trace.name: trace for trace in figure.data}


def title_of(figure) -> str:
    return figure.layout.title.text.replace("<br>", " ")


class TestBackward:
    def test_the_curves_are_the_norms_over_all_positions(self, paper) -> None:
        found = traces(plots.backward(paper))
        total, direct = found["total gradient"], found["direct route, past every branch"]
        assert list(total.y) == pytest.approx([15**0.5, 46.5**0.5, 9.5**0.5, 3.25**0.5, 1.0], rel=1e-6)
        assert list(direct.y) == pytest.approx([1.0] * 5)
        assert list(total.x) == list(range(5))

    def test_each_branch_is_up_or_down_by_what_it_does(self, paper) -> None:
        found = traces(plots.backward(paper, position=-1))
        up, down = found["a branch that amplifies"], found["a branch that cancels"]
        # by hand at the last token: L0.attn (0, 2.5) beside (2.5, -3) cancels; L1.attn (-.5, -.5) beside (1.5, -1) too
        assert [label for label, _ in down.customdata] == ["L0.attn", "L1.attn"]
        assert list(down.y) == pytest.approx([2.5, 0.5**0.5])
        assert [label for label, _ in up.customdata] == ["L0.mlp", "L1.mlp"]
        assert list(up.y) == pytest.approx([4.5**0.5, 1.25**0.5])
        assert "2 of 4 branches cancel" in plots.backward(paper, position=-1).layout.meta["summary"]

    def test_the_axis_is_logarithmic_where_the_curves_differ_much(self, paper) -> None:
        assert plots.backward(paper).layout.yaxis.type == "linear"
        grown = paper.assign(gradient=paper["gradient"] * 100)
        assert plots.backward(grown).layout.yaxis.type == "log"

    def test_where_the_direct_route_is_zero_it_is_not_drawn(self, paper) -> None:
        found = traces(plots.backward(paper, position=0))
        assert list(found["direct route, past every branch"].y) == [None] * 5
        assert plots.backward(paper, position=0).layout.yaxis.type == "linear"

    def test_the_title_says_what_it_is_and_that_it_closes(self, paper) -> None:
        title = title_of(plots.backward(paper))
        assert "direction: its gradient on the way back" in title
        assert "autograd's gradient within" in title
        with pytest.raises(InputError, match="this figure draws the column 'gradient'"):
            plots.backward(paper.drop(columns="gradient"))
        with pytest.raises(InputError, match="position must be one this frame holds, 0 to 1; got 7"):
            plots.backward(paper, position=7)


class TestPaths:
    def test_bars_and_lines_are_the_shares(self, lengths) -> None:
        found = traces(plots.paths(lengths))
        every = lengths[lengths["family"] == "all"]
        assert np.array_equal(found["norm of what the paths of a length bring"].y, every["norm_share"])
        assert list(found["number of paths"].y) == [1 / 64, 6 / 64, 15 / 64, 20 / 64, 15 / 64, 6 / 64, 1 / 64]
        assert sum(found["number of paths × norm of a single one"].y) == pytest.approx(1)

    def test_a_family_has_its_own_lengths(self, lengths) -> None:
        figure = plots.paths(lengths, family="attn only", dark=True)
        assert list(figure.data[0].x) == [0, 1, 2, 3]
        assert len(figure.data) == 2  # single paths are drawn of all
        assert "paths through attention branches only" in title_of(figure)
        assert "the mean length is 1.5 by number" in figure.layout.meta["summary"]

    def test_the_title_says_how_much_cancels_and_that_it_closes(self, lengths) -> None:
        every = lengths[lengths["family"] == "all"]
        title = title_of(plots.paths(lengths))
        assert f"brings a norm of {every['norm'].max():,.3g}" in title
        assert f"the sum of all has {lengths.attrs['sums']['all']:,.3g}" in title
        assert "autograd's gradient within" in title
        with pytest.raises(InputError, match=r"one of all, attn, attn only, mlp, mlp only; got .none."):
            plots.paths(lengths, family="none")
