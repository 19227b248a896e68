"""Self-repair on the default model: responses that oppose a direct effect, found by the tool and shown to be real.

McGrath et al. 2023 (the hydra effect); Rushing and Nanda 2024. Each sentence has a sublayer at its last token whose
direct effect later writes undo by at least a fifth; with everything later frozen the undoing is gone.
"""

import pytest
import torch

from streamlens import Reader, ablate, clean_run, sweep

pytestmark = pytest.mark.model

SENTENCES = [
    ("After crossing the river, she rested on the bank", " river", " money", "L24.attn"),
    ("The Eiffel Tower is located in the city of", " Paris", " London", "L25.mlp"),
    ("When Mary and John went to the store, John gave a drink to", " Mary", " John", "L26.mlp"),
    ("She was hungry, so she went to the kitchen to cook some", " food", " money", "L23.attn"),
]
#: the smallest direct effect that counts, in logits, and the smallest share of it that is undone
LARGE, SHARE = 0.5, 0.2
#: of an effect, in logits; 1e-5 measured
CLOSES = 1e-3


@pytest.fixture(scope="module", params=SENTENCES, ids=[s[0].split()[-1] for s in SENTENCES])
def case(request, default_model):
    text, token, against, label = request.param
    clean = clean_run(default_model, text)
    reader = Reader.logit_diff(default_model, token, against)
    return clean, reader, f"{label}@-1"


@pytest.fixture(scope="module")
def free(default_model, case):
    clean, reader, _ = case
    return sweep(default_model, clean, position=-1, readers=reader).effects().set_index("variant")


def test_some_branch_is_repaired_by_a_fifth(free, case):
    repaired = free[(free["direct"].abs() >= LARGE) & (free["self_repair"] >= SHARE)]
    assert case[2] in repaired.index
    assert (repaired["direct"] * repaired["indirect"] < 0).all()
    assert (repaired["self_repair"] + repaired["indirect"] / repaired["direct"]).abs().max() < 1e-12


def test_not_every_branch_is(free):
    """A negative control: some large effects are amplified or left alone."""
    large = free[free["direct"].abs() >= LARGE]
    assert (large["self_repair"] == 0.0).any()


def test_frozen_the_repair_is_gone_and_the_direct_effect_is_what_happens(default_model, case, free):
    clean, reader, variant = case
    row = ablate(default_model, clean, variant, readers=reader, position=-1, freeze="all").effects().iloc[0]
    assert row["indirect"] == 0.0
    assert row["self_repair"] == 0.0
    assert row["total"] == row["direct"] + row["rescale"]
    assert row["closure"] < CLOSES
    assert row["direct"] == pytest.approx(free.loc[variant, "direct"], abs=CLOSES)
    # what happened before differs from that by the responses, and by the norm's answer to them
    before = free.loc[variant]
    assert before["total"] - row["total"] == pytest.approx(
        before["indirect"] + before["rescale"] - row["rescale"], abs=CLOSES
    )


def test_with_the_repairing_writes_held_less_is_repaired(default_model, case):
    """Every response that opposes the edit is held at its clean value. Others take over a part: the hydra effect."""
    clean, reader, variant = case
    made = sweep(default_model, clean, over=[variant], position=-1, readers=reader)
    responses = made.responses(reader).iloc[0].drop(variant.partition("@")[0])
    direct, undone = made.effects().iloc[0][["direct", "self_repair"]]
    held = ablate(
        default_model,
        clean,
        variant,
        readers=reader,
        position=-1,
        freeze=list(responses[responses * direct < 0].index),
    )
    row = held.effects().iloc[0]
    assert row["self_repair"] < undone
    assert row["closure"] < CLOSES


def test_full_rank_the_unembedding_sees_every_direction(default_model):
    """No write is invisible to all logits, so a repair is no accident of what a reader cannot see."""
    matrix = default_model.unembedding().matrix.float()
    values = torch.linalg.eigvalsh(matrix.T @ matrix)
    assert matrix.shape[1] == default_model.wiring.d_model
    assert float(values[0]) > 1e-6 * float(values[-1])
