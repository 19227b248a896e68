"""The map of who reads whom, against a slow, obvious loop on tiny models; and that it is kept as long as the model."""

import gc
import weakref
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
import torch

import streamlens
import zoo
from streamlens import Reader, decompose, visibility, visibility_map
from streamlens.errors import InputError, ModelError
from streamlens.readouts.readers.model_readers import each_reader
from streamlens.readouts.visible import visibility_map as module

IDS = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 24, 25]])
#: RMSNorm with grouped heads, LayerNorm, parallel branches, norms on the branches' outputs, and two post-norm streams
NAMES = ["llama", "gpt2", "phi", "gemma2", "bert"]


@cache
def case(name: str):
    model = streamlens.load(zoo.build(name))
    return model, decompose(model, IDS)


def obvious(ledger, model, prompt: int, position: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share, chance and gain of every pair by numpy, one at a time: no basis is kept, nothing is stacked."""
    readers = []
    with suppress(ModelError):  # what is left out for a model without a linear head is only the unembedding
        for reader in each_reader(model, stream=ledger.provenance["stream"]):
            readers.append(reader)
    shape = len(ledger.sites), len(readers)
    share, gain = np.full(shape, np.nan), np.full(shape, np.nan)
    chance = np.zeros(len(readers))
    for column, reader in enumerate(readers):
        rows = reader.matrix.numpy().copy()
        if reader.through is not None:
            rows = rows * reader.through.gain.numpy()
            if reader.through.centred:
                rows = rows - rows.mean(1, keepdims=True)
        d_model = rows.shape[1]
        projector = np.linalg.pinv(rows, rcond=1e-10) @ rows
        chance[column] = np.trace(projector) / d_model
        cut = ledger if reader.after is None else ledger.at(reader.after)
        for row in range(len(cut.sites)):
            u = cut.writes[row, prompt, position].double().numpy()
            seen = projector @ u
            share[row, column] = (seen @ seen) / (u @ u)
            usual = np.linalg.norm(u) * np.linalg.norm(rows) / np.sqrt(d_model)
            gain[row, column] = np.linalg.norm(rows @ u) / usual
    return share, chance, gain


@pytest.mark.parametrize("name", NAMES)
def test_it_equals_a_slow_obvious_loop(name):
    model, ledger = case(name)
    found = visibility_map(ledger, model, position=3, prompt=1)
    share, chance, gain = obvious(ledger, model, prompt=1, position=3)
    assert share.shape[1] > 20
    np.testing.assert_allclose(found.chance.numpy(), chance, atol=1e-8)
    np.testing.assert_allclose(found.share.numpy(), share, atol=1e-10)
    np.testing.assert_allclose(found.gain.numpy(), gain, rtol=1e-9)
    np.testing.assert_array_equal(found.sees.numpy(), ~np.isnan(share))
    np.testing.assert_allclose(found.lift.numpy(), share / chance, rtol=1e-7)


def test_it_equals_the_visibility_of_each_reader():
    model, ledger = case("llama")
    found = visibility_map(ledger, model, position=2)
    names = [reader.name for reader in found.readers]
    for reader in (Reader.head(model, "L1H2", "q"), Reader.head(model, "L2H3", "v"), Reader.mlp(model, "L1.mlp")):
        column, one = names.index(reader.name), visibility(ledger, reader)
        rows = len(one.ledger.sites)
        assert found.sees[:, column].sum() == rows
        torch.testing.assert_close(found.share[:rows, column], one.share[:, 0, 2])
        torch.testing.assert_close(found.gain[:rows, column], one.gain[:, 0, 2])


def test_only_later_readers_see_a_write():
    """The last MLP's write is seen by the unembedding alone, the embedding by every reader."""
    model, ledger = case("llama")
    found = visibility_map(ledger, model, position=2)
    assert found.sees[0].all()
    last = [r.name for r, sees in zip(found.readers, found.sees[-1].tolist(), strict=True) if sees]
    assert last == ["unembedding"]
    attention = ledger.labels.index("L1.attn")
    first = next(r.name for r, sees in zip(found.readers, found.sees[attention].tolist(), strict=True) if sees)
    assert first == "L1.mlp.in"


def test_an_effective_row_space_is_for_readers_of_full_rank_only():
    model, ledger = case("llama")
    whole, cut = (visibility_map(ledger, model, position=2, energy=energy) for energy in (None, 0.7))
    assert all(reader.exact for reader in whole.readers)
    d_model = ledger.stream.shape[-1]
    for before, after in zip(whole.readers, cut.readers, strict=True):
        assert after.exact == (before.rank < d_model)
        assert after.rank < before.rank if before.rank == d_model else after.rank == before.rank
    one = visibility(ledger, Reader.mlp(model, "L1.mlp"), energy=0.7)
    column = [reader.name for reader in cut.readers].index("L1.mlp.in")
    torch.testing.assert_close(cut.share[: len(one.ledger.sites), column], one.share[:, 0, 2])
    torch.testing.assert_close(cut.gain, whole.gain, equal_nan=True)


def test_the_frame():
    model, ledger = case("llama")
    found = visibility_map(ledger, model, position=2)
    frame = found.to_frame()
    assert len(frame) == found.sees.numel()
    assert list(frame["reader"].cat.categories) == [reader.name for reader in found.readers]
    wide = frame.pivot_table(index="component", columns="reader", values="lift", observed=False, dropna=False)
    np.testing.assert_allclose(wide.to_numpy(), found.lift.numpy(), rtol=1e-5)
    assert frame.loc[~frame["sees"], "lift"].isna().all()
    assert frame["reader_part"].unique().tolist() == ["q", "k", "v", "in", "unembedding"]
    assert frame["reader_layer"].isna().sum() == len(ledger.sites)


def test_bases_are_made_once_and_go_with_the_model(monkeypatch):
    model = streamlens.load(zoo.build("llama"))
    ledger = decompose(model, IDS)
    first = visibility_map(ledger, model, position=1)
    monkeypatch.setattr(module, "each_reader", None)  # a second making would fail
    again = visibility_map(ledger, model, position=1)
    assert torch.equal(first.lift.nan_to_num(), again.lift.nan_to_num())
    kept, gone = len(module._KEPT), weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(module._KEPT) == kept - 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "The map is of one token; give position="),
        ({"position": 9}, "A position is between 0 and 4; got 9."),
        ({"position": 1, "prompt": 2}, "A prompt of this ledger is between 0 and 1; got 2."),
        ({"position": 1, "energy": 2.0}, "0 < energy <= 1; got 2.0."),
    ],
)
def test_what_cannot_be_asked(options, text):
    model, ledger = case("llama")
    with pytest.raises(InputError, match=text):
        visibility_map(ledger, model, **options)


def test_a_ledger_that_keeps_one_position_needs_none_named():
    model, _ = case("llama")
    one = decompose(model, IDS[:1], positions=3)
    found = visibility_map(one, model)
    assert torch.equal(found.share.nan_to_num(), visibility_map(one, model, position=3).share.nan_to_num())
    with pytest.raises(InputError, match="keeps the positions 3; got 1"):
        visibility_map(one, model, position=1)
