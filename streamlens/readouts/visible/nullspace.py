"""The null space of a reader: the updates that it cannot see.

1. The reader's rows over the stream: its norm's gain folded in, the scale held (`frozen`); with a point of the stream
   given, also without the stream's own direction, which a norm takes out (`local`).
2. Their row space is what singular values above the reader's tolerance span. What is orthogonal to it is the null
   space: R (h + u_null) = R h, exactly.
3. A reader of full rank, such as an unembedding of more tokens than d_model, has the exact null space {0}. What can be
   reported of it is an *effective* null space: the row space is cut down to a stated share of the squared singular
   values (`energy`) or to a stated rank, and R (h + u_null) is R h only up to the rest. A `Nullspace` says which it is.

Row space and null space are orthogonal complements in the stream's own coordinates.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.carries import fold
from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.readouts.readers.reader import Reader
from streamlens.subspaces import effective_rank, spectrum


@dataclass(frozen=True, eq=False, kw_only=True)
class Nullspace:
    """A split of the stream's space into what a reader sees and what it does not.

    Attributes:
        reader: The reader's name.
        rows: An orthonormal basis of the row space, [rank, d_model], in the order of the singular values, float64.
        sizes: The reader's singular values, largest first.
        numerical_rank: How many of them lie above the reader's tolerance.
        local: Whether the norm's Jacobian at a point was taken, instead of holding the norm's scale.
    """

    reader: str
    rows: Float[Tensor, "rank d_model"]
    sizes: Float[Tensor, " least"]
    numerical_rank: int
    local: bool = False

    @property
    def rank(self) -> int:
        """The dimension of the row space."""
        return len(self.rows)

    @property
    def dimension(self) -> int:
        """The dimension of the null space: d_model - rank."""
        return self.rows.shape[1] - self.rank

    @property
    def exact(self) -> bool:
        """Whether the reader sees nothing at all of this space; if not, the null space is effective."""
        return self.rank >= self.numerical_rank

    @cached_property
    def energy(self) -> float:
        """The share of the squared singular values in the row space: 1 if exact."""
        squares = self.sizes.square()
        return 1.0 if self.exact else float(squares[: self.rank].sum() / squares.sum())

    @cached_property
    def effective_rank(self) -> float:
        """exp of the entropy of the reader's normalised singular values (Roy and Vetterli 2007)."""
        return effective_rank(self.sizes)

    @cached_property
    def basis(self) -> Float[Tensor, "dimension d_model"]:
        """An orthonormal basis of the null space, in float64. Cost: one QR of a square matrix."""
        if not self.rank:
            return torch.eye(self.rows.shape[1], dtype=torch.float64)
        whole = torch.linalg.qr(self.rows.T, mode="complete").Q
        return whole[:, self.rank :].T

    def project(self, x: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        """The part of x in the null space, in float64.

        Raises:
            InputError: Vectors of another width.
        """
        return x.double() - self.complement(x)

    def complement(self, x: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        """The part of x in the row space, in float64: `project(x) + complement(x)` is x.

        Raises:
            InputError: Vectors of another width.
        """
        d_model = self.rows.shape[1]
        if x.shape[-1] != d_model:
            raise InputError(f"This null space lies among vectors of {d_model} numbers; got {x.shape[-1]}.")
        rows = self.rows.to(x.device)
        return (x.double() @ rows.T) @ rows

    def __repr__(self) -> str:
        d_model = self.rows.shape[1]
        held = "at a point" if self.local else "scale held"
        if self.exact:
            full = "; full rank, so the reader sees every update" if not self.dimension else ""
            return f"Nullspace({self.reader}, {held}: exact, dimension {self.dimension} of {d_model}{full})"
        return (
            f"Nullspace({self.reader}, {held}: effective, dimension {self.dimension} of {d_model}; the row space holds "
            f"{self.energy:.4f} of the squared singular values, the exact rank is {self.numerical_rank})"
        )


@typed
def nullspace(
    reader: Reader,
    *,
    energy: float | None = None,
    rank: int | None = None,
    ledger: Ledger | None = None,
    at: Float[Tensor, " d_model"] | None = None,
) -> Nullspace:
    """The null space of a reader, exact or effective.

    Args:
        reader: The reader; it is taken over the stream itself, in front of the norm it reads through.
        energy: Cut the row space down to the fewest singular directions that hold this share of the squared singular
            values, 0 < energy <= 1.
        rank: Or to this many of them.
        ledger: Where a "final" reader made without a model takes its norm from.
        at: A point of the stream, [d_model], for the norm's Jacobian there instead of a scale that is held. The
            direction of `at` (centred under LayerNorm) then lies in the null space. It does so up to the norm's eps:
            scaling h by 1 + t changes what is read by t eps / sigma^2 of it. A reader without a norm ignores it.

    Raises:
        InputError: Both energy and rank, one out of its range, or a point of another width.

    Cost: one SVD, of a square matrix where the reader has more rows than d_model; about a second for 49152 x 576.
    """
    if energy is not None and rank is not None:
        raise InputError("An effective null space is stated by its energy or by its rank, not by both.")
    if energy is not None and not 0 < energy <= 1:
        raise InputError(f"energy is a share of the squared singular values, 0 < energy <= 1; got {energy}.")
    norm = reader.norm_known(ledger)
    matrix = fold(reader.matrix, norm)
    if rank is not None and not 0 <= rank <= matrix.shape[1]:
        raise InputError(f"rank is between 0 and d_model, {matrix.shape[1]}; got {rank}.")
    if at is not None and norm is not None:
        direction = _direction(at, matrix.shape[1], centred=norm.centred)
        matrix = matrix - (matrix @ direction)[:, None] * direction
    # what centring or the point's direction took out may leave only roundings of it
    whole = reader.matrix if norm is None else reader.matrix * norm.gain.to(reader.matrix.device)
    sizes, rows = spectrum(matrix, reader.tolerance, reference=float(whole.norm(dim=-1).max()))
    kept = len(rows)
    if energy is not None and energy < 1 and kept:
        shares = sizes.square().cumsum(0) / sizes.square().sum()
        kept = min(kept, 1 + int((shares < energy).sum()))
    if rank is not None:
        kept = min(kept, rank)
    return Nullspace(
        reader=reader.name,
        rows=rows[:kept].clone(),
        sizes=sizes,
        numerical_rank=len(rows),
        local=at is not None and norm is not None,
    )


def _direction(at: Tensor, d_model: int, *, centred: bool) -> Tensor:
    """The unit vector along a point of the stream, as the norm sees it; 0 for the point 0."""
    if at.shape != (d_model,):
        raise InputError(f"A point of the stream is a vector of {d_model} numbers; got shape {tuple(at.shape)}.")
    here = at.detach().double().cpu()
    here = here - here.mean() if centred else here
    return here / here.norm().clamp_min(1e-300)
