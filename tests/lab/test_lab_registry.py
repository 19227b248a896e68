"""Every example runs, holds, has a table and figures for both themes, and leaves torch as it was."""

import math
from dataclasses import replace

import pytest
import torch

from streamlens import lab, theme
from streamlens.errors import InputError
from streamlens.lab.example import Check, below, closes, equal, relative
from streamlens.lab.network import books


@pytest.mark.parametrize("name", lab.EXAMPLES)
def test_every_claim_of_every_example_holds(example, name) -> None:
    found = example(name)
    assert [check for check in found.checks if not check.holds] == []
    assert len(found.checks) >= 4
    assert found.name == name
    assert len(found.table) > 0
    assert found.ledger is not None
    assert float(found.ledger.closure.max()) <= 1e-6
    assert found.teaches.endswith(".")


@pytest.mark.parametrize("name", lab.EXAMPLES)
def test_every_figure_is_drawn_for_both_themes(example, name) -> None:
    for drawing in example(name).drawings:
        light, dark = drawing.draw(False), drawing.draw(True)
        assert light.layout.template.layout.paper_bgcolor == theme.LIGHT.background
        assert dark.layout.template.layout.paper_bgcolor == theme.DARK.background
        assert light.layout.meta["summary"]
        assert drawing.caption.endswith(".")


def test_the_ledger_of_an_example_is_a_ledger_like_any_other(example) -> None:
    frame = example("carries").ledger.to_frame()
    assert frame["component"].astype(str).tolist() == ["embed", "L0.branch", "L0.branch.norm.bias", "rounding"]
    assert frame["share"].sum() == pytest.approx(1.0)


def test_an_unknown_example_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"No example of the lab is called 'eulr'\. Did you mean euler\?"):
        lab.run("eulr")


def test_running_leaves_threads_and_random_numbers_alone() -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    for name in ("euler", "resnet", "image_correction"):
        lab.run(name)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_same_numbers_come_out_every_time() -> None:
    for name in ("tanh_network", "paths"):
        assert lab.run(name).table.equals(lab.run(name).table)


class TestChecks:
    def test_the_error_is_the_largest_difference(self) -> None:
        check = equal("said", torch.tensor([1.0, 2.0, 3.0]), [1.0, 2.25, 2.9], limit=0.1)
        assert check.error == 0.25
        assert not check.holds
        assert relative("said", [0.0, 8.0], [2.0, 8.0], limit=0.25).error == 0.25

    def test_the_limit_is_included_and_nan_never_holds(self) -> None:
        assert Check(says="", error=0.5, limit=0.5).holds
        assert not Check(says="", error=math.nan, limit=1.0).holds
        assert not equal("", math.nan, 1.0, limit=1.0).holds
        assert not below("", math.nan, 1.0).holds
        assert not below("", -1.0, math.nan).holds

    def test_an_order_fails_by_how_far_it_is_wrong(self) -> None:
        assert below("", 1.0, 2.0).holds
        assert below("", 2.0, 1.5).error == 0.5

    def test_a_shape_is_no_number(self) -> None:
        with pytest.raises(AssertionError, match="is compared with"):
            equal("", [1.0, 2.0], 1.0)

    def test_a_ledger_that_does_not_close_fails(self) -> None:
        start = torch.ones(2, dtype=torch.float64)
        ledger = books(start, [torch.neg], name="x")
        assert closes(ledger).holds
        assert not closes(replace(ledger, stream=ledger.stream + 0.5)).holds
        assert not closes(replace(ledger, in_order=0.5)).holds
