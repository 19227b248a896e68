"""Row spaces: what a matrix can see of a vector, and what it cannot.

1. `compact` makes a tall matrix square without changing the length of any image: by QR, since the Gram matrix would
   lose every singular value below 1e-8 of the largest.
2. `spectrum` is its singular values and an orthonormal basis of its row space.
3. `numerical_rank` counts the singular values above a share of the largest; `effective_rank` is the exponential of the
   entropy of their shares (Roy and Vetterli 2007). The two are never mixed.

Pure functions over matrices, in float64.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens import turns

#: rows of a tall matrix that are taken at a time
AT_ONCE = 8192
#: d_model from which a factorisation is large enough for several threads
WIDE = 2048


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch works on one core meanwhile. The number of its threads is the process's, so this takes the turn.

    The threads of a small factorisation wait for each other longer than they work: on two busy cores the 481 SVDs of
    the default model's readers took 92 s of processor time, on one of them 8 s (measured).
    """
    with turns.TURN:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def compact(matrix: Float[Tensor, "k d_model"]) -> Float[Tensor, "rows d_model"]:
    """The matrix, or for a tall one the square matrix R of its QR: |R u| = |matrix u| for every u."""
    matrix = matrix.double()
    if len(matrix) <= matrix.shape[1]:
        return matrix
    factor = matrix[:0]
    with one_thread() if matrix.shape[1] < WIDE else nullcontext():
        for rows in matrix.split(AT_ONCE):  # the QR of all rows at once would copy them twice
            factor = torch.linalg.qr(torch.cat([factor, rows]), mode="r").R
    return factor


def spectrum(
    matrix: Float[Tensor, "k d_model"], tolerance: float, *, reference: float = 0.0
) -> tuple[Float[Tensor, " least"], Float[Tensor, "rank d_model"]]:
    """Singular values, largest first, and an orthonormal basis of the row space in their order.

    Args:
        matrix: Any matrix of finite numbers.
        tolerance: A singular value counts towards the row space above this share of the largest.
        reference: A size that counts as the largest if none is larger: what the matrix was before something was taken
            out of it, so that the roundings of nothing span nothing.

    Cost: one SVD of the matrix, or of a square one in place of a tall one.
    """
    with one_thread() if matrix.shape[1] < WIDE else nullcontext():
        _, sizes, basis = torch.linalg.svd(compact(matrix), full_matrices=False)
    return sizes, basis[: numerical_rank(sizes, tolerance, reference=reference)]


def numerical_rank(sizes: Float[Tensor, " least"], tolerance: float, *, reference: float = 0.0) -> int:
    """How many singular values lie above `tolerance` times the largest; 0 for a zero matrix."""
    return int((sizes > tolerance * max(float(sizes.max()), reference)).sum())


def effective_rank(sizes: Float[Tensor, " least"]) -> float:
    """exp of the entropy of sizes / sum(sizes) (Roy and Vetterli 2007): n for n equal ones, 1 for one alone."""
    shares = sizes / sizes.sum()
    return float(torch.special.entr(shares).sum().exp())
