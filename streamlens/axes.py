"""The axis vocabulary: one name per axis, used in shape strings, einops patterns and column names.

1. Every public array says its axes with the words below, in the order of `AXES`.
2. Shapes are written as jaxtyping strings, so that they are checked under pytest.
"""

from typing import TypeAlias

from jaxtyping import Bool, Float, Int
from torch import Tensor

#: axis name -> what one step along it is
AXES: dict[str, str] = {
    "write": "one addition to the residual stream, in stream order",
    "batch": "one prompt",
    "pos": "one token position (the kept ones only, where a subset was asked for)",
    "head": "one query head",
    "neuron": "one hidden unit of an MLP",
    "source": "one earlier token position that a head reads from",
    "reader": "one row of a reader's matrix",
    "vocab": "one entry of the vocabulary",
    "d_model": "one coordinate of the residual stream",
}

#: every write at every kept position
Writes: TypeAlias = Float[Tensor, "write batch pos d_model"]
#: the residual stream at one depth
Stream: TypeAlias = Float[Tensor, "batch pos d_model"]
#: one number per token
PerToken: TypeAlias = Float[Tensor, "batch pos"]
TokenIds: TypeAlias = Int[Tensor, "batch pos"]
TokenMask: TypeAlias = Bool[Tensor, "batch pos"]
