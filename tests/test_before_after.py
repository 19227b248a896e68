"""Before, update, after: what writes do to a reader adds up, at the reader's own depth, on every wiring."""

import pytest
import torch

import streamlens
import zoo
from streamlens import Reader, before_after, decompose, read
from streamlens.frames import SCHEMAS
from streamlens.readouts.lens import streams

IDS = torch.tensor([[7, 30, 12, 50, 44, 9], [21, 33, 60, 0, 0, 0]])
MASK = torch.tensor([[1] * 6, [1] * 3 + [0] * 3])
PRE_NORM = ["llama", "gpt2", "gpt_neox", "gemma2", "granite"]


def ledger_of(name: str, level: str = "sublayer"):
    handle = streamlens.load(zoo.build(name))
    return handle, decompose(handle, IDS, attention_mask=MASK, level=level)


def reader_of(d_model: int, after: str | None = None) -> Reader:
    """Two rows with a bias, like a probe."""
    draw = torch.Generator().manual_seed(5)
    matrix = torch.randn(2, d_model, generator=draw, dtype=torch.float64)
    bias = torch.tensor([0.7, -2.0], dtype=torch.float64)
    return Reader(name="p", rows=("a", "b"), unit="u", matrix=matrix, bias=bias, norm="none", after=after)


@pytest.mark.parametrize("name", [*PRE_NORM, "opt:post-norm"])
@pytest.mark.parametrize("after", [None, "L1.attn"])
def test_it_adds_up_to_the_readers_value(name: str, after: str | None) -> None:
    _, ledger = ledger_of(name)
    reader = reader_of(ledger.stream.shape[-1], after)
    steps = before_after(ledger, reader)
    stream = (ledger if after is None else ledger.at(after)).stream.double()
    wanted = stream @ reader.matrix.T + reader.bias
    torch.testing.assert_close(steps.after[-1], wanted, rtol=0, atol=1e-9)
    assert float(steps.closure.max()) < 1e-9
    torch.testing.assert_close(steps.before + steps.update, steps.after, rtol=0, atol=1e-12)
    torch.testing.assert_close(steps.before[1:], steps.after[:-1], rtol=0, atol=0)
    assert steps.sites[-1].kind == "rounding"
    if after is not None:
        assert steps.sites[-2].label.startswith(after)  # in a post-norm model the norm's bias belongs to the write


@pytest.mark.parametrize("name", PRE_NORM)
def test_each_value_is_the_readers_on_the_stream_there(name: str) -> None:
    """In a pre-norm model: the reader on the model's own stream, up to the roundings that come last."""
    _, ledger = ledger_of(name)
    reader = reader_of(ledger.stream.shape[-1])
    steps = before_after(ledger, reader)
    for row, stream in enumerate(streams(ledger)):
        wanted = stream.double() @ reader.matrix.T + reader.bias
        torch.testing.assert_close(steps.after[row][ledger.mask], wanted[ledger.mask], rtol=1e-5, atol=1e-4)
    assert (steps.start[ledger.mask] == reader.bias).all()


def test_a_reader_behind_the_norm_starts_with_what_no_write_brings() -> None:
    handle, ledger = ledger_of("gpt_neox")
    reader = Reader.logits(handle, [17, 42])
    steps, readout = before_after(ledger, reader), read(ledger, reader)
    torch.testing.assert_close(steps.after[-1], readout.total, rtol=0, atol=1e-9)
    constant = [n for n, site in enumerate(readout.sites) if site.kind.endswith("bias")]
    assert constant
    torch.testing.assert_close(steps.start, readout.contributions[constant].sum(0), rtol=0, atol=1e-12)


def test_a_softcap_is_the_last_row() -> None:
    handle, ledger = ledger_of("gemma2")
    steps = before_after(ledger, Reader.logits(handle, [17]))
    assert [site.kind for site in steps.sites[-2:]] == ["rounding", "softcap"]
    assert float(steps.closure.max()) < 1e-4


def test_the_frame_is_the_table() -> None:
    _, ledger = ledger_of("llama", level="head")
    steps = before_after(ledger, reader_of(ledger.stream.shape[-1], "L0.mlp"))
    frame = steps.to_frame()
    assert set(SCHEMAS["steps"]) <= set(frame.columns)
    assert "head" in frame.columns
    types = {column: str(kind) for column, kind in frame.dtypes.items() if column in SCHEMAS["steps"]}
    assert types == {column: kind for column, (kind, _) in SCHEMAS["steps"].items()}
    assert len(frame) == 2 * (6 + 3) * len(steps.sites)  # readers x tokens without padding x rows
    one = frame[(frame["prompt_id"] == 1) & (frame["position"] == 2) & (frame["reader"] == "b")]
    assert one["after"].iloc[-1] == float(steps.after[-1, 1, 2, 1])
    assert one["before"].iloc[0] == -2.0
    assert (one["before"] + one["update"] - one["after"]).abs().max() < 1e-12
    assert (frame.attrs["reads_after"], frame.attrs["unit"]) == ("L0.mlp", "u")
