"""Gradients, paths, variance, products and degradation through depth."""

import itertools
import math

import pytest
import torch
from torch import tensor

from closeness import assert_close
from streamlens.lab import degradation, gradient_factor, jacobian_products, paths, tanh_network, variance
from streamlens.lab.network import backward, books, forward, jacobian

D = torch.float64


class TestGradientFactor:
    @pytest.mark.parametrize(
        ("slope", "at_start"),
        [
            (-0.2, 0.8**40),
            (-1.0, 0.0),  # every block forgets what it got
            (1.0, 1099511627776.0),  # 2^40
            (0.0, 1.0),
        ],
    )
    def test_forty_blocks(self, slope: float, at_start: float) -> None:
        back = gradient_factor.gradient(slope)
        assert float(back.gradients[0]) == pytest.approx(at_start, rel=1e-12)
        assert float(back.direct) == 1.0
        assert float(gradient_factor.by_autograd(slope)) == pytest.approx(at_start, rel=1e-12)

    def test_the_number_of_the_page(self) -> None:
        # 0.8^10 = 0.1073741824, to the fourth: 0.000132922799578...
        assert float(gradient_factor.gradient(-0.2).gradients[0]) == pytest.approx(0.00013292279957849, rel=1e-12)

    def test_the_branches_part_block_by_block(self) -> None:
        # from the end: 1; -0.5 . 1 -> 0.5; -0.5 . 0.5 -> 0.25
        back = gradient_factor.gradient(-0.5, depth=2)
        assert back.gradients[:, 0].tolist() == [0.25, 0.5, 1.0]
        assert back.branch[:, 0].tolist() == [-0.25, -0.5]
        assert back.closure == 0.0

    def test_a_plain_network_has_no_direct_route(self) -> None:
        assert gradient_factor.gradient(0.5, depth=3, residual=False).gradients[:, 0].tolist() == [
            0.125,
            0.25,
            0.5,
            1.0,
        ]


class TestNetwork:
    def test_step_sizes_scale_writes_and_gradients(self) -> None:
        branches = [lambda x: 2 * x, lambda x: -x]
        start = tensor([3.0], dtype=D)
        states = forward(start, branches, h=0.5)
        assert [float(x) for x in states] == [3.0, 6.0, 3.0]  # 3 + 1/2 . 6, 6 - 1/2 . 6
        back = backward(states, branches, torch.ones(1, dtype=D), h=0.5)
        assert back.gradients[:, 0].tolist() == [1.0, 0.5, 1.0]
        ledger = books(start, branches, name="x", h=0.5, on=[True, False])
        assert ledger.writes[:, 0, 0, 0].tolist() == [3.0, 3.0, 0.0]

    def test_a_jacobian_is_output_by_input(self) -> None:
        assert jacobian(lambda x: torch.stack([x[0] * x[1], x[0]]), tensor([2.0, 5.0])).tolist() == [
            [5.0, 2.0],
            [1.0, 0.0],
        ]


class TestTanhNetwork:
    def test_residual_and_plain(self, example) -> None:
        table = example("tanh_network").table.set_index("layer")
        assert table.loc[40, ["gradient, residual", "gradient, plain"]].tolist() == pytest.approx([1.0, 1.0])
        assert table.loc[0, "gradient, plain"] < 1e-3 < 1.0 < table.loc[0, "gradient, residual"]
        # 0.8 a layer would leave 1.33e-4; measured within a factor of three
        assert 0.8**40 / 3 < table.loc[0, "gradient, plain"] < 0.8**40 * 3
        assert (table["gradient, plain"].diff().dropna() > 0).all()

    def test_weights_input_and_metric_are_shared(self) -> None:
        (residual, _), (plain, _) = (tanh_network.way_back(residual=kind) for kind in (True, False))
        assert torch.equal(residual[0], plain[0])
        _, layers, reader = tanh_network.network()
        assert_close(residual[1] - residual[0], plain[1])
        assert float(reader.norm()) == pytest.approx(1.0)
        weight = jacobian(layers[0], torch.zeros(64, dtype=D))  # tanh' = 1 at 0
        assert float(weight.std()) == pytest.approx(0.1, rel=0.05)  # 0.8 / sqrt(64)

    @pytest.mark.parametrize("residual", [True, False])
    def test_every_gradient_is_autograd_s(self, residual: bool) -> None:
        states, back = tanh_network.way_back(residual=residual, depth=6)
        start, layers, reader = tanh_network.network(depth=6)
        leaves = [x.clone().requires_grad_() for x in states]
        for number, x in enumerate(leaves):
            end = forward(x, layers[number:], residual=residual)[-1]
            wanted = torch.autograd.grad(end @ reader, x)[0] if number < 6 else reader
            assert_close(back.gradients[number], wanted)
        assert torch.equal(states[0], start)


