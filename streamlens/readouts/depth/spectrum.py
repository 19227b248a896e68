"""The largest singular values of a matrix that is known only by its products (Golub and Kahan 1965; Lanczos).

1. From a random unit vector v_1: u_1 = A v_1, then in turn v_{k+1} from A^T u_k and u_{k+1} from A v_{k+1}, each made
   orthogonal to all before it, twice, so that roundings do not bring old directions back.
2. In these two bases A is a small upper bidiagonal matrix; its singular values are the estimates.
3. It ends when the estimates asked for have converged: A^T u - sigma v of each is at most `tolerance` times the
   largest, or when the bases span everything, and then the values are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Leading:
    """The largest singular values with their vectors.

    Attributes:
        values: Largest first.
        left: Their left singular vectors, a row each.
        right: Their right singular vectors, a row each.
        products: How many products with the matrix, and as many with its transpose, it took.
    """

    values: Float[Tensor, " value"]
    left: Float[Tensor, "value d_model"]
    right: Float[Tensor, "value d_model"]
    products: int


def leading(
    times: Product,
    transposed: Product,
    *,
    width: int,
    top: int = 1,
    seed: int = 0,
    tolerance: float = 1e-7,
) -> Leading:
    """The `top` largest singular values of a square matrix, in float64.

    Args:
        times: v -> A v.
        transposed: u -> A^T u.
        width: Of the matrix.
        top: How many values.
        seed: Of the first vector.
        tolerance: Largest residual of an estimate, relative to the largest value.

    Cost: a few products more than `top` where the values fall quickly, `width` of them at most.
    """
    draw = torch.Generator().manual_seed(seed)
    right = [_unit(torch.randn(width, generator=draw, dtype=torch.float64))]
    left: list[Tensor] = []
    diagonal: list[float] = []
    above: list[float] = []
    while True:
        new = _against(times(right[-1]), left)
        diagonal.append(float(new.norm()))
        left.append(_unit(new))
        ahead = _against(transposed(left[-1]), right)
        beyond = float(ahead.norm()) if len(right) < width else 0.0
        small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        small += torch.diag(torch.tensor(above, dtype=torch.float64), 1)
        u, sizes, vh = torch.linalg.svd(small)
        wrong = beyond * u[-1, :top].abs()
        floor = tolerance * float(sizes[0])
        if beyond <= 1e-14 * float(sizes[0]) or (len(sizes) >= top and float(wrong.max()) <= floor):
            return Leading(
                values=sizes[:top],
                left=u.T[:top] @ torch.stack(left),
                right=vh[:top] @ torch.stack(right),
                products=len(right),
            )
        above.append(beyond)
        right.append(ahead / beyond)


def _unit(vector: Tensor) -> Tensor:
    size = vector.norm()
    return vector / size if size > 0 else vector


def _against(vector: Tensor, basis: list[Tensor]) -> Tensor:
    """What is left of a vector off the span of an orthonormal basis."""
    for _ in range(2):
        for row in basis:
            vector = vector - (row @ vector) * row
    return vector
