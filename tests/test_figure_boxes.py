"""In a browser, at 61 and 201 rows and at 200 tokens: every row is labelled and no text lies on another."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import streamlens
from figure_frames import PROMPT, readout_frame, writes_frame
from page_visit import browser, overlaps, visit
from streamlens import Reader, backward, compare, decompose, paths, plots, trajectory
from streamlens.display import display_token
from streamlens.frames import probe_frame
from streamlens.report import Section, page
from streamlens.sites import Site
from study_frames import small_study

__all__ = ["browser", "visit"]  # fixtures
pytestmark = pytest.mark.browser
EVERY = 10_000


def sight_frame(layers: int, readers: int) -> pd.DataFrame:
    """A map of visibility: every write by so many readers a layer, and the unembedding."""
    writes = list(writes_frame([" bank"], layers=layers)["component"].cat.categories[:-1])
    names = [(f"L{layer}H{head}.k", "k", layer) for layer in range(layers) for head in range(readers)]
    names.append(("unembedding", "unembedding", None))
    frame = pd.MultiIndex.from_product([range(len(writes)), range(len(names))], names=["order", "_n"]).to_frame(False)
    frame["component"] = pd.Categorical([writes[i] for i in frame["order"]], writes, ordered=True)
    frame["reader"] = pd.Categorical([names[i][0] for i in frame["_n"]], [name for name, *_ in names], ordered=True)
    frame["reader_part"] = [names[i][1] for i in frame["_n"]]
    frame["reader_layer"] = pd.array([names[i][2] for i in frame["_n"]], dtype="Int16")
    frame["lift"] = 1.0 + np.arange(len(frame)) % 5 / 10
    frame["gain"], frame["sees"] = frame["lift"], True
    same = {"prompt_id": 0, "position": 0, "token_id": 1, "token": " bank", "special": False, "sink": False}
    return frame.drop(columns="_n").assign(**same)


def growth_frame(layers: int) -> pd.DataFrame:
    """A Jacobian's frame."""
    steps = [f"L{layer}.{kind}" for layer in range(layers) for kind in ("attn", "mlp")]
    size = np.linspace(1.1, 9.0, len(steps))
    frame = pd.DataFrame({"component": steps, "largest": size, "smallest": 1 / size, "reached": size, "rms": size**0.5})
    frame = frame.assign(bound=np.cumprod(size[:60].tolist() + [1.0] * (len(size) - 60))[: len(size)])
    frame = frame.assign(position=9, token=" bank", start="embed")
    frame.attrs = {"method": "dense", "others": "held", "singular_values": (1000.0 ** np.linspace(1, -1, 576)).tolist()}
    return frame


