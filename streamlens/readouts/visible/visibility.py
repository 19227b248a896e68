"""Who can see a write: every update split into what a reader sees and what it does not.

A reader is a matrix R behind a norm, so what it sees of an update u depends on what happens to the norm's scale sigma.
Three answers, never mixed. x is the stream where the reader reads, u a write in it, h = x - u the stream without it.
RMSNorm is written out; under LayerNorm every vector is centred first. A = R diag(gain).

1. `frozen`: sigma held at its value. The reader is A / sigma.
2. `local`: the norm's Jacobian at x. The reader is A (I - x x^T / (d sigma^2)) / sigma: the stream's own direction is
   invisible to it, up to the norm's eps.
3. `finite`: what really happened, read(x) - read(x - u). With m = (x + h) / 2 and s = (sigma_x + sigma_h) / 2 this is
   exactly A (I - m m^T / (d s^2)) u s / (sigma_x sigma_h): the Jacobian's form, at the midpoint.

Then, for every write and position:

4. u = u_row + u_null, orthogonal. The row space is that of A, without the direction of x (local) or m (finite): up to
   eps, and in `finite` up to the square of the angle between x and h, that direction is invisible.
5. `share` = |u_row|^2 / |u|^2 beside its expectation for a random u, `chance` = rank / d; their ratio is the `lift`.
6. `change` is what the reader's value changes by. It is the sum of `direct` (sigma held at the value it has at x: the
   write's direct attribution) and `rescale` (the scale moving; 0 in `frozen`).
7. `gain` = |change| over what a random update of that length changes it by (root mean square, as if the same linear map
   acted on it): |M u| / (|u| |M|_F / sqrt(d)).

A share is geometry: it says what the reader could see, not that it uses it (arXiv 2311.17030). Before a softcap.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.axes import PerToken
from streamlens.carries import FrozenNorm, fold
from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.readouts.readers.reader import Reader
from streamlens.readouts.visible.nullspace import nullspace
from streamlens.subspaces import compact

if TYPE_CHECKING:
    import pandas as pd

PerWrite: TypeAlias = Float[Tensor, "write batch pos"]
MODES = ("frozen", "local", "finite")
#: squared distance of a direction from a row space below which it lies in it
WITHIN = 1e-14


@dataclass(frozen=True, eq=False, kw_only=True)
class Visibility:
    """What a reader sees of every write, and what changes for it. Everything in float64.

    Attributes:
        ledger: The ledger of the stream that the reader reads.
        reader: The reader.
        mode: "frozen", "local" or "finite"; see the module's docstring.
        row_norm: |u_row|, [write, batch, pos].
        null_norm: |u_null|; the squares sum to |u|^2.
        rank: The dimension of the row space.
        direct: The part of the change with the norm's scale held, in the reader's unit. For a reader of several rows
            it and `rescale` are components along the vector of changes, so that they sum to its length.
        rescale: The part due to the norm's scale moving.
        gain: The reader's response over that to a random update of the same length.
        exact: False where the row space was cut down to an energy or a rank.
        energy: The share of the reader's squared singular values in that row space.
    """

    ledger: Ledger
    reader: Reader
    mode: str
    row_norm: PerWrite
    null_norm: PerWrite
    rank: PerWrite
    direct: PerWrite
    rescale: PerWrite
    gain: PerWrite
    exact: bool
    energy: float

    @property
    def norm(self) -> PerWrite:
        """|u|."""
        return torch.hypot(self.row_norm, self.null_norm)

    @property
    def share(self) -> PerWrite:
        """|u_row|^2 / |u|^2, between 0 and 1; NaN for a write that is zero."""
        return (self.row_norm / self.norm).square()

    @property
    def chance(self) -> PerWrite:
        """rank / d_model: the expected share of a random update."""
        return self.rank / self.ledger.stream.shape[-1]

    @property
    def lift(self) -> PerWrite:
        """share / chance: 1 for a random update; NaN for a reader that sees nothing."""
        return self.share / self.chance

    @property
    def change(self) -> PerWrite:
        """What the reader's value changes by: signed for a reader of one row, the length for one of several."""
        return self.direct + self.rescale

    def to_frame(self) -> "pd.DataFrame":
        """One row per (prompt, position, write); see `streamlens.frames.SCHEMAS["visibility"]`."""
        from streamlens.frames import visibility_frame

        return visibility_frame(self)

    def __repr__(self) -> str:
        rows, batch, pos = self.row_norm.shape
        held = "exact" if self.exact else f"effective, energy {self.energy:.4f}"
        chance = float(self.chance.mean())
        return (
            f"Visibility({self.reader.name}, {self.mode}: {rows} writes x {batch} prompts x {pos} positions; "
            f"row space {held}; chance share {chance:.4f})"
        )


