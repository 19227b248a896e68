"""Figures about depth: what is drawn is what the frames hold, and the titles and summaries say it in words."""

import html
import re

import pandas as pd
import pytest
import torch

import streamlens
import zoo
from streamlens import decompose, jacobian, perturb, plots, scale_steps, trajectory
from streamlens.errors import InputError

IDS = torch.tensor([[7, 30, 12, 50, 44, 9]])


@pytest.fixture(scope="module")
def made() -> dict[str, pd.DataFrame]:
    """The frames of a tiny model."""
    model = streamlens.load(zoo.build("llama"))
    return {
        "trajectory": trajectory(decompose(model, IDS), model).to_frame(),
        "jacobian": jacobian(model, IDS, position=2).to_frame(),
        "perturbation": perturb(model, IDS, position=2).to_frame(),
        "steps": scale_steps(model, IDS, [0.0, 0.5, 1.0, 1.5], calls=[1, 2]).to_frame(),
    }


def title_of(figure) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", figure.layout.title.text.replace("<br>", " ")))


def test_a_path_in_its_plane(made) -> None:
    figure = plots.trajectory(made["trajectory"], position=3)
    rows = made["trajectory"].query("position == 3")
    points = figure.data[1]
    assert list(points.x) == rows["plane_x"].tolist()
    assert list(points.marker.color) == [0, 0, 0, 1, 1, 2, 2]
    assert [trace.text[0].strip() for trace in figure.data[2:]] == ["start: embed", "end: L2.mlp"]
    assert (figure.data[2].x[0], figure.data[3].x[0]) == (points.x[0], points.x[-1])
    assert figure.layout.yaxis.scaleanchor == "x"  # angles are true
    assert f"it holds {rows['plane_share'].iloc[0]:.0%} of its variance" in title_of(figure)


def test_geometry_is_a_median_without_sinks(made) -> None:
    frame = made["trajectory"].copy()
    frame.loc[frame["position"] == 0, "sink"] = True
    figure = plots.geometry(frame)
    wanted = frame.loc[~frame["sink"] & (frame["component"] == "L1.mlp")][["step", "cosine_stream"]].median()
    named = {(trace.name, trace.yaxis): trace for trace in figure.data}
    assert set(named) == {("attn", "y"), ("mlp", "y"), ("attn", "y2"), ("mlp", "y2")}
    assert named["mlp", "y"].y[1] == pytest.approx(wanted["step"])
    assert named["mlp", "y2"].y[1] == pytest.approx(wanted["cosine_stream"])
    assert "median of 5 tokens, sinks left out" in title_of(figure)
    one = plots.geometry(frame, position=0)
    assert one.data[0].y[0] == pytest.approx(frame.query("position == 0 and component == 'L0.attn'")["step"].iloc[0])


def test_growth_beside_its_bound(made) -> None:
    figure = plots.amplification(made["jacobian"])
    lines = {(trace.name, trace.yaxis): list(trace.y) for trace in figure.data}
    assert lines["product of the largest values (bound)", "y2"] == made["jacobian"]["bound"].tolist()
    assert lines["largest value of the product", "y"] == lines["largest value of the product", "y2"]
    assert lines["a random direction", "y"] == made["jacobian"]["rms"].tolist()
    assert sum(bool(trace.showlegend) for trace in figure.data) == 3
    assert "is the whole Jacobian within" in title_of(figure)


def test_departure_from_linear(made) -> None:
    figure = plots.perturbation(made["perturbation"])
    end = made["perturbation"].query("component == 'L2.mlp'")
    assert figure.data[-1].name == "after L2.mlp"
    assert list(figure.data[-1].y) == end["error"].tolist()
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_loss_and_divergence_against_the_factor(made) -> None:
    figure = plots.scaled_steps(made["steps"])
    own = made["steps"].query("calls == 1")
    assert list(figure.data[0].x) == [0, 0.5, 1, 1.5]
    assert figure.data[0].y[2] is None  # KL is 0 at h = 1, which a log axis cannot show
    assert list(figure.data[1].y) == own["loss"].tolist()
    assert {trace.name for trace in figure.data} == {"each layer once", "2 calls of h / 2"}


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_has_a_summary_and_a_theme(made, dark: bool) -> None:
    for draw, name in [
        (plots.trajectory, "trajectory"),
        (plots.geometry, "trajectory"),
        (plots.amplification, "jacobian"),
        (plots.perturbation, "perturbation"),
        (plots.scaled_steps, "steps"),
    ]:
        figure = draw(made[name], dark=dark)
        assert len(figure.layout.meta["summary"]) > 40
        assert figure.layout.paper_bgcolor is None  # the template's
        assert (figure.layout.template.layout.paper_bgcolor == "#15181d") is dark


def test_the_wrong_frame_is_refused(made) -> None:
    with pytest.raises(InputError, match="a Jacobian's frame with a column 'reached'"):
        plots.amplification(made["trajectory"])
    with pytest.raises(InputError, match="a frame of scaled steps with a column 'h'"):
        plots.scaled_steps(made["jacobian"])
