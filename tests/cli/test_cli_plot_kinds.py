"""`streamlens plot` draws the figures that are in no study too, from a frame that was written to a file."""

import json
import re
from pathlib import Path

import pytest
import torch

import streamlens
import zoo
from streamlens import Reader, backward, compare, decompose, jacobian, paths, perturb, plots, scale_steps, trajectory
from streamlens.cli.plot import OF_A_STUDY, TOLD
from streamlens.frames import probe_frame
from streamlens.sites import Site

IDS = torch.tensor([[7, 30, 12, 50, 44]])
#: by another test: of a study, of a batch, of a lesion
ELSEWHERE = {*OF_A_STUDY, *TOLD, "corpus", "lesion"}
MADE = {
    "amplification": "jacobian",
    "backward": "backward",
    "comparison": "comparison",
    "geometry": "trajectory",
    "paths": "paths",
    "perturbation": "perturbation",
    "probe_depth": "probe",
    "scaled_steps": "steps",
    "spectrum": "jacobian",
    "trajectory": "trajectory",
    "visibility_map": "map",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A Parquet file of each frame, of a tiny model."""
    model = streamlens.load(zoo.build("llama"))
    reader = Reader.logit_diff(model, 5, 7)
    ledger = decompose(model, IDS)
    shares = {name: torch.tensor([0.5, 0.9]) for name in ("train_accuracy", "accuracy", "shuffled")}
    bands = {name: torch.tensor([0.4, 0.6]) for name in ("shuffled_low", "shuffled_high")}
    same = {"context": 0.9, "chance": 0.5, "chance_low": 0.4, "chance_high": 0.6, "train": 160, "held_out": 80}
    seen = streamlens.visibility_map(decompose(model, IDS, positions=4), model)
    frames = {
        "backward": backward(model, IDS, reader).to_frame(),
        "comparison": compare(model, IDS, IDS.flip(1)[:, :4], token=(4, 0), readers=[reader]).to_frame(),
        "jacobian": jacobian(model, IDS, position=2).to_frame(),
        "map": seen.to_frame(),
        "paths": paths(model, IDS, reader, samples=2).to_frame(),
        "perturbation": perturb(model, IDS, position=2).to_frame(),
        "probe": probe_frame(
            [Site(kind="embed"), Site(kind="attn", layer=0)],
            shares | bands,
            same,
            {"method": "mean_difference", "token": " bank", "model": "tiny"},
        ),
        "steps": scale_steps(model, IDS, [0.0, 0.5, 1.0]).to_frame(),
        "trajectory": trajectory(ledger, model).to_frame(),
    }
    folder = tmp_path_factory.mktemp("frames")
    for name, frame in frames.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    return folder


def test_every_kind_is_drawn_somewhere() -> None:
    assert set(MADE) == set(plots.__all__) - ELSEWHERE


@pytest.mark.parametrize("kind", list(MADE))
def test_a_file_becomes_a_page_with_its_figure(run, folder: Path, tmp_path: Path, kind: str) -> None:
    page = tmp_path / "a.html"
    said = run("plot", kind, str(folder / f"{MADE[kind]}.parquet"), "-o", str(page))
    assert said.exit_code == 0, said.stderr
    found = re.search(r'id="streamlens-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert len(json.loads(found[1])["figures"]) == 1