@typed
def visibility(
    ledger: Ledger,
    reader: Reader,
    mode: str = "frozen",
    *,
    energy: float | None = None,
    rank: int | None = None,
) -> Visibility:
    """What a reader sees of every write, at every position, where it reads.

    Args:
        ledger: From `decompose`.
        reader: Any reader; in a post-norm model the writes are taken as they arrive where it reads.
        mode: "frozen" (the norm's scale held), "local" (the norm's Jacobian) or "finite" (the write really taken away
            from what the reader reads, everything else as it is). Without a norm the three are one.
        energy: For a reader of full rank: an effective row space, as in `nullspace`. Shares then speak of that space;
            `change` and `gain` are always the whole reader's.
        rank: Likewise by rank.

    Raises:
        InputError: No such mode, or a reader of another width than the stream.

    Cost: one SVD of the reader, then O(writes x positions x d_model x min(rows, d_model)), in float64.
    """
    if mode not in MODES:
        raise InputError(f"mode is one of {', '.join(MODES)}; got {mode!r}.")
    seen = reader.seen(ledger)
    d_model = seen.stream.shape[-1]
    if reader.matrix.shape[1] != d_model:
        width = reader.matrix.shape[1]
        raise InputError(f"A reader is as wide as the stream, {d_model}; {reader.name!r} is {width} wide.")
    split = nullspace(reader, energy=energy, rank=rank, ledger=ledger)
    norm = reader.norm_at(seen) if mode == "frozen" else _true_norm(reader, seen)
    matrix = compact(fold(reader.matrix, norm)).to(seen.stream.device)
    at_point = _At(matrix, split.rows.to(matrix.device), seen.stream, norm, mode)
    columns = [at_point.of(write) for write in seen.writes]
    return Visibility(
        ledger=seen,
        reader=reader,
        mode=mode,
        exact=split.exact,
        energy=split.energy,
        **{name: torch.stack([column[name] for column in columns]) for name in columns[0]},
    )


def _true_norm(reader: Reader, seen: Ledger) -> FrozenNorm | None:
    """The norm with the statistics of the stream that is read, which the Jacobian and a finite step are taken at."""
    if reader.norm == "none" or (reader.through is None and reader.after is None):
        return reader.norm_at(seen)
    if reader.through is None:
        raise InputError(
            f"{reader.name!r} reads the middle of the stream through a norm that it does not hold.",
            hint="Use mode='frozen', or make the reader with a model.",
        )
    return reader.through.at(seen.stream)


