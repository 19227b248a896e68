"""MiniLM: a real, trained post-norm encoder. Every write passes every norm after it, and the books still close."""

import pytest
import torch
from torch import Tensor

import streamlens
from closeness import assert_close, relative
from streamlens import Ledger, Reader, decompose, read
from streamlens.errors import InputError, ModelError

pytestmark = pytest.mark.model

SENTENCES = (
    "After crossing the river, she rested on the bank",
    "The bank raised its interest rates again.",
    "Water!",
)


@pytest.fixture(scope="module")
def minilm():
    return streamlens.load("minilm-l6")


@pytest.fixture(scope="module")
def ledger(minilm, bank) -> Ledger:
    return decompose(minilm, bank)


@pytest.fixture(scope="module")
def seen(minilm, bank) -> dict[str, Tensor]:
    """What the model's own modules handed on for the sentence, by their names; blocks as `block 0`, ..."""
    model, taken = minilm.model, {}
    named = {"words": "embeddings.word_embeddings", "block 0 reads": "embeddings"}
    for layer in range(6):
        named[f"attn {layer}"] = f"encoder.layer.{layer}.attention.output.dense"
        named[f"mlp {layer}"] = f"encoder.layer.{layer}.output.dense"
        named[f"middle {layer}"] = f"encoder.layer.{layer}.attention.output.LayerNorm"
        named[f"block {layer}"] = f"encoder.layer.{layer}"

    def keep(name: str):
        def hook(_module, _args, output) -> None:
            taken[name] = (output[0] if isinstance(output, tuple) else output).clone()

        return hook

    handles = [model.get_submodule(path).register_forward_hook(keep(name)) for name, path in named.items()]
    with torch.no_grad():
        model(**minilm.tokenizer(bank, return_tensors="pt"))
    for handle in handles:
        handle.remove()
    return taken


def test_it_closes_on_real_text(ledger, seen):
    assert ledger.tokens[0][0] == "[CLS]"
    assert torch.equal(ledger.stream, seen["block 5"])
    assert float(ledger.closure.max()) < 1e-5
    assert ledger.in_order == 0.0
    assert_close(ledger.writes.sum(0, dtype=torch.float64), seen["block 5"])


def test_the_naive_sum_of_what_the_modules_hand_on_is_wrong(ledger, seen):
    """Each branch's raw output, and the embedding that block 0 reads: 16.7 times the stream itself."""
    naive = seen["block 0 reads"] + sum(seen[f"{branch} {layer}"] for branch in ("attn", "mlp") for layer in range(6))
    assert relative(naive, seen["block 5"]) == pytest.approx(16.7, rel=0.02)
    assert relative(ledger.writes.sum(0), seen["block 5"]) < 1e-6


def test_taking_the_norms_for_writes_is_wrong_too(seen):
    """What a table of module names gives: `attention.output` and `output` hand the whole stream on."""
    naive = seen["block 0 reads"] + sum(seen[f"{what} {layer}"] for what in ("middle", "block") for layer in range(6))
    assert relative(naive, seen["block 5"]) > 3


def test_what_is_added_is_what_the_modules_handed_on(ledger, seen):
    for row, site in enumerate(ledger.sites):
        if site.layer is not None and not site.part:
            assert torch.equal(ledger.added[row], seen[f"{site.kind} {site.layer}"]), site
    assert torch.equal(ledger.added[0], seen["words"])


def test_each_norms_bias_is_a_row_of_its_own(ledger):
    kinds = [site.label for site in ledger.sites]
    assert kinds[:6] == ["embed", "type_embed", "pos_embed", "pos_embed.norm.bias", "L0.attn", "L0.attn.norm.bias"]
    assert sum(label.endswith(".norm.bias") for label in kinds) == 13
    assert len(kinds) == 3 + 12 + 13


def test_the_stream_in_the_middle(ledger, seen):
    for layer in range(6):
        for kind, place in (("attn", "middle"), ("mlp", "block")):
            cut = ledger.at(f"L{layer}.{kind}")
            assert torch.equal(cut.stream, seen[f"{place} {layer}"])
            assert float(cut.closure.max()) < 1e-5
            assert cut.logits is None
    assert torch.equal(ledger.at("pos_embed").stream, seen["block 0 reads"])