@pytest.mark.parametrize("layers", [30, 100])
@pytest.mark.parametrize("width", [1280, 420])
def test_every_row_is_labelled_and_no_label_lies_on_another(visit, layers: int, width: int) -> None:
    study = small_study(layers=layers)
    drawn = {
        "contributions": (plots.contributions(study.frames["readout"], top=EVERY), 2 * layers + 3),  # and the total
        "effects": (plots.effects(study.frames["effects"], top=EVERY), 2 * layers),
        "few readers": (plots.visibility_map(sight_frame(layers, 1)), 2 * layers + 1),
        "many readers": (plots.visibility_map(sight_frame(layers, 130 // layers + 1)), 2 * layers + 1),
    }
    seen = visit(
        page([section(name, figure) for name, (figure, _) in drawn.items()], title="t", provenance={}), width=width
    )
    for number, (name, (_, rows)) in enumerate(drawn.items(), 1):
        ticks = seen.boxes(f"section:nth-of-type({number}) .plot .yaxislayer-above .ytick text")
        assert len({text for text, _ in ticks}) == rows, name
        assert overlaps([box for _, box in ticks]) == 0, name
        above = seen.boxes(f"section:nth-of-type({number}) .plot .x2tick text")
        assert bool(above) == name.endswith("readers")
        assert overlaps([box for _, box in above]) == 0, name


@pytest.mark.parametrize("layers", [30, 100])
@pytest.mark.parametrize("width", [1280, 420])
def test_along_the_depth_nothing_lies_on_anything(visit, layers: int, width: int) -> None:
    drawn = {
        "growth": plots.norm_growth(writes_frame(layers=layers)),
        "steps": plots.before_after(small_study(layers=layers).frames["steps"]),
        "amplification": plots.amplification(growth_frame(layers)),
        "spectrum": plots.spectrum(growth_frame(layers)),
    }
    seen = visit(page([section(*item) for item in drawn.items()], title="t", provenance={}), width=width)
    for number, name in enumerate(drawn, 1):
        texts = seen.boxes(f"section:nth-of-type({number}) .plot :is(.xtick, .x2tick, .ytick, .y2tick, .legendtext)")
        texts = [(text, box) for text, box in texts if text]
        assert len(texts) > 10, name
        assert overlaps([box for _, box in texts]) == 0, (name, texts)


def depth_frame(layers: int) -> pd.DataFrame:
    """A probe's accuracy after every write."""
    sites = [Site(kind="embed"), *(Site(kind=kind, layer=n) for n in range(layers) for kind in ("attn", "mlp"))]
    share = torch.linspace(0.4, 1.0, len(sites))
    columns = dict.fromkeys(("train_accuracy", "accuracy", "shuffled", "shuffled_low", "shuffled_high"), share)
    same = {"context": 0.9, "chance": 0.5, "chance_low": 0.39, "chance_high": 0.61, "train": 160, "held_out": 80}
    return probe_frame(sites, columns, same, {"method": "logistic", "token": " bank", "model": "deep"})


@pytest.fixture(scope="module")
def deep() -> dict[str, pd.DataFrame]:
    """Frames of a model with 100 layers: 201 writes."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 30}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = streamlens.load(LlamaForCausalLM(LlamaConfig(num_hidden_layers=100, **sizes)))
    ids, others = torch.tensor([[3, 7, 5, 9]]), torch.tensor([[4, 8, 5, 9]])
    reader = Reader.logit_diff(model, 11, 12)
    return {
        "trajectory": trajectory(decompose(model, ids), model).to_frame(),
        "backward": backward(model, ids, reader).to_frame(),
        "paths": paths(model, ids, reader).to_frame(),
        "comparison": compare(model, ids, others, token=3, readers=reader).to_frame(),
    }


@pytest.mark.parametrize("width", [1280, 420])
def test_two_hundred_writes_lie_on_nothing(visit, deep: dict[str, pd.DataFrame], width: int) -> None:
    assert len(set(deep["trajectory"]["component"])) == 201
    drawn = {
        "path": plots.trajectory(deep["trajectory"], position=3),
        "geometry": plots.geometry(deep["trajectory"]),
        "backward": plots.backward(deep["backward"]),
        "paths": plots.paths(deep["paths"]),
        "comparison": plots.comparison(deep["comparison"], top=EVERY),
        "probe": plots.probe_depth(depth_frame(100)),
    }
    seen = visit(page([section(*item) for item in drawn.items()], title="t", provenance={}), width=width)
    for number, name in enumerate(drawn, 1):
        texts = seen.boxes(f"section:nth-of-type({number}) .plot :is(.xtick, .x2tick, .ytick, .y2tick, .legendtext)")
        texts = [(text, box) for text, box in texts if text]
        assert len(texts) > 6, name
        assert overlaps([box for _, box in texts]) == 0, (name, texts)
    rows = seen.boxes("section:nth-of-type(5) .plot .yaxislayer-above .ytick text")
    assert {text for text, _ in rows} >= {f"L{layer}.{kind}" for layer in range(100) for kind in ("attn", "mlp")}


@pytest.mark.parametrize("width", [1280, 420])
def test_of_two_hundred_tokens_none_lies_on_another(visit, width: int) -> None:
    tokens = PROMPT * 20
    drawn = {
        "strip": plots.token_strip(readout_frame(tokens, layers=2)),
        "growth": plots.norm_growth(writes_frame(tokens, layers=2)),
    }
    seen = visit(page([section(*item) for item in drawn.items()], title="t", provenance={}), width=width)
    names = seen.boxes("section:nth-of-type(1) .plot .heatmap-label text")
    assert [text for text, _ in names] == [display_token(token) for token in tokens]
    numbers = seen.boxes("section:nth-of-type(1) .plot .textpoint text")
    assert [text.split()[0] for text, _ in numbers] == [str(place) for place in range(200)]
    boxes = [*names, *numbers]
    assert overlaps([box for _, box in boxes]) == 0
    legend = seen.boxes("section:nth-of-type(2) .plot .legendtext")
    assert len(legend) > 1
    assert overlaps([box for _, box in legend]) == 0


def section(name: str, figure) -> Section:
    return Section(heading=name, figure=figure, caption="x")
