"""The lab's page shows what `streamlens.lab` computes, at any setting."""

import math

import pytest

from streamlens.explorer import lab_live
from streamlens.lab import attention_by_hand, euler, jacobian_products


def trace(figure, name: str):
    return next(found for found in figure.data if found.name == name)


def test_without_branch_one_the_walk_ends_at_one_one() -> None:
    live = lab_live.branches(False, True)
    assert live.says == (
        "Branch two reads (2, 1) and writes (-1, 0).",
        "The stream ends at (1, 1).",
        "Subtracting what was switched off from the final stream gives (-1, 1) instead.",
    )
    second = trace(live.figures[0], "branch two")
    assert (list(second.x), list(second.y)) == ([2.0, 1.0], [1.0, 1.0])
    assert [found.name for found in live.figures[0].data] == ["start", "branch two"]


def test_with_both_the_second_branch_reads_what_the_first_left() -> None:
    live = lab_live.branches(True, True)
    assert live.says == ("Branch two reads (2, 3) and writes (-3, 0).", "The stream ends at (-1, 3).")
    second = trace(live.figures[0], "branch two")
    assert (list(second.x), list(second.y)) == ([2.0, -1.0], [3.0, 3.0])
    colours = [found.line.color for found in live.figures[0].data]
    assert len(set(colours)) == 3


def test_nothing_reads_branch_two_so_that_subtracting_is_rerunning() -> None:
    assert lab_live.branches(True, False).says[-1].endswith("gives the same.")


def test_a_pixel_is_a_sum() -> None:
    assert lab_live.pixel("by hand", 0, 1) == "Row 0, column 1: 0.541 − 0.441 = 0.100"
    assert lab_live.pixel("by hand", 5, 9) == "Row 0, column 2: 0.100 + 0.000 = 0.100"


@pytest.mark.parametrize(
    ("h", "factor", "verdict"),
    [
        (0.25, "0.5", "It decays."),
        (0.5, "0", "It lands on 0 at once."),
        (0.75, "−0.5", "It decays, changing sign."),
        (1.0, "−1", "It oscillates for ever."),
        (1.25, "−1.5", "It grows."),
    ],
)
def test_the_multiplier_decides(h: float, factor: str, verdict: str) -> None:
    said = lab_live.steps(h).says
    assert said[0] == f"Every step multiplies by 1 − 2h = {factor}."
    assert said[1] == verdict


def test_three_quarters_has_almost_died_out_at_step_sixteen() -> None:
    live = lab_live.steps(0.75)
    assert live.says[2] == "Steps 0 to 4: 1, −0.5, 0.25, −0.125, 0.0625. Step 16: 1.53e-5."
    drawn = trace(live.figures[0], "Euler steps")
    assert list(drawn.y) == euler.states(0.75)
    assert trace(live.figures[0], "exact, exp(-2t)").y[-1] == pytest.approx(math.exp(-24))


def test_the_head_as_on_paper_and_with_other_weights() -> None:
    live, table = lab_live.attention(attention_by_hand.W_Q, attention_by_hand.W_K, attention_by_hand.W_V)
    assert live.says == ("The head writes (-1.5, 2) at “ bank”: (2, 1) becomes (0.5, 3).",)
    assert table["weight"].tolist() == pytest.approx([0.25, 0.5, 0.25])
    even, table = lab_live.attention(((0.0, 0.0), (0.0, 0.0)), attention_by_hand.W_K, ((1.0, 0.0), (0.0, 1.0)))
    assert table["weight"].tolist() == pytest.approx([1 / 3] * 3)
    assert even.says[0].startswith("The head writes (1.667, 1.333)")


def test_a_stack_stretches_by_its_product_and_its_paths_share_the_gradient() -> None:
    live = lab_live.stack(depth=12, diagonal=0.5, corner=2.0, alternating=True)
    assert "12 blocks stretch by up to 8.15e3" in live.says[0]
    found = jacobian_products.products(jacobian_products.blocks(alternating=True))
    assert list(live.figures[0].data[1].y) == found["singular"].tolist()
    paths, gradient = live.figures[1].data
    assert sum(paths.y) == pytest.approx(1.0)
    assert sum(gradient.y) == pytest.approx(1.0)
    assert paths.y[6] == math.comb(12, 6) / 2**12


def test_a_stack_that_lets_nothing_through_has_no_shares() -> None:
    live = lab_live.stack(depth=2, diagonal=0.0, corner=0.0, alternating=False)
    assert set(live.figures[1].data[1].y) == {0.0}


@pytest.mark.parametrize(
    ("value", "said"), [(1.53e-5, "1.53e-5"), (-0.5, "−0.5"), (656.84, "657"), (2.5e12, "2.5e12"), (0.0, "0")]
)
def test_numbers_in_three_digits(value: float, said: str) -> None:
    assert lab_live.small(value) == said
