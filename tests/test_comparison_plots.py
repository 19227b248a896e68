"""Bars of a comparison sum to the stated difference; bars of a lesion start at the loss of the model as it is."""

import html
import itertools
import re

import numpy as np
import pandas as pd
import pytest
import torch

import streamlens
import zoo
from streamlens import Reader, compare, plots
from streamlens.errors import InputError
from streamlens.frames import SCHEMAS

A, B = torch.tensor([[7, 30, 12, 50, 44]]), torch.tensor([[9, 21, 33, 60, 15, 44, 8]])
AT = (4, 5)  # token 44 in both


def made(name: str = "llama", *, readers: int = 1, token=AT):
    model = streamlens.load(zoo.build(name))
    given = [Reader.logit_diff(model, 5, 7), Reader.logit_diff(model, 9, 11)][:readers]
    return compare(model, A, B, token=token, readers=given)


def title_of(figure) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", figure.layout.title.text.replace("<br>", " ")))


def bars_of(figure) -> list[tuple[str, float, float]]:
    """(label, base, size) from the top down."""
    labels = figure.layout.yaxis.ticktext
    found = [(y, base, x) for bar in figure.data for y, base, x in zip(bar.y, bar.base, bar.x, strict=True)]
    return [(labels[y], base, x) for y, base, x in sorted(found)]


class TestComparison:
    @pytest.mark.parametrize("name", ["llama", "openai-gpt", "gemma2"])
    @pytest.mark.parametrize("top", [2, 50])
    def test_the_bars_sum_to_the_models_own_difference(self, name, top):
        comparison = made(name)
        *parts, total = bars_of(plots.comparison(comparison.to_frame(), top=top))
        assert parts[0][1] == 0
        for (_, base, size), (_, following, _) in itertools.pairwise(parts):
            assert following == pytest.approx(base + size)
        row = comparison.effects().iloc[0]
        assert total == ("<b>total</b>", 0.0, pytest.approx(row["observed"], abs=1e-4))
        assert parts[-1][1] + parts[-1][2] == pytest.approx(total[2])
        labels = [label for label, _, _ in parts]
        assert ("rescale" in labels) == (row["rescale"] != 0)
        assert ("softcap" in labels) == (row["softcap"] != 0)
        sizes = {label: size for label, _, size in parts}
        if "rescale" in labels:
            assert sizes["rescale"] == pytest.approx(row["rescale"], abs=1e-6)

    def test_the_largest_come_first_and_the_rest_is_one_bar(self):
        frame = made().to_frame()
        labels = [label for label, _, _ in bars_of(plots.comparison(frame, top=2))]
        column = next(c for c in frame.columns if c.startswith("difference: "))
        writes = frame.iloc[:-2].set_index("component")[column]  # all but rescale and softcap
        assert labels == [*writes.abs().nlargest(2).index, "other (6)", "rescale", "<b>total</b>"]

    def test_the_title_names_both_contexts_and_values(self):
        comparison = made()
        title, row = title_of(plots.comparison(comparison.to_frame())), comparison.effects().iloc[0]
        for said in ("A: “", "B: “", "position 4", "position 5", "A − B = ", "the model's own difference"):
            assert said in title
        for value in (row["a"], row["b"]):
            assert f"{value:+.3f}".replace("-", "−") in title

    def test_two_tokens_are_both_named(self):
        title = title_of(plots.comparison(made(token=(3, 6)).to_frame()))
        assert "at ⟨50⟩ (A) and ⟨8⟩ (B)" in title

    def test_without_a_reader_the_bars_are_shares_and_sum_to_one(self):
        figure = plots.comparison(made(readers=0).to_frame())
        *_, total = bars_of(figure)
        assert total[2] == pytest.approx(1, abs=1e-5)
        assert "rescale" not in [label for label, _, _ in bars_of(figure)]
        assert "which sum to 1" in title_of(figure)

    def test_of_several_readers_one_is_named(self):
        frame = made(readers=2).to_frame()
        with pytest.raises(InputError, match="a figure shows one reader; this frame holds"):
            plots.comparison(frame)
        named = plots.comparison(frame, reader=next(iter(frame.attrs["readers"])))
        assert title_of(named) == title_of(plots.comparison(made().to_frame()))

    def test_a_frame_that_was_stored_draws_the_same(self, tmp_path):
        frame = made().to_frame()
        frame.to_parquet(tmp_path / "x.parquet")
        back = plots.comparison(pd.read_parquet(tmp_path / "x.parquet"))
        assert back.to_json() == plots.comparison(frame).to_json()
        bare = pd.DataFrame(frame)
        bare.attrs = {}
        assert "the bars sum to the total" in title_of(plots.comparison(bare))

    def test_refusals(self):
        with pytest.raises(InputError, match="at least 1; got 0"):
            plots.comparison(made().to_frame(), top=0)
        with pytest.raises(InputError, match="palette is one of"):
            plots.comparison(made().to_frame(), palette="viridis")

    @pytest.mark.parametrize("dark", [False, True])
    def test_it_has_a_summary(self, dark):
        figure = plots.comparison(made().to_frame(), dark=dark)
        assert "A minus B: the parts sum to" in figure.layout.meta["summary"]


