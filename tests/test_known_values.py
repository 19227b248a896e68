"""The numbers of the main job on the default model: float32, no BOS, ten tokens."""

import pytest

from streamlens import Reader, decompose, logit_lens, read

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def ledger(default_model, bank):
    return decompose(default_model, bank)


@pytest.fixture(scope="module")
def readout(default_model, ledger):
    return read(ledger, Reader.logit_diff(default_model, " river", " money"))


def test_the_tokens(ledger):
    assert ledger.token_ids.shape == (1, 10)
    assert int(ledger.token_ids[0, -1]) == 5461
    assert ledger.tokens[0][-1] == " bank"
    assert ledger.provenance["bos"] == "none"


def test_the_rows(ledger):
    layers = [f"L{layer}.{kind}" for layer in range(30) for kind in ("attn", "mlp")]
    assert ledger.labels == ("embed", *layers)


def test_closure(ledger):
    assert ledger.in_order == 0.0
    assert float(ledger.closure.max()) < 1e-6


def test_river_against_money(readout):
    assert float(readout.observed[0, -1, 0]) == pytest.approx(3.742, abs=5e-4)
    assert float(readout.total[0, -1, 0]) == pytest.approx(3.742, abs=5e-4)
    assert float(readout.closure.max()) < 1e-4


def test_the_largest_contributions(readout):
    contributions = dict(zip(readout.labels, readout.contributions[:, 0, -1, 0].tolist(), strict=True))
    largest = sorted(contributions, key=lambda label: -abs(contributions[label]))[:4]
    assert largest == ["L27.mlp", "L26.mlp", "L27.attn", "L24.attn"]
    assert [round(contributions[label], 2) for label in largest] == [-1.51, 1.28, 0.97, 0.96]
    assert abs(contributions["rounding"]) < 1e-4


def test_the_other_bank(default_model):
    check = decompose(default_model, "After cashing the check, she waited at the bank")
    readout = read(check, Reader.logit_diff(default_model, " river", " money"))
    assert float(readout.total[0, -1, 0]) == pytest.approx(-6.249, abs=5e-4)
    assert float(readout.closure.max()) < 1e-4


def test_both_at_once_are_each_alone(default_model, bank):
    """Ten and eleven tokens: the shorter prompt is padded."""
    reader = Reader.logit_diff(default_model, " river", " money")
    prompts = [bank, "After cashing the check, she waited at the bank"]
    both = read(decompose(default_model, prompts, positions="bank"), reader)
    assert both.total[:, 0, 0].tolist() == pytest.approx([3.742, -6.249], abs=5e-4)


def test_the_frame_sums_to_the_stated_difference(readout):
    frame = readout.to_frame()
    assert frame.query("position == 9")["contribution"].sum() == pytest.approx(3.742, abs=1e-3)


def test_the_lens_ends_at_the_models_prediction(default_model, ledger):
    lens = logit_lens(ledger, default_model, top=3)
    best = ledger.logits[0].topk(3).indices
    assert lens.ids[-1, 0].tolist() == best.tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_the_books_still_balance(bank, dtype):
    """To the last bit in order; what the roundings added is a row, and the difference is that of the logits."""
    import streamlens

    model = streamlens.load("smollm2-135m", dtype=dtype)
    ledger = decompose(model, bank)
    assert ledger.labels[:3] == ("embed", "L0.attn", "L0.mlp")
    assert len(ledger.labels) == 61
    assert ledger.in_order == 0.0
    readout = read(ledger, Reader.logit_diff(model, " river", " money"))
    assert float(readout.total[0, -1, 0]) == pytest.approx(3.742, abs=0.1)
    assert float(readout.closure[0, -1, 0]) < 0.1
