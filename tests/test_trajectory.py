"""The geometry of depth: by hand on the model solved on paper, and as facts that hold for every wiring."""

import math

import pytest
import torch

import streamlens
import zoo
from closeness import assert_close
from paper_model import GAIN, PROMPT, STREAMS, UNEMBEDDING, UNEMBEDDING_BIAS, PaperModel
from streamlens import decompose
from streamlens.errors import InputError
from streamlens.frames import SCHEMAS
from streamlens.readouts.depth.trajectory import trajectory

#: one of each wiring
MODELS = ["llama", "gpt2", "gpt_neox", "falcon", "opt:post-norm", "openai-gpt", "granite", "gemma2", "bert", "bloom"]


def tiny(name: str, dtype: torch.dtype = torch.float32):
    entry = zoo.BY_NAME[name]
    model = streamlens.load(zoo.build(entry, dtype))
    return model, decompose(model, zoo.inputs(entry, batch=2, length=6)["input_ids"])


def by_hand(name: str, wanted: list[float]) -> None:
    """A column of the first token of the paper model, write by write."""
    model = streamlens.load(PaperModel())
    found = getattr(trajectory(decompose(model, PROMPT), model), name)[:, 0, 0]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6, nan_ok=True)


NAN = float("nan")


def test_lengths_by_hand() -> None:
    """The streams are (1, 0), (1, 2.5), (1.25, 4), (5.25, 2.625), (7, 1)."""
    by_hand("norm", [1, math.hypot(1, 2.5), math.hypot(1.25, 4), math.hypot(5.25, 2.625), math.hypot(7, 1)])
    by_hand("write_norm", [1, 2.5, math.hypot(0.25, 1.5), math.hypot(4, 1.375), math.hypot(1.75, 1.625)])
    squares = [2.3125 / 7.25, (16 + 1.375**2) / (1.25**2 + 16), (1.75**2 + 1.625**2) / (5.25**2 + 2.625**2)]
    by_hand("step", [NAN, 2.5, *map(math.sqrt, squares)])


def test_angles_by_hand() -> None:
    # embed (1, 0), L0.attn (0, 2.5): at right angles, and no branch has written before it
    # L0.mlp (0.25, 1.5): 4 with the stream (1, 2.5), 3.75 with L0.attn, which is all that branches wrote
    # L1.attn (4, -1.375): -0.5 with (1.25, 4), -4.5 with (0.25, 4), -1.0625 with L0.mlp
    # L1.mlp (1.75, -1.625): 4.921875 with (5.25, 2.625), 3.171875 with (4.25, 2.625), 9.234375 with L1.attn
    sizes = [math.hypot(*write) for write in ((0.25, 1.5), (4, 1.375), (1.75, 1.625))]
    streams = [math.hypot(*x) for x in ((1, 2.5), (1.25, 4), (5.25, 2.625))]
    branches = [math.hypot(*x) for x in ((0, 2.5), (0.25, 4), (4.25, 2.625))]

    def cosines(products: list[float], others: list[float]) -> list[float]:
        return [p / a / b for p, a, b in zip(products, sizes, others, strict=True)]

    by_hand("cosine_stream", [NAN, 0, *cosines([4, -0.5, 4.921875], streams)])
    by_hand("cosine_earlier", [NAN, NAN, *cosines([3.75, -4.5, 3.171875], branches)])
    turns = cosines([3.75, -1.0625, 9.234375], [2.5, *sizes[:2]])
    by_hand("turn", [NAN, 90, *(math.degrees(math.acos(turn)) for turn in turns)])


def test_variances_by_hand() -> None:
    """Of two coordinates (a, b) the variance is ((a - b) / 2)^2, the covariance (a - b)(c - d) / 4."""
    by_hand("var_stream", [0, 0.25, 0.5625, 1.890625, 1.72265625])
    by_hand("var_write", [0.25, 1.5625, 0.390625, 7.22265625, 2.84765625])
    by_hand("covariance", [0, -0.625, 0.46875, -3.6953125, 2.21484375])
    by_hand("var_sum", [0.25, 0.5625, 1.890625, 1.72265625, 9])
    by_hand("var_closure", [0] * 5)


def test_telling_the_token_by_hand() -> None:
    """Token 0 is (1, 0), the others (0, 1), (1, 1), (-1, 2): by angle the stream leaves it, and comes back."""
    model = streamlens.load(PaperModel())
    found = trajectory(decompose(model, PROMPT), model)
    assert found.rank_embedding is not None
    assert found.rank_embedding[:, 0, 0].tolist() == [0, 3, 3, 1, 0]  # (5.25, 2.625) is nearer to (1, 1)
    assert found.rank_unembedding is not None
    for place, token in enumerate(PROMPT[0]):
        for row, streams in enumerate(STREAMS):
            x = torch.tensor(streams[place])
            normed = torch.tensor(GAIN) * x * x.square().mean().rsqrt()
            logits = torch.tensor(UNEMBEDDING) @ normed + torch.tensor(UNEMBEDDING_BIAS)
            assert int(found.rank_unembedding[row, 0, place]) == int((logits > logits[token]).sum())
    # at the end, sigma 5: (2.8, 0.1) gives 3.3 against 3.55, 1 and 13; (0.4, 0.7) gives -5 against 0.9, 7.15 and 7
    assert found.rank_unembedding[-1, 0].tolist() == [2, 3]


