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


def test_singular_values_by_rank_and_by_depth(made) -> None:
    frame = made["jacobian"]
    figure = plots.spectrum(frame)
    lines = {trace.name: list(trace.y) for trace in figure.data}
    whole = lines["of the whole, by rank"]
    assert whole == frame.attrs["singular_values"]
    assert whole == sorted(whole, reverse=True)
    assert whole[0] == pytest.approx(frame["reached"].iloc[-1])
    random = lines["a random direction, root mean square"][0]
    assert random**2 == pytest.approx(sum(value**2 for value in whole) / len(whole))
    assert lines["largest of the sublayer's own"] == frame["largest"].tolist()
    assert lines["smallest of it"] == frame["smallest"].tolist()
    growing = sum(value > 1 for value in whole)
    assert 0 < growing < len(whole)
    assert f"{growing} of {len(whole)} directions grow" in title_of(figure)


def test_singular_values_that_were_not_all_computed(made) -> None:
    frame = made["jacobian"].assign(rms=float("nan"), smallest=float("nan"))
    frame.attrs.update(method="lanczos", singular_values=[4.0, 2.0, 0.0])
    figure = plots.spectrum(frame)
    assert {trace.name for trace in figure.data} == {"of the whole, by rank", "largest of the sublayer's own"}
    assert figure.data[0].y[2] is None
    assert "the 3 largest were computed" in title_of(figure)
    assert "1 are 0 and not drawn" in title_of(figure)


def test_singular_values_survive_a_file_that_keeps_attributes(made, tmp_path) -> None:
    from streamlens.frames.files import read_frame

    made["jacobian"].to_parquet(tmp_path / "a.parquet")
    made["jacobian"].to_csv(tmp_path / "a.csv", index=False)
    drawn = plots.spectrum(read_frame(tmp_path / "a.parquet"))
    assert list(drawn.data[0].y) == made["jacobian"].attrs["singular_values"]
    with pytest.raises(InputError, match="an attribute of a Jacobian's frame, which this one lacks"):
        plots.spectrum(read_frame(tmp_path / "a.csv"))


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
        (plots.spectrum, "jacobian"),
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
    with pytest.raises(InputError, match="a Jacobian's frame with a column 'reached'"):
        plots.spectrum(made["trajectory"])
    several = made["jacobian"].copy()
    several.attrs = {**several.attrs, "prompts": ["a", "b"]}
    with pytest.raises(InputError, match="of one prompt are drawn; this frame holds 2 prompts"):
        plots.spectrum(several)
    with pytest.raises(InputError, match="a frame of scaled steps with a column 'h'"):
        plots.scaled_steps(made["jacobian"])
    for kind, draw in (
        ("jacobian", plots.amplification),
        ("perturbation", plots.perturbation),
        ("steps", plots.scaled_steps),
    ):
        two = pd.concat([made[kind].assign(prompt_id=number) for number in (0, 1)])
        with pytest.raises(InputError, match="this figure draws one prompt; this frame holds 2"):
            draw(two)
