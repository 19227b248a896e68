"""The two-branch example: what ablating a branch does, and what subtracting its write would have done.

Start (2, 1). Branch one reads (u, v) and adds (0, u); branch two adds (-v, 0). Everything here is done in the head.
"""

import pytest
from torch import tensor

import streamlens
from bare_model import in_the_plane
from streamlens import Reader, ablate, decompose, replay, sweep

IDS = [[0]]
ONE, TWO = "L0.branch", "L1.branch"


@pytest.fixture(scope="module")
def model():
    return streamlens.load(in_the_plane(tensor([[0.0, 0.0], [1.0, 0.0]]), tensor([[0.0, -1.0], [0.0, 0.0]])))


def end(run) -> list[float]:
    return run.ledger.stream[0, 0].tolist()


def test_with_both_branches(model):
    ledger = decompose(model, IDS)
    assert ledger.writes[:, 0, 0].tolist() == [[2.0, 1.0], [0.0, 2.0], [-3.0, 0.0]]
    assert ledger.stream[0, 0].tolist() == [-1.0, 3.0]


def test_without_one_of_them_or_both(model):
    assert end(replay(model, IDS, ONE)) == [1.0, 1.0]
    assert end(replay(model, IDS, TWO)) == [2.0, 3.0]
    assert end(replay(model, IDS, [ONE, TWO])) == [2.0, 1.0]
    assert end(replay(model, replay(model, IDS, TWO), ONE)) == [2.0, 1.0]


def test_subtracting_the_write_is_another_thing(model):
    """(-1, 3) - (0, 2) = (-1, 1); rerun without it, branch two writes (-1, 0) instead of (-3, 0): (1, 1)."""
    first, second = (Reader.direction(row, name=name) for row, name in (([1.0, 0.0], "first"), ([0.0, 1.0], "second")))
    ablation = ablate(model, IDS, ONE, readers=[first, second])
    effect = ablation.effect_of("first")
    parts = [float(part) for part in (effect.direct, effect.indirect, effect.rescale, effect.total, effect.observed)]
    assert parts == [0.0, 2.0, 0.0, 2.0, 2.0]
    effect = ablation.effect_of("second")
    parts = [float(part) for part in (effect.direct, effect.indirect, effect.rescale, effect.total, effect.observed)]
    assert parts == [-2.0, 0.0, 0.0, -2.0, -2.0]
    assert float(effect.closure) == 0.0
    assert ablation.headline() == (
        f"Subtracting {ONE} predicts +0.00 units along the direction; rerunning the model gives +2.00."
    )


def test_every_write_is_marked(model):
    frame = ablate(model, IDS, ONE).to_frame()
    assert dict(zip(frame["component"], frame["status"], strict=True)) == {
        "embed": "unchanged",
        ONE: "edit",
        TWO: "response",
    }
    assert frame["clean_norm"].tolist() == pytest.approx([5**0.5, 2.0, 3.0])
    assert frame["ablated_norm"].tolist() == pytest.approx([5**0.5, 0.0, 1.0])
    assert frame["delta_norm"].tolist() == pytest.approx([0.0, 2.0, 2.0])


def test_frozen_the_second_branch_does_not_answer(model):
    reader = Reader.direction([1.0, 0.0])
    ablation = ablate(model, IDS, ONE, readers=reader, freeze="all")
    assert ablation.ablated.stream[0, 0].tolist() == [-1.0, 1.0]
    assert float(ablation.effect_of(reader).indirect) == 0.0


def test_the_matrix_of_responses_is_upper_triangular(model):
    swept = sweep(model, IDS, readers=Reader.direction([1.0, 0.0]))
    assert swept.responses().to_numpy().tolist() == [[0.0, 0.0, 2.0], [0.0, 0.0, 3.0]]
    assert list(swept.responses().columns) == ["embed", ONE, TWO]


def test_half_of_it_and_something_else_in_its_place(model):
    """Half of (0, 2): the stream is (2, 2), and branch two writes (-2, 0). (1, 1) instead: (3, 2), then (-2, 0)."""
    assert end(replay(model, IDS, f"{ONE}=0.5")) == [0.0, 2.0]
    edit = streamlens.Edit(ONE, "replace", value=tensor([1.0, 1.0]))
    assert end(replay(model, IDS, edit)) == [1.0, 2.0]
