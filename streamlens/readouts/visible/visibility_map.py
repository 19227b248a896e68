"""Who reads whom: every write against every reader of the model that comes after it, at one token.

1. A model's readers (`model_readers.py`) are taken one at a time: each is folded with the gain of the norm it reads
   through and kept as its singular values and an orthonormal basis of its row space. Those that read after the same
   write are stacked into one matrix, which is kept for as long as the model is.
2. The writes at the token are taken as they arrive where a reader reads. In a pre-norm model that is the same vector
   for all readers; in a post-norm model it is not.
3. One product with the stacked bases gives every write's coordinates in every row space. Their squares sum to the
   visible share; weighted with the singular values, to the reader's response.

The norm's scale is held, so the numbers are those of `visibility(ledger, reader, "frozen")`. A reader of full rank, as
most MLPs and unembeddings are, sees every direction: its exact share is 1 and so is its lift, for any write. What tells
writes apart there is the gain, or the share of an effective row space (`energy`).
"""

import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from streamlens.arguments import typed
from streamlens.carries import fold
from streamlens.errors import InputError, ModelError
from streamlens.ledger import Ledger
from streamlens.readouts.readers.model_readers import each_reader
from streamlens.readouts.readers.protocols import ReadsStream
from streamlens.readouts.readers.reader import Reader
from streamlens.subspaces import one_thread, spectrum

if TYPE_CHECKING:
    import pandas as pd

PerPair = Float[Tensor, "write reader"]


@dataclass(frozen=True, kw_only=True)
class ReaderName:
    """What a column of the map is.

    Attributes:
        name: The reader's name: `L10H8.q`, `L10H6-8.k`, `L10.mlp.in`, `unembedding`.
        part: "q", "k", "v", "in", ..., or "unembedding".
        layer: Its block; None for the unembedding.
        after: The last write that is in the stream when it reads; None for the end.
        rank: The dimension of the row space that shares speak of.
        exact: False where that is an effective one.
    """

    name: str
    part: str
    layer: int | None
    after: str | None
    rank: int
    exact: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class VisibilityMap:
    """What every reader of a model sees of every write at one token. In float64.

    Attributes:
        ledger: The ledger of that token.
        readers: The columns, in stream order.
        sees: Whether the write is in the stream when the reader reads, [write, reader].
        share: |u_row|^2 / |u|^2; NaN where it does not.
        gain: The reader's response over that to a random vector as long as u; NaN where it does not.
    """

    ledger: Ledger
    readers: tuple[ReaderName, ...]
    sees: Bool[Tensor, "write reader"]
    share: PerPair
    gain: PerPair

    @property
    def chance(self) -> Float[Tensor, " reader"]:
        """rank / d_model: the expected share of a random update."""
        ranks = torch.tensor([reader.rank for reader in self.readers], dtype=torch.float64)
        return ranks / self.ledger.stream.shape[-1]

    @property
    def lift(self) -> PerPair:
        """share / chance: 1 for a random update."""
        return self.share / self.chance

    def to_frame(self) -> "pd.DataFrame":
        """One row per (write, reader); see `streamlens.frames.SCHEMAS["visibility_map"]`."""
        from streamlens.frames import visibility_map_frame

        return visibility_map_frame(self)

    def __repr__(self) -> str:
        writes, readers = self.sees.shape
        return f"VisibilityMap({writes} writes x {readers} readers at {self.ledger.tokens[0][0]!r})"


@dataclass(frozen=True, eq=False, kw_only=True)
class _Group:
    """The row spaces of readers that read after the same write, stacked.

    Attributes:
        after: That write.
        names: The readers.
        rows: Orthonormal bases, one reader below the other, each in the order of its singular values.
        sizes: The singular values.
        owner: The number of the reader that a row belongs to.
        number: The number of the row within its reader.
    """

    after: str | None
    names: tuple[str, ...]
    rows: Float[Tensor, "total d_model"]
    sizes: Float[Tensor, " total"]
    owner: Int[Tensor, " total"]
    number: Int[Tensor, " total"]

    @property
    def ranks(self) -> list[int]:
        """The dimension of each reader's row space."""
        return torch.bincount(self.owner, minlength=len(self.names)).tolist()

    def sums(self, values: Float[Tensor, "total n"]) -> Float[Tensor, "n reader"]:
        """The sum over each reader's rows."""
        return torch.zeros(len(self.names), values.shape[1], dtype=torch.float64).index_add_(0, self.owner, values).T


#: what was made for each model and stream; it goes with the model's handle
_KEPT: "weakref.WeakKeyDictionary[ReadsStream, dict[str | None, tuple[_Group, ...]]]" = weakref.WeakKeyDictionary()


