"""Derivatives between the points of a course: whole Jacobians, and products with them.

1. The vectors that `nudge.py` adds to the stream are leaves of the run's graph, so a product with the transposed
   Jacobian between two points is one backward pass.
2. Row by row that is the Jacobian; the rows are made in a batch, each by its own copy of the prompt.
3. That backward pass is linear in the weights it starts from, and its derivative by them is the Jacobian itself: a
   product with it is a backward pass through the backward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.hooks.gradients.nudge import Course, leaf, with_graph


def dense(
    course: Course, start: int, end: int
) -> tuple[list[Float[Tensor, "out d_model"]], Float[Tensor, "out d_model"]]:
    """The Jacobian of every step between two points, and that of all of them at once; float64, on the CPU.

    Row k of a Jacobian is the gradient of coordinate k of the later stream.

    Cost: d_model copies of the prompt go forward once and back twice, in batches.
    """
    width = course.clean.wiring.d_model
    steps: list[list[Tensor]] = [[] for _ in range(start, end)]
    whole: list[Tensor] = []
    for chunk in torch.eye(width, dtype=torch.float64).split(course.rows_at_once):
        leaves = {n: leaf(torch.zeros(len(chunk), width), course.clean.model) for n in range(start, end)}
        with with_graph(course.clean.model, graph=True):
            states = course.run(leaves, graph=True)
            for number in range(start, end):
                steps[number - start].append(_back(states[number + 1], leaves[number], chunk))
            whole.append(_back(states[end], leaves[start], chunk))
    return [torch.cat(parts) for parts in steps], torch.cat(whole)


def _back(state: Tensor, leaf: Tensor, weights: Tensor) -> Tensor:
    [found] = torch.autograd.grad(state, leaf, weights.to(state), retain_graph=True)
    return found.double().cpu()


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear:
    """The Jacobians between the points of a course as products with vectors, float64, on the CPU. Holds a graph.

    Made once with `linear`; each product is one pass over the graph.
    """

    course: Course
    states: Sequence[Tensor]
    leaves: Mapping[int, Tensor]
    _backward: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def transposed(self, start: int, end: int, vector: Float[Tensor, " d_model"]) -> Float[Tensor, " d_model"]:
        """J^T w for the Jacobian from one point to a later one."""
        with with_graph(self.course.clean.model, graph=True):
            return _back(self.states[end], self.leaves[start], vector[None])[0]

    def times(self, start: int, end: int, vector: Float[Tensor, " d_model"]) -> Float[Tensor, " d_model"]:
        """J v."""
        with with_graph(self.course.clean.model, graph=True):
            if (start, end) not in self._backward:
                weights = torch.zeros_like(self.states[end], requires_grad=True)
                [back] = torch.autograd.grad(self.states[end], self.leaves[start], weights, create_graph=True)
                self._backward[start, end] = weights, back
            weights, back = self._backward[start, end]
            return _back(back, weights, vector[None])[0]

    def carried(self, start: int, vector: Float[Tensor, " d_model"]) -> list[Float[Tensor, " d_model"]]:
        """J v at every point after one, in a single pass."""
        later = self.states[start + 1 :]
        with with_graph(self.course.clean.model, graph=True):
            weights = [torch.zeros_like(state, requires_grad=True) for state in later]
            [back] = torch.autograd.grad(later, self.leaves[start], weights, create_graph=True)
            found = torch.autograd.grad(back, weights, vector[None].to(back), retain_graph=True)
            return [each[0].double().cpu() for each in found]


def linear(course: Course) -> Linear:
    """A run of one copy whose graph is kept. Cost: one forward."""
    width = course.clean.wiring.d_model
    leaves = {n: leaf(torch.zeros(1, width), course.clean.model) for n in range(len(course.points))}
    with with_graph(course.clean.model, graph=True):
        return Linear(course=course, states=course.run(leaves, graph=True), leaves=leaves)