class _At:
    """One reader at one stream: what of an update it sees, and what changes for it."""

    def __init__(self, matrix: Tensor, rows: Tensor, stream: Tensor, norm: FrozenNorm | None, mode: str) -> None:
        self.matrix, self.rows = matrix, rows
        self.norm, self.mode = norm, "frozen" if norm is None else mode
        self.scale = torch.ones_like(stream[..., 0], dtype=torch.float64) if norm is None else norm.scale
        self.x = self._centred(stream)
        self.size = matrix.square().sum()  # |A|_F^2
        self.taken_out = None if self.mode != "local" else _Direction(rows, self.x)

    def of(self, write: Float[Tensor, "batch pos d_model"]) -> dict[str, PerToken]:
        """The fields of a `Visibility` for one write."""
        u = write.double()
        length = u.norm(dim=-1)
        taken_out = self.taken_out
        if self.mode == "finite":
            taken_out = _Direction(self.rows, self.x - self._centred(u) / 2)
        row = u @ self.rows.T @ self.rows if taken_out is None else taken_out.row_part(u)
        lost = torch.zeros_like(length) if taken_out is None else taken_out.inside.double()
        direct, rescale, size = self._change(self._centred(u))
        response = (direct + rescale).norm(dim=-1)
        direct, rescale = _along(direct, rescale)
        return {
            "row_norm": row.norm(dim=-1),
            "null_norm": (u - row).norm(dim=-1),
            "rank": len(self.rows) - lost,
            "direct": direct,
            "rescale": rescale,
            "gain": response / (length * size * (u.shape[-1] ** -0.5)),
        }

    def _centred(self, x: Tensor) -> Tensor:
        x = x.double()
        return x - x.mean(-1, keepdim=True) if self.norm is not None and self.norm.centred else x

    def _change(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """direct and rescale as vectors, and the Frobenius norm of the linear map from u to their sum."""
        d_model, scale = u.shape[-1], self.scale
        direct = (u @ self.matrix.T) * scale[..., None]
        if self.mode == "frozen":
            return direct, torch.zeros_like(direct), scale * self.size.sqrt()
        if self.mode == "local":
            per_sigma = scale.square() / d_model
            rescale = (self.x @ self.matrix.T) * ((self.x * u).sum(-1) * per_sigma * scale)[..., None]
            return direct, -rescale, scale * self._size_without(self.x, per_sigma)
        h = self.x - u
        sigma_x = 1 / scale
        squares = ((u - 2 * self.x) * u).sum(-1) / d_model  # sigma_h^2 - sigma_x^2
        sigma_h = (sigma_x.square() + squares).clamp_min(0).sqrt().clamp_min(1e-150)
        moved = squares / (sigma_x * sigma_h * (sigma_x + sigma_h))  # 1 / sigma_x - 1 / sigma_h
        rescale = (h @ self.matrix.T) * moved[..., None]
        middle = (sigma_x + sigma_h) / 2
        size = self._size_without(self.x - u / 2, 1 / (d_model * middle.square()))
        return direct, rescale, size * middle / (sigma_x * sigma_h)

    def _size_without(self, direction: Tensor, factor: Tensor) -> Tensor:
        """|A (I - factor n n^T)|_F at each token."""
        image = (direction @ self.matrix.T).square().sum(-1)
        twice = 2 * factor - factor.square() * direction.square().sum(-1)
        return (self.size - twice * image).clamp_min(0).sqrt()


class _Direction:
    """The row space A (I - n n^T) has at each token, from an orthonormal basis V of the row space of A.

    Only one dimension differs: p, the part of n in V, becomes p made orthogonal to n, or nothing if n lies in V.
    """

    def __init__(self, rows: Tensor, direction: Tensor) -> None:
        n = direction / direction.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        inner = n @ rows.T
        outer = n - inner @ rows
        self.rows = rows
        self.inner, self.outer = inner.norm(dim=-1, keepdim=True), outer.norm(dim=-1, keepdim=True)
        self.inside = (self.outer.square() < WITHIN * self.inner.square())[..., 0]
        self.p = inner / self.inner.clamp_min(1e-300)  # over the basis
        out = outer / self.outer.clamp_min(1e-300)
        self.turned = self.outer * (self.p @ rows) - self.inner * out
        self.turned = self.turned.masked_fill(self.inside[..., None], 0.0)

    def row_part(self, u: Tensor) -> Tensor:
        seen = u @ self.rows.T
        seen = seen - self.p * (self.p * seen).sum(-1, keepdim=True)
        return seen @ self.rows + self.turned * (self.turned * u).sum(-1, keepdim=True)


def _along(direct: Tensor, rescale: Tensor) -> tuple[Tensor, Tensor]:
    """Two vectors as signed numbers: for several rows along their sum, or along `direct` if that sum is nothing."""
    if direct.shape[-1] == 1:
        return direct[..., 0], rescale[..., 0]
    whole = direct + rescale
    nothing = whole.norm(dim=-1, keepdim=True) <= 1e-9 * direct.norm(dim=-1, keepdim=True)
    axis = torch.where(nothing, direct, whole)
    axis = axis / axis.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return (direct * axis).sum(-1), (rescale * axis).sum(-1)