def test_a_write_shrinks_on_its_way_to_the_end(ledger):
    """Eleven more norms: the embedding that block 0 reads is a fraction of itself at the end."""
    row = ledger.labels.index("embed")
    at_start = ledger.at("pos_embed").writes[row]
    assert float(ledger.writes[row].norm() / at_start.norm()) < 0.5


def test_heads(minilm, bank, ledger):
    heads = decompose(minilm, bank, level="head")
    assert sum(site.head is not None for site in heads.sites) == 6 * 12
    assert max(heads.split_error.values()) < 1e-5
    assert float(heads.closure.max()) < 1e-5
    for layer in range(6):
        of = [n for n, s in enumerate(heads.sites) if (s.kind, s.layer) == ("attn", layer) and s.part != "norm.bias"]
        whole = ledger.labels.index(f"L{layer}.attn")
        assert len(of) == 12 + 1  # and the output bias
        assert_close(heads.writes[of].sum(0), ledger.writes[whole])


def test_neurons_and_sources(minilm, bank, ledger):
    for level, label in (("neuron", "L3.mlp"), ("source", "L3.attn")):
        parts = decompose(minilm, bank, level=level, sites=[label])
        assert parts.split_error[label] < 1e-5
        of = [n for n, s in enumerate(parts.sites) if s.sublayer.label == label and s.part != "norm.bias"]
        assert_close(parts.writes[of].sum(0), ledger.writes[ledger.labels.index(label)])


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_invisible(minilm, side):
    rows = [minilm.tokenizer(text)["input_ids"] for text in SENTENCES]
    width = max(map(len, rows)) + 2
    ids, mask = torch.zeros(3, width, dtype=torch.long), torch.zeros(3, width, dtype=torch.long)
    for n, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[n, place], mask[n, place] = torch.tensor(row), 1
    together = decompose(minilm, ids, attention_mask=mask)
    for n, text in enumerate(SENTENCES):
        alone = decompose(minilm, text)
        own = together.mask[n]
        assert_close(together.writes[:, n][:, own], alone.writes[:, 0])
        assert_close(together.stream[n][own], alone.stream[0])


def test_sentences_in_a_batch_are_the_sentences_alone(minilm):
    together = decompose(minilm, SENTENCES)
    assert together.prompts == SENTENCES
    for n, text in enumerate(SENTENCES):
        alone = decompose(minilm, text)
        assert tuple(t for t, own in zip(together.tokens[n], together.mask[n], strict=True) if own) == alone.tokens[0]
        assert_close(together.writes[:, n][:, together.mask[n]], alone.writes[:, 0])


def test_a_direction_reads_it(minilm):
    """Which writes bring the two senses of a word together: the unit vector of one token's state."""
    one, other = decompose(minilm, SENTENCES[0]), decompose(minilm, SENTENCES[1])
    vector = other.stream[0, other.tokens[0].index("bank")]
    vector = vector / vector.norm()
    readout = read(one, Reader.direction(vector, name="a bank with interest", unit="cosine times norm"))
    wanted = float(one.stream[0, one.tokens[0].index("bank")] @ vector)
    place = one.tokens[0].index("bank")
    assert float(readout.total[0, place, 0]) == pytest.approx(wanted, rel=1e-5)
    assert float(readout.closure.max()) < 1e-5
    assert len(readout.sites) == len(one.sites) + 1  # and the rounding


def test_it_has_no_logits_and_says_so(minilm, ledger):
    assert ledger.logits is None
    with pytest.raises(ModelError) as refused:
        Reader.logits(minilm, ["bank"])
    assert str(refused.value) == (
        "minilm-l6 has no linear head. The model returns no logits. Read it along a direction: "
        "Reader.direction(vector)."
    )


def test_a_direction_of_another_width_is_refused(ledger):
    with pytest.raises(InputError, match="as wide as the stream, 384"):
        read(ledger, Reader.direction(torch.ones(576)))
