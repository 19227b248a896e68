"""Eigenvalues of the blocks do not bound their product; singular values of the product do.

1. A = [[1/2, 2], [0, 1/2]] and its transpose have both eigenvalues 1/2. As residual blocks they are I + (A - I).
2. A^T A has trace 4.5 and determinant 1/16: its eigenvalues are ((sqrt 5 +- 2) / 2)^2, so the largest singular value
   of A is (2 + sqrt 5) / 2 = 2.118, and n pairs A^T A stretch by that to the power 2n, where the eigenvalues promise
   1/4 a pair.
3. The same block again and again does obey its eigenvalues in the end, after it has grown for a while.
"""

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamlens import plots
from streamlens.lab.example import Drawing, Example, below, closes, equal, relative
from streamlens.lab.network import Branch, backward, books, forward

A = ((0.5, 2.0), (0.0, 0.5))
DEPTH = 12
STRETCH = (2.0 + math.sqrt(5.0)) / 2.0


def blocks(*, alternating: bool, depth: int = DEPTH, rows: Sequence[Sequence[float]] = A) -> list[Tensor]:
    """The matrices of the blocks, I + J each: A and its transpose in turn, or A every time."""
    a = torch.tensor(rows, dtype=torch.float64)
    return [a.T if alternating and number % 2 else a for number in range(depth)]


def products(matrices: Sequence[Float[Tensor, "d_model d_model"]]) -> pd.DataFrame:
    """By depth: the product of the blocks' largest |eigenvalues|, the product's largest singular value, and its bound.

    Returns:
        Columns `block` (how many blocks, from 0), `eigenvalues`, `singular`, `bound` (the product of the blocks'
        largest singular values), `radius` (the product's own largest |eigenvalue|).
    """
    product = torch.eye(len(matrices[0]), dtype=torch.float64)
    eigenvalues = bound = 1.0
    rows = [(0, 1.0, 1.0, 1.0, 1.0)]
    for number, block in enumerate(matrices, 1):
        product = block @ product
        eigenvalues *= float(torch.linalg.eigvals(block).abs().max())
        bound *= float(torch.linalg.matrix_norm(block, 2))
        radius = float(torch.linalg.eigvals(product).abs().max())
        rows.append((number, eigenvalues, float(torch.linalg.matrix_norm(product, 2)), bound, radius))
    return pd.DataFrame(rows, columns=["block", "eigenvalues", "singular", "bound", "radius"])


def example() -> Example:
    """The example with its numbers."""
    varying, same = blocks(alternating=True), blocks(alternating=False)
    found, repeated = products(varying), products(same)
    once = float(repeated["singular"].to_numpy()[DEPTH])
    frame = pd.concat(
        [
            _line("eigenvalues of the blocks, multiplied", found, "eigenvalues"),
            _line("A and its transpose in turn: largest singular value", found, "singular"),
            _line("A every time: largest singular value", repeated, "singular"),
            _line("largest singular values of the blocks, multiplied", repeated, "bound"),
        ],
        ignore_index=True,
    )
    start = torch.tensor([1.0, 1.0], dtype=torch.float64)
    branches = [_branch(block) for block in varying]
    states = forward(start, branches)
    gradient = torch.tensor([1.0, 0.0], dtype=torch.float64)
    back = backward(states, branches, gradient)
    product = torch.linalg.multi_dot(varying[::-1])
    ledger = books(start, branches, name="jacobian_products")
    return Example(
        name="jacobian_products",
        title="Products of Jacobians",
        teaches=(
            "A and its transpose have only the eigenvalue 1/2, and yet twelve of them in turn stretch by 8151. For a "
            "product of blocks that vary with depth only its singular values count; the blocks' largest singular "
            "values, multiplied, bound them."
        ),
        table=found.query("block in (0, 1, 2, 4, 8, 12)").reset_index(drop=True),
        drawings=(
            Drawing(
                caption="The largest singular value of the product by depth, between two products over the blocks.",
                draw=lambda dark: plots.curves(
                    frame,
                    x="block",
                    y="value",
                    series="series",
                    heading="What a product of blocks can stretch by",
                    says="The alternating product reaches its bound; its line lies under the dashed one.",
                    y_title="factor (log scale)",
                    log_y=True,
                    dashed=(
                        "eigenvalues of the blocks, multiplied",
                        "largest singular values of the blocks, multiplied",
                    ),
                    dark=dark,
                ),
            ),
        ),
        checks=(
            equal("both eigenvalues of A are 1/2", torch.linalg.eigvals(varying[0]).real, [0.5, 0.5], limit=1e-7),
            equal("A^T A = [[1/4, 1], [1, 17/4]]", varying[1] @ varying[0], [[0.25, 1.0], [1.0, 4.25]]),
            relative("its largest singular value is ((2 + sqrt 5) / 2)^2 = 4.486", found["singular"][2], STRETCH**2),
            # 2 + sqrt 5 is the golden ratio cubed, and its 36th power is a Lucas number but for 3e-8
            relative("six pairs stretch by 33 385 282 / 4096 = 8150.7", found["singular"][DEPTH], 33385282 / 4096),
            relative("eigenvalues alone promise 2^-12", found["eigenvalues"][DEPTH], 2.0**-12, limit=1e-6),
            relative("here the bound is reached: 2.118^12", found["bound"][DEPTH], STRETCH**DEPTH),
            below("A twelve times stays below its bound", once, float(repeated["bound"].to_numpy()[DEPTH])),
            # A^n = 2^-n [[1, 4n], [0, 1]]
            equal("A^12 = 2^-12 [[1, 48], [0, 1]]", torch.linalg.matrix_power(same[0], 12) * 4096, [[1, 48], [0, 1]]),
            below("so that A every time decays in the end, from 2.12 to 0.012", once, 0.0118),
            relative("the states end at the product times the start", states[-1], product @ start),
            relative("the gradient comes back through the transposed product", back.gradients[0], product.T @ gradient),
            closes(ledger),
        ),
        ledger=ledger,
    )


def _branch(block: Tensor) -> Branch:
    branch = block - torch.eye(len(block), dtype=block.dtype)
    return lambda x: x @ branch.T


def _line(name: str, found: pd.DataFrame, column: str) -> pd.DataFrame:
    return pd.DataFrame({"series": name, "block": found["block"], "value": found[column]})
