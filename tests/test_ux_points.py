"""What a user is promised of everything at once: figures are returned, every study figure closes, nothing is sent."""

import ast
import re
import socket
from pathlib import Path

import pytest

import streamlens
from streamlens import plots
from streamlens.report import responses_of
from study_frames import small_study

PACKAGE = Path(streamlens.__file__).parent
CLOSES = "Writes sum to the stream within 3.1e-07 of it"


@pytest.fixture(scope="module")
def drawn() -> dict:
    """Every figure of a study."""
    study = small_study(layers=2)
    frames, one = study.frames, "L1.attn@9"
    changes = frames["changes"]
    return {
        "contributions": plots.contributions(frames["readout"]),
        "heatmap": plots.heatmap(frames["readout"]),
        "norm_growth": plots.norm_growth(frames["writes"]),
        "token_strip": plots.token_strip(frames["readout"]),
        "before_after": plots.before_after(frames["steps"]),
        "effects": plots.effects(frames["effects"]),
        "downstream": plots.downstream(changes[changes["variant"] == one], variant=one),
        "responses": plots.responses(responses_of(study)),
        "lens": plots.lens(frames["lens"]),
        "sources": plots.sources(frames["sources"]),
        "visibility": plots.visibility(frames["visibility"]),
    }


def test_every_figure_of_a_study_says_that_it_adds_up_and_of_what(drawn) -> None:
    for name, figure in drawn.items():
        said = " ".join(figure.layout.meta["title"])
        assert CLOSES in said, name
        assert "“After crossing the river, she rested on the bank”" in said, name
        assert "tiny-model" in said, name


def test_no_figure_is_a_waterfall_trace_or_red_green(drawn) -> None:
    assert {trace.type for figure in drawn.values() for trace in figure.data} <= {"bar", "heatmap", "scatter"}
    for figure in drawn.values():
        colours = re.findall(r"#[0-9a-f]{6}", str(figure.to_dict()["data"]))
        assert not any(green(colour) for colour in colours)


def green(colour: str) -> bool:
    """Green is far above both red and blue."""
    red, mid, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return mid > 1.4 * max(red, blue)


def test_what_is_green_is_found() -> None:
    assert green("#2ca02c")
    assert not green("#2f9488")


def shows(source: str) -> list[str]:
    """Calls in a module that would open a window or a browser."""
    called = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        ast.unparse(name)
        for name in called
        if isinstance(name, ast.Attribute) and name.attr in ("show", "open_new_tab")
    ]


def test_no_figure_shows_itself() -> None:
    assert shows("figure.show()") == ["figure.show"]
    for folder in ("plots", "report", "lab", "frames"):
        for module in sorted((PACKAGE / folder).rglob("*.py")):
            assert shows(module.read_text(encoding="utf-8")) == [], module.name


@pytest.mark.model
def test_with_the_model_there_nothing_is_asked_of_the_network(monkeypatch: pytest.MonkeyPatch, bank: str) -> None:
    def refuse(*where: object, **_: object) -> None:
        raise AssertionError(f"something was asked of {where}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(AssertionError, match="something was asked"):
        socket.create_connection(("127.0.0.1", 9))
    model = streamlens.load("smollm2-135m")
    ledger = streamlens.decompose(model, bank)
    reader = streamlens.Reader.logit_diff(model, " river", " money")
    assert plots.contributions(streamlens.read(ledger, reader).to_frame()).data
