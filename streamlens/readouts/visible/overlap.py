"""How much the row spaces of two readers have in common.

1. Both row spaces are taken over the stream itself, the gains of their norms folded in and the scales held.
2. The singular values of U^T V, with orthonormal bases U and V, are the cosines of the principal angles (Bjorck and
   Golub 1973); the sum of their squares is the overlap, between 0 and the smaller rank.
3. Two random subspaces of ranks a and b overlap by a b / d on average. How far single draws lie from that is measured
   with seeded random subspaces of the same ranks.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.readouts.readers.reader import Reader
from streamlens.readouts.visible.nullspace import nullspace

if TYPE_CHECKING:
    import pandas as pd

#: random subspaces drawn for the reference
DRAWS = 64


@dataclass(frozen=True, eq=False, kw_only=True)
class Overlap:
    """Two row spaces side by side.

    Attributes:
        names: The readers.
        ranks: The dimensions of their row spaces.
        d_model: The dimension of the stream.
        cosines: Of the principal angles, largest first, [smaller rank], in float64.
        random: The overlaps of random subspaces of the same ranks, [draw].
        seed: What they were drawn with.
    """

    names: tuple[str, str]
    ranks: tuple[int, int]
    d_model: int
    cosines: Float[Tensor, " least"]
    random: Float[Tensor, " draw"]
    seed: int

    @property
    def angles(self) -> Float[Tensor, " least"]:
        """The principal angles in degrees, smallest first."""
        return torch.rad2deg(torch.arccos(self.cosines))

    @property
    def total(self) -> float:
        """The sum of the squared cosines: the smaller rank if one space holds the other, 0 if they are orthogonal."""
        return float(self.cosines.square().sum())

    @property
    def chance(self) -> float:
        """Its expectation for random subspaces: the product of the ranks over d_model."""
        return self.ranks[0] * self.ranks[1] / self.d_model

    @property
    def lift(self) -> float:
        """total / chance: 1 for random subspaces."""
        return self.total / self.chance

    @property
    def spread(self) -> float:
        """The standard deviation of the overlap over the random subspaces."""
        return float(self.random.std())

    def to_frame(self) -> "pd.DataFrame":
        """One row per principal angle; see `streamlens.frames.SCHEMAS["overlap"]`."""
        from streamlens.frames import overlap_frame

        return overlap_frame(self)

    def __repr__(self) -> str:
        a, b = self.names
        return (
            f"Overlap({a}, rank {self.ranks[0]}, and {b}, rank {self.ranks[1]}, of {self.d_model}: "
            f"{self.total:.3f}; random {self.chance:.3f} +- {self.spread:.3f})"
        )


@typed
def overlap(reader_a: Reader, reader_b: Reader, *, ledger: Ledger | None = None, seed: int = 0) -> Overlap:
    """Principal angles between two readers' row spaces, beside what random subspaces of their ranks have.

    Args:
        reader_a: A reader.
        reader_b: Another, of the same width.
        ledger: Where a "final" reader made without a model takes its norm from.
        seed: For the random subspaces.

    Raises:
        InputError: Readers of different widths.

    Cost: one SVD of each reader, and `DRAWS` QR decompositions of d_model x the smaller rank.
    """
    a, b = (nullspace(reader, ledger=ledger).rows for reader in (reader_a, reader_b))
    if a.shape[1] != b.shape[1]:
        raise InputError(f"Two readers overlap in one stream; these are {a.shape[1]} and {b.shape[1]} wide.")
    few, many = sorted((a, b), key=len)
    draw = torch.Generator().manual_seed(seed)
    random = [torch.linalg.qr(torch.randn(few.T.shape, generator=draw, dtype=torch.float64)).Q for _ in range(DRAWS)]
    return Overlap(
        names=(reader_a.name, reader_b.name),
        ranks=(len(a), len(b)),
        d_model=a.shape[1],
        cosines=torch.linalg.svdvals(many @ few.T).clamp(max=1.0),
        random=torch.stack([(many @ q).square().sum() for q in random]),
        seed=seed,
    )