@typed
def visibility_map(
    ledger: Ledger,
    model: ReadsStream,
    *,
    position: int | str | None = None,
    prompt: int = 0,
    energy: float | None = None,
) -> VisibilityMap:
    """What every later reader of the model sees of every write, at one token.

    Args:
        ledger: From `decompose` with this model, at any level.
        model: The same handle. Its readers' row spaces are kept beside it from the first call on; after a change of its
            weights, load it anew.
        position: The token, as text or position; may be left out where the ledger keeps one.
        prompt: The prompt, where the ledger holds several.
        energy: For readers of full rank: the share of the squared singular values in an effective row space.

    Raises:
        InputError: No such token, a ledger of another width, or an energy out of its range.

    Cost: the first time one SVD for each reader (481 of d_model 576 take 5 s on one core) and sum(rank) x d_model
    numbers of memory, 215 MB; then one matrix product.
    """
    if energy is not None and not 0 < energy <= 1:
        raise InputError(f"energy is a share of the squared singular values, 0 < energy <= 1; got {energy}.")
    if not 0 <= prompt < len(ledger.context):
        raise InputError(f"A prompt of this ledger is between 0 and {len(ledger.context) - 1}; got {prompt}.")
    if position is None:
        if ledger.stream.shape[1] != 1:
            raise InputError("The map is of one token; give position=, or a ledger that keeps one.")
        position = int(ledger.indices[prompt, 0])
    with one_thread():
        return _map(ledger.place(position, prompt=prompt), _groups(model, ledger.provenance.get("stream")), energy)


def _map(here: Ledger, groups: Sequence[_Group], energy: float | None) -> VisibilityMap:
    d_model = here.stream.shape[-1]
    names, counts, shares, gains = [], [], [], []
    for group in groups:
        if group.rows.shape[1] != d_model:
            width = group.rows.shape[1]
            raise InputError(f"This model's readers are {width} wide; the ledger's stream is {d_model} wide.")
        writes = (here if group.after is None else here.at(group.after)).writes[:, 0, 0].double().cpu()
        ranks, counted = _cut(group, energy)
        squares, weights = (group.rows @ writes.T).square(), group.sizes.square()[:, None]
        length = writes.square().sum(-1, keepdim=True)
        later = (0, 0, 0, len(here.sites) - len(writes))  # rows of writes that are not there yet
        gain = (group.sums(squares * weights) / (group.sums(weights) * length / d_model)).sqrt()
        shares.append(nn.functional.pad(group.sums(squares * counted) / length, later, value=float("nan")))
        gains.append(nn.functional.pad(gain, later, value=float("nan")))
        counts += [len(writes)] * len(group.names)
        names += [
            _name(name, group.after, rank, exact=rank == full)
            for name, rank, full in zip(group.names, ranks, group.ranks, strict=True)
        ]
    return VisibilityMap(
        ledger=here,
        readers=tuple(names),
        sees=torch.arange(len(here.sites))[:, None] < torch.tensor(counts),
        share=torch.cat(shares, 1),
        gain=torch.cat(gains, 1),
    )


def _cut(group: _Group, energy: float | None) -> tuple[list[int], Float[Tensor, "total 1"]]:
    """The rank of each reader's row space, and 1 for the rows that belong to it."""
    ranks = group.ranks
    if energy is not None and energy < 1:
        for number, rank in enumerate(ranks):
            if rank == group.rows.shape[1]:
                squares = group.sizes[group.owner == number].square()
                ranks[number] = 1 + int((squares.cumsum(0) / squares.sum() < energy).sum())
    return ranks, (group.number < torch.tensor(ranks)[group.owner]).double()[:, None]


def _groups(model: ReadsStream, stream: str | None) -> tuple[_Group, ...]:
    kept = _KEPT.setdefault(model, {})
    if stream not in kept:
        kept[stream] = tuple(_made(model, stream))
    return kept[stream]


def _made(model: ReadsStream, stream: str | None) -> Iterator[_Group]:
    after: str | None = None
    gathered: list[tuple[str, Tensor, Tensor]] = []
    for reader in _all(model, stream):
        if gathered and reader.after != after:
            yield _stacked(after, gathered)
            gathered = []
        sizes, basis = spectrum(fold(reader.matrix, reader.through), reader.tolerance)
        after = reader.after
        gathered.append((reader.name, sizes[: len(basis)], basis.clone()))
    yield _stacked(after, gathered)


def _all(model: ReadsStream, stream: str | None) -> Iterator[Reader]:
    found = False
    try:
        for reader in each_reader(model, stream=stream):
            found = True
            yield reader
    except ModelError:  # a model without a linear head has no unembedding to end with
        if not found:
            raise


def _stacked(after: str | None, gathered: Sequence[tuple[str, Tensor, Tensor]]) -> _Group:
    names, sizes, bases = zip(*gathered, strict=True)
    return _Group(
        after=after,
        names=names,
        rows=torch.cat(bases),
        sizes=torch.cat(sizes),
        owner=torch.cat([torch.full((len(basis),), number) for number, basis in enumerate(bases)]),
        number=torch.cat([torch.arange(len(basis)) for basis in bases]),
    )


def _name(name: str, after: str | None, rank: int, *, exact: bool) -> ReaderName:
    found = re.match(r"L(\d+)", name)
    layer = None if found is None else int(found[1])
    return ReaderName(name=name, part=name.rpartition(".")[2], layer=layer, after=after, rank=rank, exact=exact)
