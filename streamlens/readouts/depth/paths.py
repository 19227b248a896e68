"""The total gradient by path length: how many branches the gradient went through on its way back.

1. Expanding `(1 + J_S) ... (1 + J_1)` gives one term per subset of branches: a path. Its length is how many it takes.
2. A family sums the paths of each length to one vector per token. "all" has every path. "attn" and "mlp" have every
   path too, and count only the branches of that kind. "attn only" and "mlp only" leave out paths through any other.
3. The lengths of a family sum to a gradient that autograd gives by itself: the total one, or the one of a model whose
   other branches are held constant. `closure` is the distance.
4. Single paths drawn at random say how large one path of each length is: with their number this is the effective path
   length of Veit, Wilber and Belongie 2016.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class Lengths:
    """The paths of one family, summed by length.

    Attributes:
        vectors: What the paths of each length bring to the embedding together, float64.
        counts: How many paths of each length there are.
        target: The gradient that they sum to, as autograd gives it in one backward.
    """

    vectors: Float[Tensor, "length pos d_model"]
    counts: tuple[int, ...]
    target: Float[Tensor, "pos d_model"]

    @property
    def closure(self) -> float:
        """||sum over lengths - target|| / ||target||, over all positions."""
        return float((self.vectors.sum(0) - self.target).norm() / self.target.norm().clamp_min(1e-300))

    @cached_property
    def norms(self) -> Float[Tensor, " length"]:
        """The norm of each length's sum, over all positions. Lengths cancel: these do not sum to the target's."""
        return self.vectors.flatten(1).norm(dim=-1)

    @cached_property
    def shares(self) -> Float[Tensor, " length"]:
        """<sum, target> / |target|^2: signed, sums to 1."""
        return (self.vectors * self.target).sum((-1, -2)) / self.target.square().sum().clamp_min(1e-300)

    @property
    def norm_shares(self) -> Float[Tensor, " length"]:
        """Each length's norm as a share of the sum of norms."""
        return self.norms / self.norms.sum().clamp_min(1e-300)

    @property
    def path_shares(self) -> Float[Tensor, " length"]:
        """Each length's share of the number of paths: the binomial distribution where branches follow one another."""
        everything = sum(self.counts)
        return torch.tensor([count / everything for count in self.counts], dtype=torch.float64)


@dataclass(frozen=True, eq=False, kw_only=True)
class Paths:
    """The total gradient of one number by path length.

    Attributes:
        ledger: The model's own run without edits, one prompt, at all positions.
        metric: What is differentiated, by name.
        unit: Its unit.
        value: Its value.
        place: Where it is read.
        families: The sums by length: "all", "attn", "mlp", "attn only", "mlp only", as far as there are such branches.
        single: Norms of single paths of "all", drawn at random from each length, [length, sample]; None if none were.
        drift: Distance of the model's own gradient and the one explained here, relative: the roundings of the model's
            dtype, where the paths were followed in float64.
        precision: "float64", or "model" where they were followed in the model's own dtype.
    """

    ledger: Ledger
    metric: str
    unit: str
    value: float
    place: tuple[int, ...]
    families: Mapping[str, Lengths]
    single: Float[Tensor, "length sample"] | None
    drift: float
    precision: str

    @property
    def total(self) -> Float[Tensor, "pos d_model"]:
        """The total gradient at the embedding."""
        return self.families["all"].target

    @property
    def closure(self) -> float:
        """The largest closing error of the families."""
        return max(family.closure for family in self.families.values())

    @cached_property
    def single_shares(self) -> Float[Tensor, " length"] | None:
        """Number of paths times the mean norm of one, as a share: where the gradient would be if nothing cancelled."""
        if self.single is None:
            return None
        sizes = self.single.mean(-1) * self.families["all"].path_shares
        return sizes / sizes.sum().clamp_min(1e-300)

    def effective_length(self, coverage: float = 0.95) -> tuple[float, int, int]:
        """The mean path length by gradient, and the lengths between which that share of it lies.

        By single paths as in Veit et al. 2016 where some were drawn, else by the norms of the sums.

        Args:
            coverage: The share; half of the rest lies below, half above.
        """
        weights = self.families["all"].norm_shares if self.single_shares is None else self.single_shares
        lengths = torch.arange(len(weights), dtype=torch.float64)
        below = weights.cumsum(0)
        rest = (1 - coverage) / 2
        low, high = (int((below < bound).sum()) for bound in (rest, 1 - rest))
        return float((weights * lengths).sum()), low, min(high, len(weights) - 1)

    def to_frame(self) -> "pd.DataFrame":
        """One row per (family, length); see `streamlens.frames.SCHEMAS["paths"]`."""
        from streamlens.frames import paths_frame

        return paths_frame(self)

    def __repr__(self) -> str:
        longest = len(self.families["all"].counts) - 1
        return f"Paths({self.metric}: lengths 0 to {longest}, sum to the gradient within {self.closure:.1e})"