class TestPaths:
    def test_three_numbers(self) -> None:
        """(1 + 1)(1 + 2)(1 + 3) = 1 + (1 + 2 + 3) + (1.2 + 1.3 + 2.3) + 1.2.3."""
        steps, one = tensor([1.0, 2.0, 3.0])[:, None, None], torch.ones(1)
        assert paths.by_length(steps, one)[:, 0].tolist() == [1.0, 6.0, 11.0, 6.0]
        found = {taken: float(value) for taken, value in paths.enumerate_paths(steps, one).items()}
        assert found == {(): 1, (0,): 1, (1,): 2, (2,): 3, (0, 1): 2, (0, 2): 3, (1, 2): 6, (0, 1, 2): 6}

    def test_two_matrices_in_their_order(self) -> None:
        """A then B: the end is (1 + B)(1 + A) x, so the gradient of its first coordinate is (1 + A)^T (1 + B)^T e1.

        B^T e1 = (0, 1), A^T e1 = 0, A^T (0, 1) = (1, 0): lengths give (1, 0), (0, 1) + 0, (1, 0).
        """
        a, b = tensor([[0.0, 0.0], [1.0, 0.0]]), tensor([[0.0, 1.0], [0.0, 0.0]])
        found = paths.by_length(torch.stack([a, b]), tensor([1.0, 0.0]))
        assert found.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]

    @pytest.mark.parametrize("depth", [1, 2, 5])
    def test_recursion_enumeration_and_product_agree(self, depth: int) -> None:
        start, branches = paths.network(depth=depth, width=4, size=1.0)
        steps, gradient = paths.jacobians(start, branches), torch.arange(1.0, 5.0, dtype=D)
        every, sums = paths.enumerate_paths(steps, gradient), paths.by_length(steps, gradient)
        assert len(every) == 2**depth
        for length in range(depth + 1):
            assert_close(sums[length], torch.stack([v for taken, v in every.items() if len(taken) == length]).sum(0))
        x = start.clone().requires_grad_()
        assert_close(sums.sum(0), torch.autograd.grad(forward(x, branches)[-1] @ gradient, x)[0])

    def test_scaling_every_jacobian_by_t_expands_in_powers_of_t(self) -> None:
        start, branches = paths.network(depth=4, width=3, size=1.0)
        steps, gradient = paths.jacobians(start, branches), torch.eye(3, dtype=D)[1]
        sums = paths.by_length(steps, gradient)
        for t in (-1.0, 0.5, 2.0):
            powers = t ** torch.arange(5, dtype=D)
            assert_close(paths.by_length(t * steps, gradient).sum(0), powers @ sums)

    def test_lesions(self) -> None:
        """x + x, then x + x^2 from 1: 1, 2, 6. Without the first 1, 1, 2; frozen it would be -1 . (1 + 2 . 2) = -5."""
        lesioned = paths.lesions(torch.ones(1, dtype=D), [lambda x: x, torch.square])
        assert lesioned["rerun"].tolist() == [4.0, 4.0]
        assert lesioned["linear"].tolist() == [5.0, 4.0]
        assert lesioned["difference"].tolist() == [1.0, 0.0]


class TestVariance:
    @pytest.mark.parametrize(
        ("f", "parts"),
        [
            # mean square of (1, -1, 2, -2) is 10/4
            ([1.0, 1.0, -1.0, -1.0], [2.5, 1.0, 0.0, 3.5]),
            ([-1.0, 1.0, -2.0, 2.0], [2.5, 2.5, -5.0, 0.0]),
            ([1.0, -1.0, 2.0, -2.0], [2.5, 2.5, 5.0, 10.0]),
            # a constant has no variance: (3, 3, 3, 3) and (1, 1, 0, 0) + 3
            ([3.0, 3.0, 3.0, 3.0], [2.5, 0.0, 0.0, 2.5]),
            # f - mean = (1/2, 1/2, -1/2, -1/2): cov = (1/2 - 1/2 - 1 + 1) / 4 = 0
            ([4.0, 4.0, 3.0, 3.0], [2.5, 0.25, 0.0, 2.75]),
        ],
    )
    def test_four_numbers(self, f: list, parts: list) -> None:
        assert list(variance.split(tensor(variance.X), tensor(f)).values()) == parts

    def test_growth(self) -> None:
        normed, raw = (variance.growth(normed=kind, width=256, depth=12) for kind in (True, False))
        assert float(normed[0].var(correction=0)) == pytest.approx(1.0)
        assert float(normed[-1].var(correction=0)) == pytest.approx(13.0, rel=0.25)
        assert math.log2(float(raw[-1].var(correction=0))) == pytest.approx(12.0, abs=1.2)


