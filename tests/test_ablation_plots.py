"""Figures of an ablation show the change: parts that stack to the total, edits hatched, what stood still in grey."""

import html
import re

import numpy as np
import pytest

from streamlens import plots
from streamlens.errors import InputError

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def made(default_model):
    """The frames of the worked example."""
    from streamlens import Reader, ablate, sweep

    bank = "After crossing the river, she rested on the bank"
    reader = Reader.logit_diff(default_model, " river", " money")
    one = ablate(default_model, bank, "L1.attn@bank", readers=reader, position="bank")
    every = ablate(default_model, bank, "L1.attn@river", readers=reader)
    swept = sweep(default_model, bank, position="bank", readers=reader)
    heads = sweep(default_model, bank, over="heads", position="bank", readers=reader)
    return {
        "one": one.to_frame(),
        "every": every.to_frame(),
        "effects": swept.effects(),
        "responses": swept.responses(),
        "heads": heads.responses(),
        "output": sweep(default_model, bank, position="bank").effects(),
        "one effect": one.effects(),
    }


def title_of(figure) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", figure.layout.title.text.replace("<br>", " ")))


def test_effects_stack_to_the_known_total(made) -> None:
    figure = plots.effects(made["effects"], top=5)
    assert figure.layout.yaxis.ticktext[0].startswith("L1.attn@bank")
    parts = {trace.name: trace.x[0] for trace in figure.data}
    assert [round(parts[name], 2) for name in ("direct", "indirect", "rescale", "total")] == [0.42, -4.29, -0.02, -3.89]
    for row in range(5):
        assert sum(trace.x[row] for trace in figure.data[:-1]) == pytest.approx(figure.data[-1].x[row], abs=1e-9)
    assert figure.layout.barmode == "relative"


def test_effects_say_what_is_shown(made) -> None:
    title = title_of(plots.effects(made["effects"]))
    for said in ("logit(·river)", "·bank (position 9)", "After crossing", "Ablated − clean", "Largest 20 of 60 edits"):
        assert said in title
    assert "sum to the model's own change within" in title


def test_one_effect_is_not_called_one_of_many(made) -> None:
    title = title_of(plots.effects(made["one effect"]))
    assert "The parts sum to the model's own change within" in title
    assert "of all" not in title


def test_without_a_reader_effects_are_divergences_of_the_output(made) -> None:
    figure = plots.effects(made["output"], top=3)
    (bars,) = figure.data
    frame = made["output"].sort_values("kl", ascending=False).head(3)
    assert list(bars.x) == frame["kl"].tolist()
    assert [text.split()[0] for text in figure.layout.yaxis.ticktext] == frame["variant"].astype(str).tolist()
    assert list(bars.customdata[0]) == ["L1.attn@bank", ",", "ing"]
    assert "KL(clean, ablated) of the next token, in nats. Largest 3 of 60 edits" in title_of(figure)
    assert "in nats: L1.attn@bank" in figure.layout.meta["summary"]


def test_downstream_bars(made) -> None:
    figure = plots.downstream(made["one"])
    traces = {trace.name: trace for trace in figure.data}
    edited = traces["edited"]
    assert list(edited.y) == [3]
    assert edited.text[0] == "+0.421"
    assert edited.marker.pattern.shape == "/"
    assert list(figure.data[-1].y) == [0, 1, 2]
    responses = sum(sum(traces[name].x) for name in ("adds", "subtracts"))
    assert responses == pytest.approx(-4.293, abs=5e-3)
    title = title_of(figure)
    assert "L1.attn@bank edited" in title
    assert "+0.421 (direct), the responses to −4.293 (indirect)" in title


def test_downstream_keeps_the_edit_and_what_stood_still_out_of_the_colours(made) -> None:
    figure = plots.downstream(made["every"])
    cells = np.array(figure.data[0].z, dtype=float)
    assert np.isnan(cells[:, :3]).all()  # before the edited token
    assert np.isnan(cells[:4, 3]).all()  # before the edited write, and itself
    assert np.isfinite(cells[4:, 3]).all()
    hatched = next(trace for trace in figure.data if trace.type == "bar")
    assert (list(hatched.x), list(hatched.base)) == ([3], [2.5])


def test_downstream_without_a_reader_draws_norms(made) -> None:
    frame = made["one"].drop(columns=[c for c in made["one"] if ": " in c])
    figure = plots.downstream(frame)
    assert "norm of the change" in title_of(figure)
    assert not any("+" in text for text in figure.data[0].text)  # a norm has no sign
    assert figure.layout.xaxis.range[0] == 0


def test_the_matrix_is_upper_triangular(made) -> None:
    figure = plots.responses(made["responses"])
    assert "logit(·river) - logit(·money): responses to each edit" in title_of(figure)
    assert "at ·bank (position 9)" in title_of(figure)
    assert "change, logits" in figure.layout.coloraxis.colorbar.title.text
    cells = np.array(figure.data[0].z, dtype=float)
    assert cells.shape == (60, 61)
    assert np.isnan(cells[np.tril_indices(60, k=1, m=61)]).all()
    assert np.isfinite(cells[np.triu_indices(60, k=2, m=61)]).all()
    hatched = figure.data[1]
    assert list(hatched.x) == list(range(1, 61))
    assert hatched.customdata[2][1] == "+0.421"
    axis = figure.layout.coloraxis
    assert axis.cmin == -axis.cmax < 0


def test_a_tall_matrix_names_the_writes_below_it_too(made) -> None:
    figure = plots.responses(made["heads"])
    assert figure.layout.xaxis2.side == "bottom"
    assert figure.layout.xaxis2.ticktext == figure.layout.xaxis.ticktext
    assert len(figure.layout.yaxis.ticktext) == 270
    assert "xaxis2" not in plots.responses(made["responses"]).layout.to_plotly_json()


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_has_a_summary(made, dark: bool) -> None:
    figures = (
        plots.effects(made["effects"], dark=dark),
        plots.downstream(made["one"], dark=dark),
        plots.downstream(made["every"], dark=dark),
        plots.responses(made["responses"], dark=dark),
    )
    assert all("ablated minus clean" in figure.layout.meta["summary"] for figure in figures)


def test_what_is_not_there_is_refused(made) -> None:
    with pytest.raises(InputError, match="a figure shows one variant"):
        plots.downstream(made["one"], variant="L9.attn")
    with pytest.raises(InputError, match="at least 1; got 0"):
        plots.effects(made["effects"], top=0)
    with pytest.raises(InputError, match="this one is empty"):
        plots.responses(made["responses"].iloc[:0])
    with pytest.raises(InputError, match="palette is one of"):
        plots.responses(made["responses"], palette="viridis")
