"""The Jacobian of the stream at one position, as data: what was measured, and what follows from it.

1. A step's Jacobian is I + J_f, f the write; the product over steps is the Jacobian of all of them, with the other
   positions held. `closure` compares the two.
2. The largest singular value of a product is at most the product of the largest ones: `bound`.
3. A perturbation is a real rerun: how it grew, beside what the Jacobian says.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from streamlens.sites import Site

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class JacobianStep:
    """One step of the stream.

    Attributes:
        label: Its writes: `L0.attn`, or `L0.attn + L0.mlp` where both read the same stream.
        site: The last of them.
        matrix: d x[s + 1] / d x[s] at the position, [out, d_model]; None where only products were made.
        largest: The largest singular value of that matrix.
        smallest: The smallest; NaN where only products were made.
        branch: The largest singular value of J_f alone; NaN where a norm follows, so that the matrix is not I + J_f.
        reached: The largest singular value from the start up to here, the other positions held.
        rms: By how much a random direction grows from the start up to here (root mean square); NaN where only products
            were made.
    """

    label: str
    site: Site
    matrix: Float[Tensor, "out d_model"] | None
    largest: float
    smallest: float
    branch: float
    reached: float
    rms: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Jacobian:
    """d x[end] / d x[start] at one position.

    Attributes:
        start: The write after which the stream is moved.
        end: The write after which it is read.
        position: Of the token, `token` its text.
        others: "held" or "free": what the other positions do.
        method: "dense" or "lanczos".
        matrix: [out, d_model], row k the gradient of coordinate k of x[end]; None for "lanczos".
        values: Its singular values, largest first: all, or the `top` largest.
        left: The left singular vectors of the first few, a row each.
        right: Their right singular vectors: the directions at the start that grow by `values`.
        steps: Between start and end, in order, each at this position alone.
        closure: The relative difference between the product over the steps and the whole. Rounding, where the others
            are held or cannot answer; else what came back through the other positions.
        provenance: Model, versions, arguments.
    """

    start: str
    end: str
    position: int
    token: str
    others: str
    method: str
    matrix: Float[Tensor, "out d_model"] | None
    values: Float[Tensor, " value"]
    left: Float[Tensor, "kept d_model"]
    right: Float[Tensor, "kept d_model"]
    steps: tuple[JacobianStep, ...]
    closure: float
    provenance: Mapping[str, Any]

    @property
    def bound(self) -> float:
        """The product of the steps' largest singular values: no direction can grow by more, the others held."""
        return math.prod(step.largest for step in self.steps)

    def to_frame(self) -> "pd.DataFrame":
        """One row per step; see `streamlens.frames.SCHEMAS["jacobian"]`."""
        from streamlens.frames import jacobian_frame

        return jacobian_frame(self)

    def __repr__(self) -> str:
        return (
            f"Jacobian({self.start} to {self.end} at position {self.position}, others {self.others}; largest singular "
            f"value {float(self.values[0]):.4g}, bound {self.bound:.2g}, closure {self.closure:.1e})"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Perturbation:
    """One direction added to the stream at one position, in several sizes, and what became of it.

    Attributes:
        start: The write after which it was added.
        position: Of the token, `token` its text.
        others: "held" or "free".
        direction: "random", "top" or "given".
        vector: The direction, of length 1.
        stream_norm: Length of the stream where it was added.
        sizes: Lengths of what was added, relative to that.
        labels: The points of the stream, the start first.
        sites: The last write before each.
        growth: Length of the real change over the length of what was added, [size, point].
        linear: The same by the Jacobian, [point].
        error: ||real change - linear|| / ||linear||, [size, point].
        provenance: Model, versions, arguments.
    """

    start: str
    position: int
    token: str
    others: str
    direction: str
    vector: Float[Tensor, " d_model"]
    stream_norm: float
    sizes: tuple[float, ...]
    labels: tuple[str, ...]
    sites: tuple[Site, ...]
    growth: Float[Tensor, "size point"]
    linear: Float[Tensor, " point"]
    error: Float[Tensor, "size point"]
    provenance: Mapping[str, Any]

    def to_frame(self) -> "pd.DataFrame":
        """One row per size and point; see `streamlens.frames.SCHEMAS["perturbation"]`."""
        from streamlens.frames import perturbation_frame

        return perturbation_frame(self)
