"""Depth as time: Euler steps by hand, and the limit of many short ones."""

import math

import pytest
import torch

from closeness import assert_close
from streamlens.lab import euler, neural_ode


class TestEuler:
    """x' = -2x from 1: every step multiplies by 1 - 2h."""

    @pytest.mark.parametrize(
        ("h", "states"),
        [
            (0.25, [1.0, 0.5, 0.25, 0.125]),
            (0.5, [1.0, 0.0, 0.0, 0.0]),
            (0.75, [1.0, -0.5, 0.25, -0.125]),
            (1.0, [1.0, -1.0, 1.0, -1.0]),
            (1.25, [1.0, -1.5, 2.25, -3.375]),
        ],
    )
    def test_the_first_steps(self, h: float, states: list) -> None:
        assert euler.states(h, steps=3) == states

    def test_step_sixteen(self) -> None:
        assert euler.states(0.75)[16] == 2.0**-16 == pytest.approx(1.53e-5, abs=5e-8)

    @pytest.mark.parametrize(
        ("h", "behaviour"),
        [
            (0.01, "decays"),
            (0.49, "decays"),
            (0.5, "lands on 0 at once"),
            (0.51, "decays, changing sign"),
            (0.99, "decays, changing sign"),
            (1.0, "oscillates for ever"),
            (1.01, "grows"),
            (0.0, "stays"),
            (-0.1, "grows"),
        ],
    )
    def test_what_becomes_of_it(self, h: float, behaviour: str) -> None:
        assert euler.behaviour(h) == behaviour
        size = abs(euler.states(h, steps=2000)[-1])
        after = {"decays": size < 1e-5, "lands on 0 at once": size == 0, "grows": size > 1e5}
        assert after.get(behaviour.partition(",")[0], size == 1.0)

    @pytest.mark.parametrize("rate", [0.25, 1.0, 2.0, 16.0])
    def test_the_bound_is_two_over_k(self, rate: float) -> None:
        assert euler.behaviour(2 / rate, rate=rate) == "oscillates for ever"
        assert euler.behaviour(1.99 / rate, rate=rate) == "decays, changing sign"
        assert euler.behaviour(2.01 / rate, rate=rate) == "grows"

    def test_the_exact_solution_is_beside(self, example) -> None:
        assert euler.exact(0.75)[1] == pytest.approx(0.22313016014842982)  # exp(-1.5)
        table = example("euler").table.set_index("h")
        assert table.loc[0.75, "exact at 16"] == pytest.approx(math.exp(-24))
        assert table.loc[0.75, "step 16"] == pytest.approx(1.52587890625e-05)

    def test_shorter_steps_come_closer(self) -> None:
        errors = [abs(euler.states(1 / n, steps=n)[-1] - math.exp(-2)) for n in (10, 100, 1000)]
        assert errors[0] > 8 * errors[1] > 64 * errors[2] > 0


class TestNeuralOde:
    def test_one_and_two_blocks_by_hand(self) -> None:
        """A = [[-1/2, -2], [2, -1/2]], T = 3. One block: (1, 0) + 3 (-1/2, 2). Two of h = 3/2: (1/4, 3), then
        f = (-1/8 - 6, 1/2 - 3/2) = (-6.125, -1): (1/4 - 9.1875, 3 - 1.5)."""
        assert neural_ode.network(neural_ode.linear(), 1)[-1].tolist() == [-0.5, 6.0]
        assert neural_ode.network(neural_ode.linear(), 2).tolist() == [[1.0, 0.0], [0.25, 3.0], [-8.9375, 1.5]]

    def test_the_solver_meets_the_exact_solution(self) -> None:
        times = [0.5, 1.0, 3.0]
        found = neural_ode.solver(neural_ode.linear(), times)
        assert_close(found, torch.stack([neural_ode.exact(t) for t in times]), like=torch.float32)
        # e^-0.5 (cos 2, sin 2) = 0.60653 (-0.41615, 0.90930)
        assert neural_ode.exact(1.0).tolist() == pytest.approx([-0.252406, 0.551517], abs=1e-6)

    @pytest.mark.parametrize("field", [neural_ode.linear(), neural_ode.bent()])
    def test_the_error_is_proportional_to_the_step(self, field) -> None:
        end = neural_ode.solver(field, [neural_ode.TIME])[0]
        errors = [float((neural_ode.network(field, depth)[-1] - end).norm()) for depth in (256, 512, 1024)]
        assert errors[0] / errors[1] == pytest.approx(2.0, abs=0.06)
        assert errors[1] / errors[2] == pytest.approx(2.0, abs=0.04)
        assert errors[2] < 0.005

    def test_unscaled_blocks_are_another_function(self) -> None:
        """|1 + (-1/2 + 2i)|^2 = 4.25: at h = 1 the norm after n blocks is 4.25^(n/2), and does not settle."""
        found = neural_ode.network(neural_ode.linear(), 6, time=6.0)
        assert found.norm(dim=-1).tolist() == pytest.approx([4.25 ** (n / 2) for n in range(7)])
