"""Before, update, after: what each write does to a reader's value, in stream order.

1. The contributions of every write to the reader (`read`), at the depth where it reads.
2. What no write brings, the reader's bias above all, is the value before the first write.
3. Then they are added up in order: `after = before + update`, and the last `after` is the reader's value on the
   stream. Before its own depth a reader fitted there reads a sum that it was not fitted to.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.ledger import Ledger
from streamlens.readouts.attribution import read
from streamlens.readouts.readers.reader import Reader
from streamlens.sites import Site

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class BeforeAfter:
    """A reader's value before and after every write. Everything is in the reader's unit, in float64.

    Attributes:
        ledger: The ledger of the stream that the reader reads.
        reader: The reader.
        sites: The writes in stream order, then `rounding`, and `softcap` if there is one.
        start: The value before the first write, [batch, pos, reader].
        update: What each row adds, [write, batch, pos, reader].
        observed: The reader's value on the stream itself; None where it is not known.
    """

    ledger: Ledger
    reader: Reader
    sites: tuple[Site, ...]
    start: Float[Tensor, "batch pos reader"]
    update: Float[Tensor, "write batch pos reader"]
    observed: Float[Tensor, "batch pos reader"] | None

    @property
    def after(self) -> Float[Tensor, "write batch pos reader"]:
        """The value after each row."""
        return self.start + self.update.cumsum(0)

    @property
    def before(self) -> Float[Tensor, "write batch pos reader"]:
        """The value before each row: after the one before it."""
        return torch.cat([self.start[None], self.after[:-1]])

    @property
    def closure(self) -> Float[Tensor, "batch pos reader"]:
        """|last after - observed|, in the reader's unit; NaN where there is nothing to compare with; 0 at padding."""
        if self.observed is None:
            return torch.full_like(self.start, float("nan"))
        return (self.after[-1] - self.observed).abs().masked_fill(~self.ledger.mask[..., None], 0.0)

    def to_frame(self) -> "pd.DataFrame":
        """One row per (prompt, position, reader, write); see `streamlens.frames.SCHEMAS["steps"]`."""
        from streamlens.frames import steps_frame

        return steps_frame(self)

    def __repr__(self) -> str:
        return (
            f"BeforeAfter({self.reader.name}: {len(self.sites)} rows; closure {float(self.closure.max()):.1e} "
            f"{self.reader.unit})"
        )


@typed
def before_after(ledger: Ledger, reader: Reader) -> BeforeAfter:
    """The table *before, update, after* of a reader: a probe, a logit difference, any other.

    Args:
        ledger: From `decompose`.
        reader: Any reader. One with `after` reads the stream there, and the writes up to there are its rows. One
            behind a norm reads with the norm's scale held at this pass, as `read` does.

    Raises:
        InputError: As `read`.

    Cost: as `read`.
    """
    readout = read(ledger, reader)
    writes = len(readout.ledger.sites)
    moving = [n for n, site in enumerate(readout.sites) if n < writes or site.kind in ("rounding", "softcap")]
    still = [n for n in range(len(readout.sites)) if n not in moving]
    return BeforeAfter(
        ledger=readout.ledger,
        reader=reader,
        sites=tuple(readout.sites[n] for n in moving),
        start=readout.contributions[still].sum(0),
        update=readout.contributions[moving],
        observed=readout.observed,
    )