def lesions(names: list[str], losses: list[float], *, dropped: int = 1, tau: tuple[float, ...] = ()) -> pd.DataFrame:
    """A lesion frame of numbers alone; the model as it is has a loss of 3."""
    frame = pd.DataFrame(
        {
            "lesion": pd.Categorical(["none", *names], ["none", *names], ordered=True),
            "n_dropped": [0, *[dropped] * len(names)],
            "kendall_tau": [0.0, *(tau or [0.0] * len(names))],
            "loss": [3.0, *losses],
            "delta": [0.0, *(loss - 3.0 for loss in losses)],
            "tokens": 43,
            "perplexity": np.exp([3.0, *losses]),
        }
    ).astype({column: kind for column, (kind, _) in SCHEMAS["lesion"].items()})
    frame.attrs = {"model": "tiny", "over": "layers", "texts": 4}
    return frame


class TestLesion:
    def test_bars_go_from_the_loss_as_it_is_to_the_loss_under_the_lesion(self):
        figure = plots.lesion(lesions(["L0", "L1", "L2"], [9.0, 3.5, 2.9]))
        (bars,) = figure.data
        assert bars.base == 3.0
        assert [bars.base + y for y in bars.y] == pytest.approx([9.0, 3.5, 2.9])
        assert list(figure.layout.xaxis.ticktext) == ["L0", "L1", "L2"]
        (line,) = figure.layout.shapes
        assert (line.y0, line.y1) == (3.0, 3.0)
        assert bars.marker.color[0] == bars.marker.color[1] != bars.marker.color[2]  # what helps looks unlike
        low, high = figure.layout.yaxis.range
        assert low < 2.9 < 9.0 < high
        title = title_of(figure)
        for said in ("Loss without each layer", "43 tokens of 4 texts", "as it is, 3.000", "L0, 9.000 (+6.000)"):
            assert said in title

    def test_shuffles_are_points_over_how_much_is_inverted(self):
        figure = plots.lesion(lesions(["1: 2 swaps", "2: 2 swaps"], [5.0, 8.0], dropped=0, tau=(0.1, 0.3)))
        (points,) = figure.data
        assert (list(points.x), list(points.y)) == ([0.1, 0.3], [5.0, 8.0])
        assert "another order" in title_of(figure)

    def test_sets_are_named_where_there_is_room_and_numbered_where_there_is_not(self):
        short = plots.lesion(lesions(["1: L0 + L1", "2: L1 + L2"], [5.0, 4.0], dropped=2))
        assert list(short.layout.xaxis.ticktext) == ["1: L0 + L1", "2: L1 + L2"]
        assert "Loss without 2 layers at once" in title_of(short)
        long = [f"{n}: " + " + ".join(f"L{k}" for k in range(n, n + 9)) for n in (1, 2)]
        figure = plots.lesion(lesions(long, [5.0, 4.0], dropped=9))
        assert list(figure.layout.xaxis.ticktext) == ["1", "2"]
        assert long[0] in figure.data[0].customdata[0][0]
        assert title_of(plots.lesion(lesions(["L3 + L4.mlp"], [4.0], dropped=2))).startswith(
            "Loss without L3 + L4.mlp "
        )

    def test_a_frame_without_a_lesion_is_refused(self):
        with pytest.raises(InputError, match="at least one lesion; got 1 rows"):
            plots.lesion(lesions([], []))

    def test_it_has_a_summary_and_room_for_every_bar(self):
        figure = plots.lesion(lesions([f"L{n}" for n in range(60)], [4.0] * 60), dark=True)
        assert figure.layout.meta["min_width"] > 60 * 12
        assert "the model as it is, 3.000 nats per token" in figure.layout.meta["summary"]
