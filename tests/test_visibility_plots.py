"""Figures of visibility: chance is drawn, every write is labelled, and the map's middle colour is a random write."""

import html
import re

import numpy as np
import pandas as pd
import pytest
import torch

from small_ledger import ledger_of, norm_of, reader_of
from streamlens import plots, visibility
from streamlens.errors import InputError


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def title_of(figure) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", figure.layout.title.text.replace("<br>", " ")))


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    reader = reader_of(random(3, 12), norm_of(12, centred=False))
    return visibility(ledger_of(random(9, 1, 2, 12, seed=1)), reader, "local").to_frame()


@pytest.fixture(scope="module")
def pairs() -> pd.DataFrame:
    """A map of 5 writes by 2 layers of 3 readers and an end, with a row that sees nothing and one clipped cell."""
    rows = []
    labels = ["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp"]
    readers = [(f"L{i}H{h}.{part}", part, i) for i in (0, 1) for h, part in ((0, "q"), (0, "k"), (1, "k"))]
    readers.append(("unembedding", "unembedding", None))
    for order, component in enumerate(labels):
        for number, (name, part, layer) in enumerate(readers):
            sees = layer is None or order <= 2 * layer
            lift = np.nan if not sees else 64.0 if order == number == 0 else 2.0 ** ((order + number) % 3 - 1)
            rows.append(
                {
                    "prompt_id": 0,
                    "position": 4,
                    "token_id": 1,
                    "token": " <b>bank",
                    "special": False,
                    "sink": False,
                    "component": component,
                    "order": order,
                    "reader": name,
                    "reader_layer": layer,
                    "reader_part": part,
                    "sees": sees,
                    "lift": lift,
                    "gain": lift,
                }
            )
    made = pd.DataFrame(rows)
    made["component"] = pd.Categorical(made["component"], labels, ordered=True)
    made["reader"] = pd.Categorical(made["reader"], [name for name, _, _ in readers], ordered=True)
    made["reader_layer"] = made["reader_layer"].astype("Int16")
    made.attrs.update(prompts=["at the bank"], model="tiny", closure=1e-7)
    return made


class TestBars:
    def test_every_write_and_the_value_of_a_random_one(self, frame) -> None:
        figure = plots.visibility(frame)
        assert len(figure.layout.yaxis.ticktext) == 9
        drawn = {
            int(y): x for trace in figure.data if trace.type == "bar" for x, y in zip(trace.x, trace.y, strict=True)
        }
        last = frame[frame["position"] == 1]
        assert [drawn[row] for row in range(9)] == pytest.approx(last["visible_share"].tolist())
        line = next(trace for trace in figure.data if trace.type == "scatter")
        assert list(line.x) == pytest.approx([3 / 12] * 18)
        assert line.name == "share of a random write 0.25"
        above = next(trace for trace in figure.data if trace.name == "above it")
        assert min(above.x) > 3 / 12
        assert above.text[0].startswith("×")

    def test_the_title_says_which_of_the_three_answers(self, frame) -> None:
        title = title_of(plots.visibility(frame, position=0))
        assert "planted: visible share of every write at t0 (position 0)" in title
        assert "local: the norm's Jacobian at this point" in title
        assert "Writes sum to the stream within" in title
        assert "Effective" not in title

    def test_the_gain_stands_beside_one(self, frame) -> None:
        line = next(t for t in plots.visibility(frame, value="gain").data if t.type == "scatter")
        assert set(line.x) == {1.0}

    def test_an_effective_row_space_is_said(self) -> None:
        cut = visibility(ledger_of(random(3, 1, 1, 6)), reader_of(random(20, 6)), energy=0.5).to_frame()
        assert "Effective row space:" in title_of(plots.visibility(cut))

    def test_other_values_are_refused(self, frame) -> None:
        with pytest.raises(InputError, match="value is one of visible_share, gain; got 'lift'"):
            plots.visibility(frame, value="lift")


class TestMap:
    def test_a_random_write_is_the_middle_of_the_colours(self, pairs) -> None:
        figure = plots.visibility_map(pairs)
        axis = figure.layout.coloraxis
        assert axis.cmin == -axis.cmax
        assert axis.colorbar.ticktext[1] == "random: ×1"
        cells = figure.data[0].z
        wide = pairs.pivot_table(index="component", columns="reader", values="lift", observed=False, dropna=False)
        np.testing.assert_allclose(np.asarray(cells, dtype=float), np.log2(wide.to_numpy()), atol=1e-3)
        assert figure.data[0].text[0][0] == 64.0

    def test_what_comes_after_the_reader_is_grey(self, pairs) -> None:
        cells = np.asarray(plots.visibility_map(pairs).data[0].z, dtype=float)
        assert np.isnan(cells[1:, :3]).all()
        assert np.isfinite(cells[:, -1]).all()
        assert "Grey: the write comes after the reader." in title_of(plots.visibility_map(pairs))

    def test_few_readers_are_named_and_layers_are_set_apart(self, pairs) -> None:
        figure = plots.visibility_map(pairs)
        assert list(figure.layout.xaxis.ticktext)[:4] == ["L0H0.q", "L0H0.k", "L0H1.k", "L1H0.q"]
        assert [shape.x0 for shape in figure.layout.shapes] == [2.5, 5.5]
        assert list(figure.layout.yaxis.ticktext) == ["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp"]

    def test_a_selection(self, pairs) -> None:
        keys = plots.visibility_map(pairs, part="k", layers=[1])
        assert list(keys.layout.xaxis.ticktext) == ["L1H0.k", "L1H1.k"]
        assert "5 writes by 2 readers (keys)" in title_of(keys)

    def test_tokens_are_escaped_and_the_largest_is_in_words(self, pairs) -> None:
        figure = plots.visibility_map(pairs)
        assert "<b>bank" not in figure.layout.title.text
        assert "×64, is embed seen by L0H0.q" in figure.layout.meta["summary"]

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"value": "share"}, "value is one of lift, gain; got 'share'"),
            ({"part": "z"}, "part is one of q, k, unembedding; got 'z'"),
            ({"layers": [7]}, r"layers are among those of the frame; none of \[7\] is"),
            ({"palette": "RdGn"}, "palette is one of RdBu, PuOr; got 'RdGn'"),
        ],
    )
    def test_what_cannot_be_drawn(self, pairs, options, text) -> None:
        with pytest.raises(InputError, match=text):
            plots.visibility_map(pairs, **options)

    @pytest.mark.model
    def test_at_full_size_it_is_grouped_by_layer(self, default_model, bank) -> None:
        from streamlens import decompose, visibility_map

        ledger = decompose(default_model, bank, positions="bank", keep_logits=False)
        figure = plots.visibility_map(visibility_map(ledger, default_model).to_frame())
        assert np.asarray(figure.data[0].z).shape == (61, 481)
        assert list(figure.layout.xaxis.ticktext) == [*(f"L{layer}" for layer in range(30)), "end"]
        assert len(figure.layout.yaxis.ticktext) == 61
        assert 2000 < figure.layout.width < 3000
        assert figure.layout.xaxis.fixedrange is None  # dragging zooms
