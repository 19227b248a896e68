"""What a matrix has to be before anything is read with it: finite numbers, not all zero."""

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.errors import InputError


def checked(matrix: Float[Tensor, "reader d_model"], name: str) -> Float[Tensor, "reader d_model"]:
    """The matrix, if it can be read with.

    Raises:
        InputError: Numbers that are not finite, or nothing but zeros.
    """
    if wrong := int((~torch.isfinite(matrix)).sum()):
        raise InputError(f"A reader has finite numbers; {wrong} of {matrix.numel()} in {name!r} are not.")
    if not matrix.any():
        raise InputError(f"A reader has numbers that are not all zero; {name!r} is a matrix of zeros.")
    return matrix
