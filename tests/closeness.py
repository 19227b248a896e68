"""The one comparison of tensors in these tests, with its tolerances and where each comes from."""

import torch
from torch import Tensor

#: dtype -> largest relative difference, in the norm of the whole tensor, between two ways to one result
TOLERANCE = {
    # a hundred additions of 1.1e-16 each, none cancelling: the algebra itself
    torch.float64: 1e-13,
    # a re-summed stream is off by 1e-7, a prompt in another batch by 2e-6 (largest seen on the tiny models);
    # the contract calls more than 1e-5 an error
    torch.float32: 1e-5,
    # 2 ** -8 = 3.9e-3 for one rounding; nine additions and a logit's matrix product were seen to reach 1.4e-2
    torch.bfloat16: 3e-2,
}


def relative(found: Tensor, wanted: Tensor) -> float:
    """||found - wanted|| / ||wanted||, in float64; NaN never counts as small."""
    assert found.shape == wanted.shape, f"{tuple(found.shape)} is compared with {tuple(wanted.shape)}"
    found, wanted = found.detach().double(), wanted.detach().double()
    difference = (found - wanted).norm()
    return float(difference / wanted.norm().clamp_min(1e-300))


def assert_close(found: Tensor, wanted: Tensor, *, like: torch.dtype | None = None) -> None:
    """Holds if the two are one result up to the roundings of a dtype, by default the coarser of theirs."""
    dtype = like or max(found.dtype, wanted.dtype, key=lambda d: torch.finfo(d).eps)
    distance = relative(found, wanted)
    assert distance <= TOLERANCE[dtype], f"relative difference {distance:.1e}, allowed {TOLERANCE[dtype]:.0e}"
