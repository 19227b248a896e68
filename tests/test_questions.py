"""Where a difference between two sentences comes from: positions are the same in both, what attention reads is not."""

import pytest
import torch

import streamlens
import zoo
from streamlens import Ledger, decompose

#: two prompts with one token in common, at the same position
PROMPTS = torch.tensor([[11, 12, 13, 14, 50], [21, 22, 23, 24, 50]])
SHARED = 4


@pytest.fixture(scope="module", params=["gpt2", "opt", "xglm", "biogpt"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """Models whose positions are embeddings of their own."""
    return decompose(streamlens.load(zoo.build(request.param)), PROMPTS)


def differs(ledger: Ledger, label: str) -> bool:
    first, second = ledger.writes[ledger.labels.index(label), :, SHARED]
    return not torch.equal(first, second)


def test_the_positional_embedding_is_the_same_in_both(ledger):
    assert ledger.writes[ledger.labels.index("pos_embed")].any()
    assert not differs(ledger, "pos_embed")
    assert not differs(ledger, "embed")  # it is the same token


def test_what_attention_writes_is_not(ledger):
    attention = [label for label in ledger.labels if label.endswith(".attn")]
    assert len(attention) >= 3
    assert all(differs(ledger, label) for label in attention)


def test_nor_is_what_the_mlps_make_of_it(ledger):
    assert all(differs(ledger, label) for label in ledger.labels if label.endswith(".mlp"))


def test_at_another_position_the_positional_embedding_differs(ledger):
    """A positive control: it is not zero, nor the same everywhere."""
    rows = ledger.writes[ledger.labels.index("pos_embed"), 0]
    assert not torch.equal(rows[SHARED], rows[SHARED - 1])


def test_a_table_answers_it(ledger):
    """The frame has both prompts' norms side by side."""
    frame = ledger.to_frame()
    at = frame[frame["position"] == SHARED].pivot(index="component", columns="prompt_id", values="norm")
    assert at.loc["pos_embed", 0] == at.loc["pos_embed", 1]
    assert at.loc["L1.attn", 0] != at.loc["L1.attn", 1]
