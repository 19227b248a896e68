"""Figures of probes: accuracy with its controls, and a reader's value along the stream."""

import html
import re

import pandas as pd
import pytest
import torch

import streamlens
import zoo
from streamlens import ProbeFitter, before_after, decompose, plots
from streamlens.errors import InputError
from streamlens.frames import probe_frame
from streamlens.sites import Site


def title_of(figure) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", figure.layout.title.text.replace("<br>", " ")))


@pytest.fixture
def frame() -> pd.DataFrame:
    """Three writes, made of numbers alone."""
    sites = [Site(kind="embed"), Site(kind="attn", layer=0), Site(kind="mlp", layer=0)]
    columns = {
        "train_accuracy": torch.tensor([0.5, 0.9, 1.0]),
        "accuracy": torch.tensor([0.5, 0.975, 0.95]),
        "shuffled": torch.tensor([0.5, 0.48, 0.52]),
        "shuffled_low": torch.tensor([0.5, 0.4, 0.41]),
        "shuffled_high": torch.tensor([0.5, 0.6, 0.63]),
    }
    same = {"context": 0.9, "chance": 0.5, "chance_low": 0.39, "chance_high": 0.61, "train": 160, "held_out": 80}
    attrs = {"method": "mean_difference", "token": " <b>bank", "model": "tiny"}
    return probe_frame(sites, columns, same, attrs)


class TestDepth:
    def test_the_curve_and_its_controls(self, frame) -> None:
        figure = plots.probe_depth(frame)
        traces = {trace.name: trace for trace in figure.data if trace.name}
        assert list(traces["held-out accuracy"].y) == pytest.approx([0.5, 0.975, 0.95])
        assert list(traces["shuffled labels"].y) == pytest.approx([0.5, 0.48, 0.52])
        assert set(traces["bag of context"].y) == {0.9}
        assert set(traces["chance"].y) == {0.5}
        [band] = figure.layout.shapes
        assert (band.y0, band.y1) == (0.39, 0.61)

    def test_the_best_is_marked_and_named(self, frame) -> None:
        figure = plots.probe_depth(frame)
        sizes = next(trace for trace in figure.data if trace.name == "held-out accuracy").marker.size
        assert [size == max(sizes) for size in sizes] == [False, True, False]
        assert "97.5% after L0.attn" in title_of(figure)
        assert "80 held-out sentences" in title_of(figure)
        assert "bag of context 90.0%" in figure.layout.meta["summary"]

    def test_the_token_is_text(self, frame) -> None:
        assert "<b>bank" in title_of(plots.probe_depth(frame)) or "&lt;b&gt;bank" in plots.probe_depth(frame).to_json()
        assert "·<b>bank" not in plots.probe_depth(frame).layout.title.text

    def test_another_frame_is_refused(self, frame) -> None:
        with pytest.raises(InputError, match=r"draws a probe frame"):
            plots.probe_depth(frame.drop(columns="shuffled"))


class TestSteps:
    @pytest.fixture
    def steps(self):
        ledger = decompose(streamlens.load(zoo.build("llama")), torch.tensor([[7, 30, 12]]))
        d_model = ledger.stream.shape[-1]
        reader = ProbeFitter().update(torch.eye(2, d_model), ["a", "b"]).fit(after="L1.attn")
        return before_after(ledger, reader)

    def test_bars_go_from_before_to_after(self, steps) -> None:
        figure = plots.before_after(steps.to_frame(), position=1)
        bars = figure.data[0]
        assert list(bars.base) == pytest.approx(steps.before[:-1, 0, 1, 0].tolist())
        ends = [base + size for base, size in zip(bars.base, bars.y, strict=True)]
        assert ends == pytest.approx(steps.after[:-1, 0, 1, 0].tolist())
        assert list(figure.layout.xaxis.ticktext)[-1] == "L1.attn"
        assert "rounding" not in figure.layout.xaxis.ticktext

    def test_colours_are_signs(self, steps) -> None:
        bars = plots.before_after(steps.to_frame(), palette="PuOr").data[0]
        colours = dict(zip([size >= 0 for size in bars.y], bars.marker.color, strict=True))
        assert colours[True] != colours[False]

    def test_it_says_where_it_ends(self, steps) -> None:
        title = title_of(plots.before_after(steps.to_frame()))
        last = float(steps.after[-1, 0, 2, 0])
        assert f"{abs(last):.3f} after" in title
        assert "own on the stream within" in title

    def test_a_choice_is_not_guessed(self, steps) -> None:
        with pytest.raises(InputError, match=r"palette is one of"):
            plots.before_after(steps.to_frame(), palette="RdGn")
        with pytest.raises(InputError, match=r"position must be one"):
            plots.before_after(steps.to_frame(), position=7)
