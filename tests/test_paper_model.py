"""The main job on a model solved on paper: every number here was worked out by hand."""

import pytest
import torch
from torch import tensor

import streamlens
from paper_model import LABELS, PROMPT, STREAMS, WRITES, PaperModel
from streamlens import Reader, decompose, logit_lens, read


@pytest.fixture(scope="module")
def model():
    return streamlens.load(PaperModel())


@pytest.fixture(scope="module")
def ledger(model):
    return decompose(model, PROMPT)


def test_the_writes_are_the_literal_ones(ledger):
    assert ledger.labels == LABELS
    assert torch.equal(ledger.writes[:, 0], tensor(WRITES))


def test_the_stream_is_their_sum_to_the_last_bit(ledger):
    assert torch.equal(ledger.stream[0], tensor([[7.0, 1.0], [1.0, 7.0]]))
    assert ledger.in_order == 0.0
    assert torch.equal(ledger.rounding, torch.zeros(1, 2, 2, dtype=torch.float64))
    assert torch.equal(ledger.closure, torch.zeros(1, 2, dtype=torch.float64))


@pytest.mark.parametrize("row", range(5))
def test_the_stream_after_each_write(ledger, row):
    cut = ledger.at(LABELS[row])
    assert cut.labels == LABELS[: row + 1]
    assert torch.equal(cut.writes[:, 0], tensor(WRITES[: row + 1]))
    assert torch.equal(cut.stream[0], tensor(STREAMS[row]))
    assert not cut.rounding.any()
    assert cut.logits is None


def test_the_final_norm_is_frozen_at_five(ledger):
    norm = ledger.final_norm
    assert torch.equal(norm.gain, tensor([2.0, 0.5], dtype=torch.float64))
    assert norm.bias is None
    assert not norm.centred
    assert norm.scale[0].tolist() == pytest.approx([1 / 5, 1 / 5], rel=1e-15)


def test_the_wiring_says_what_was_built(model):
    wiring = model.wiring
    assert (wiring.blocks, wiring.n_layers, wiring.d_model, wiring.exact) == ("blocks", 2, 2, True)
    assert [write.tap.module for write in wiring.writes] == [
        "embedding",
        "blocks.0.attn",
        "blocks.0.mlp",
        "blocks.1.attn",
        "blocks.1.mlp",
    ]
    assert [write.scale for write in wiring.writes] == [1.0] * 5
    assert wiring.final_norm.tap.module == "norm"
    assert (wiring.head.module, wiring.head.scale, wiring.head.softcap) == ("unembedding", 1.0, None)


def test_a_logit_in_parts(model, ledger):
    """logit(2) = (0, 10) . gain . x / 5 = x_1: the second coordinate of every write."""
    readout = read(ledger, Reader.logits(model, [2]))
    assert readout.labels == (*LABELS, "rounding")
    second = tensor(WRITES, dtype=torch.float64)[..., 1]
    assert torch.allclose(readout.contributions[:-1, 0, :, 0], second, rtol=1e-15)
    assert readout.contributions[-1].tolist() == [[[0.0], [0.0]]]
    assert readout.total[0, :, 0].tolist() == pytest.approx([1.0, 7.0], abs=1e-15)


def test_a_logit_difference_in_parts(model, ledger):
    """logit(0) - logit(1) = (0, -10) . gain . x / 5 + .5 + .25 = -x_1 + .75."""
    readout = read(ledger, Reader.logit_diff(model, 0, 1))
    assert readout.reader.unit == "logits"
    assert readout.labels == (*LABELS, "rounding", "unembed.bias")
    assert readout.contributions[:, 0, 0, 0].tolist() == pytest.approx([0, -2.5, -1.5, 1.375, 1.625, 0, 0.75])
    assert readout.contributions[:, 0, 1, 0].tolist() == pytest.approx([-2, -2.5, -3.5, -0.625, 1.625, 0, 0.75])
    assert readout.total[0, :, 0].tolist() == pytest.approx([-0.25, -6.25])
    assert float(readout.closure.max()) < 1e-6  # the model's own logits are float32


def test_the_readers_total_is_what_the_model_says(model, ledger):
    """Normed stream (7, 1) * (2, .5) / 5 = (2.8, .1), so logit(3) = 14 - 1 = 13; (1, 7) gives 2 - 7 = -5."""
    logits = model.model(tensor(PROMPT)).logits[0, :, 3]
    readout = read(ledger, Reader.logits(model, [3]))
    assert logits.tolist() == pytest.approx([13.0, -5.0], abs=1e-5)
    assert readout.total[0, :, 0].tolist() == pytest.approx([13.0, -5.0], abs=1e-12)
    assert readout.observed[0, :, 0].tolist() == pytest.approx([13.0, -5.0], abs=1e-5)


def test_a_direction_reads_the_stream_itself(ledger):
    readout = read(ledger, Reader.direction([1.0, -1.0], name="difference"))
    assert readout.contributions[:-1, 0, 1, 0].tolist() == [-3.0, -0.5, -3.25, 3.375, -2.625]
    assert readout.total[0].tolist() == [[6.0], [-6.0]]
    assert not readout.closure.any()


def test_the_lens_norms_each_depth_by_itself(model, ledger):
    """After the embedding the first stream is (1, 0): sigma = sqrt(1 / 2), so the normed one is (2 sqrt 2, 0).

    Logits: 2 sqrt 2 + .5, 2 sqrt 2 - .25, 0, 10 sqrt 2. The direct contribution to logit 3 is (5 * 2) / 5 = 2.
    """
    lens = logit_lens(ledger, model, top=4)
    assert lens.ids[0, 0, 0].tolist() == [3, 0, 1, 2]
    root = 2**0.5
    assert lens.logits[0, 0, 0].tolist() == pytest.approx([10 * root, 2 * root + 0.5, 2 * root - 0.25, 0.0])
    assert float(read(ledger, Reader.logits(model, [3])).contributions[0, 0, 0, 0]) == pytest.approx(2.0)


def test_the_lens_at_the_end_is_the_model(model, ledger):
    lens = logit_lens(ledger, model, top=4)
    logits = model.model(tensor(PROMPT)).logits
    assert torch.allclose(lens.logits[-1], logits.sort(dim=-1, descending=True).values, atol=1e-5)
    assert lens.probabilities.sum(-1).flatten().tolist() == pytest.approx([1.0] * 10)


def test_the_frame_holds_the_hand_worked_numbers(model, ledger):
    frame = ledger.to_frame()
    row = frame[(frame["component"] == "L1.attn") & (frame["position"] == 1)].iloc[0]
    assert row["norm"] == pytest.approx((4.0**2 + 0.625**2) ** 0.5)
    assert row["share"] == pytest.approx((4.0 * 1 + 0.625 * 7) / 50)  # |(1, 7)|^2 = 50
    assert row["stream_norm"] == pytest.approx((5.25**2 + 8.625**2) ** 0.5)
    assert (row["layer"], row["kind"], row["order"]) == (1, "attn", 3)


def test_the_paper_can_be_wrong(model):
    """A positive control: with one weight changed the literal writes do not come out."""
    changed = PaperModel()
    with torch.no_grad():
        changed.blocks[0].mlp.fc_out.weight[1, 1] = 0.5
    writes = decompose(streamlens.load(changed), PROMPT).writes[:, 0]
    same = [torch.equal(write, tensor(wanted)) for write, wanted in zip(writes, WRITES, strict=True)]
    assert same == [True, True, False, False, False]