def test_a_plane_holds_a_path_of_two_coordinates() -> None:
    model = streamlens.load(PaperModel())
    found = trajectory(decompose(model, PROMPT))
    assert found.plane_share.tolist() == [[pytest.approx(1), pytest.approx(1)]]
    path, plane = torch.tensor(STREAMS), found.plane[:, 0]
    for place in range(2):
        assert_close(torch.cdist(plane[:, place], plane[:, place]), torch.cdist(path[:, place], path[:, place]))
    assert (found.plane[-1, ..., 0] >= 0).all()
    assert found.plane.mean(0).abs().max() < 1e-6  # about the mean of the path


@pytest.mark.parametrize("name", MODELS)
def test_facts_of_every_wiring(name: str) -> None:
    model, ledger = tiny(name)
    found = trajectory(ledger, model)
    assert float(found.var_closure.max()) < 1e-5
    assert (found.plane_share <= 1 + 1e-9).all()
    assert (found.plane_share > 0.3).all()
    inside = [row for row, site in enumerate(found.sites) if site.layer is not None]
    assert len(inside) == sum(w.tap is not None and w.site.layer is not None for w in model.wiring.writes)
    for values in (found.cosine_stream[inside], found.cosine_earlier[inside[1:]]):
        assert values.isfinite().all()
        assert float(values.abs().max()) <= 1 + 1e-9
    assert ((found.turn[1:] >= 0) & (found.turn[1:] <= 180)).all()
    assert_close(found.norm[-1], _last_sum(ledger).norm(dim=-1), like=torch.float32)
    frame = found.to_frame()
    assert {c: str(t) for c, t in frame.dtypes.items()} == {c: t for c, (t, _) in SCHEMAS["trajectory"].items()}
    told = SCHEMAS["trajectory_summary"]
    assert {c: str(t) for c, t in found.summary().dtypes.items()} == {c: t for c, (t, _) in told.items()}
    assert frame["rank_embedding"].notna().all() == (name != "opt:post-norm")  # its embedding is narrower
    assert frame["rank_unembedding"].notna().all() == (model.wiring.head is not None)


def _last_sum(ledger) -> torch.Tensor:
    """The stream right after the last write; in a post-norm model before its norm: undone from what it gave."""
    from streamlens.carries import Add, walk

    return [after for _, step, _, after in walk(ledger.program, ledger.added, ledger.states) if isinstance(step, Add)][
        -1
    ]


def test_in_a_pre_norm_model_the_stream_is_the_embedding_and_the_earlier_writes() -> None:
    """The two cosines differ by the embedding alone: |x| cos(f, x) = |e| cos(f, e) + |b| cos(f, b)."""
    _, ledger = tiny("llama", torch.float64)
    found = trajectory(ledger)
    embedding = ledger.added[0].double()
    for row in range(2, len(found.sites)):
        write, before = ledger.added[row].double(), ledger.added[:row].double().sum(0)
        branches = before - embedding
        unit = write / write.norm(dim=-1, keepdim=True)
        assert_close(found.cosine_stream[row] * before.norm(dim=-1), (unit * before).sum(-1), like=torch.float32)
        assert_close(found.cosine_earlier[row] * branches.norm(dim=-1), (unit * branches).sum(-1), like=torch.float32)


def test_without_a_model_nothing_is_said_about_the_token() -> None:
    _, ledger = tiny("llama")
    found = trajectory(ledger)
    assert found.rank_embedding is found.rank_unembedding is None
    assert found.to_frame()["rank_embedding"].isna().all()
    assert found.summary()["told_embedding"].isna().all()


def test_parts_are_refused() -> None:
    model = streamlens.load(zoo.build("llama"))
    with pytest.raises(InputError, match="A trajectory follows whole writes"):
        trajectory(decompose(model, torch.tensor([[5, 6, 7]]), level="head"))


@pytest.mark.model
def test_on_the_default_model(default_model, bank) -> None:
    """Sinks stay out of the summary; the first MLP alone makes the stream twenty times longer."""
    found = trajectory(decompose(default_model, bank), default_model)
    summary = found.summary().set_index("component")
    assert found.ledger.sinks[0].tolist() == [True] + [False] * 9
    assert (summary["tokens"] == 9).all()
    assert summary.attrs["sinks_left_out"] == 1
    assert summary.loc["embed", "told_embedding"] == 1
    assert summary.loc["L0.mlp", "told_embedding"] == 0
    frame = found.to_frame()
    row = frame.loc[(frame["position"] == 9) & (frame["component"] == "L29.mlp")].iloc[0]
    assert row["norm"] == pytest.approx(684.0, abs=0.1)
    assert row["step"] == pytest.approx(0.571, abs=1e-3)
    assert row["cosine_stream"] == pytest.approx(-0.403, abs=1e-3)
    assert row["plane_share"] == pytest.approx(0.884, abs=1e-3)
    assert row["rank_unembedding"] == pytest.approx(880, abs=3)
    assert float(frame["var_closure"].max()) < 1e-6