class TestJacobianProducts:
    def test_two_blocks(self) -> None:
        first, second = jacobian_products.blocks(alternating=True, depth=2)
        assert torch.linalg.eigvals(first).real.tolist() == pytest.approx([0.5, 0.5], abs=1e-7)
        assert (second @ first).tolist() == [[0.25, 1.0], [1.0, 4.25]]
        # trace 4.5, determinant 1/16: (4.5 + sqrt(20.25 - 0.25)) / 2
        found = jacobian_products.products([first, second])
        assert found["singular"].tolist() == pytest.approx([1.0, 2.118033988749895, 4.48606797749979])
        assert found["eigenvalues"].tolist() == pytest.approx([1.0, 0.5, 0.25])
        assert found["radius"].tolist() == pytest.approx([1.0, 0.5, 4.48606797749979])

    def test_the_bound_bounds_and_eigenvalues_do_not(self) -> None:
        made = torch.Generator().manual_seed(3)
        found = jacobian_products.products([torch.randn(4, 4, generator=made, dtype=D) for _ in range(6)])
        assert (found["singular"] <= found["bound"] * (1 + 1e-12)).all()
        assert (found["radius"] <= found["singular"] * (1 + 1e-12)).all()
        alternating = jacobian_products.products(jacobian_products.blocks(alternating=True))
        assert (alternating["singular"][1:] > alternating["eigenvalues"][1:]).all()

    def test_the_same_block_again_and_again(self) -> None:
        """A^n = 2^-n [[1, 4n], [0, 1]]: [[1, 16], [0, 1]] / 16 at n = 4, of largest singular value 1.004."""
        found = jacobian_products.products(jacobian_products.blocks(alternating=False, depth=4))
        assert found["singular"][4] == pytest.approx((16 + math.sqrt(16**2 + 4)) / 2 / 16)
        assert found["singular"][1] > 2.0


class TestDegradation:
    def test_deeper_is_worse_only_without_skips(self, example) -> None:
        table = example("degradation").table.set_index(["network", "blocks"])["mean loss"]
        assert table["plain", 24] > 2 * table["plain", 4]
        assert table["residual", 24] < table["residual", 4]
        assert table["plain", 4] < math.log(2) / 2  # a positive control: the shallow plain one does learn

    def test_both_kinds_start_from_the_same_weights(self) -> None:
        plain, residual = (degradation.train(3, residual=kind, steps=1, seeds=2) for kind in (False, True))
        for name in ("enter", "leave", "blocks"):
            # one step of Adam moves each weight by at most its rate
            difference = (plain.weights[name] - residual.weights[name]).abs().max()
            assert float(difference) <= 2.0001 * degradation.RATE

    def test_seeds_are_trained_apart(self) -> None:
        """A batch of networks is what each would have become: seeds differ, and gradients do not mix."""
        two = degradation.train(2, residual=True, steps=3, seeds=2)
        assert len({round(float(x), 6) for x in two.losses[0]}) == 2
        x, arm = degradation.spirals()
        assert x.shape == (128, 2)
        assert arm.sum() == 64
        weights = {name: w.clone().requires_grad_() for name, w in two.weights.items()}
        logits = degradation.states(weights, x, residual=True)[-1] @ weights["leave"]
        logits[0].sum().backward()
        gradient = weights["blocks"].grad
        assert gradient is not None
        assert gradient[:, 1].abs().max() == 0.0 < gradient[:, 0].abs().max()


def test_counts_of_paths_are_binomial(example) -> None:
    table = example("paths").table
    counted = [sum(1 for _ in itertools.combinations(range(10), k)) for k in range(11)]
    assert table["paths"].tolist() == counted
    assert table["share of the paths"].sum() == 1.0
    assert table["share of the gradient"].sum() == pytest.approx(1.0)
