"""The ledger of the difference of two streams: which write separates context A from context B.

1. Both streams are sums of writes as they arrive at the end, so their difference is the sum of the writes'
   differences, `dx = sum over s of (u_a - u_b)`, and one row for the difference of the roundings.
2. For a reader m behind a final norm with scale 1 / sigma, which differs between the contexts,

       m_a - m_b  =  sum over s of R du_s (w / sigma_a + (1 - w) / sigma_b)  +  rescale  (+ softcap)
       rescale    =  R ((1 - w) x_a + w x_b) (1 / sigma_a - 1 / sigma_b)

   where w = 1 reads every difference through A's frozen norm, w = 0 through B's, w = 1/2 through both. The constants
   (the norm's bias, the unembedding's) cancel.
3. The sum is compared with the difference of the model's own values; `closure` is what is left.

Signs everywhere: A - B. Pure functions of two ledgers; no model is in reach.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.readouts.attribution import observe, project, softcap
from streamlens.readouts.readers.reader import Reader
from streamlens.sites import Site

if TYPE_CHECKING:
    import pandas as pd

#: whose norm reads the differences -> the weight of A's
SCALES = {"a": 1.0, "b": 0.0, "mean": 0.5}


@dataclass(frozen=True, eq=False, kw_only=True)
class Reading:
    """The difference of one reader between two contexts, in parts. In the reader's unit, A - B, float64.

    Attributes:
        reader: The reader.
        writes: What each row's difference gives, the rounding's last, [write, reader].
        rescale: The final norm's scale, [reader]; 0 for a reader without a norm.
        softcap: The softcap, [reader]; 0 without one.
        a: The model's own value in context A, [reader]; NaN where there is none.
        b: The same in context B.
    """

    reader: Reader
    writes: Float[Tensor, "write reader"]
    rescale: Float[Tensor, " reader"]
    softcap: Float[Tensor, " reader"]
    a: Float[Tensor, " reader"]
    b: Float[Tensor, " reader"]

    @cached_property
    def total(self) -> Float[Tensor, " reader"]:
        """The sum of the parts."""
        return self.writes.sum(0) + self.rescale + self.softcap

    @cached_property
    def closure(self) -> Float[Tensor, " reader"]:
        """|total - (a - b)|, in the reader's unit."""
        return (self.total - (self.a - self.b)).abs()


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Two ledgers at one aligned token each, and their difference.

    Attributes:
        a: The ledger of context A, one prompt and one position.
        b: The ledger of context B, likewise.
        readers: What to read.
        scale: Whose final norm reads the differences: "a", "b" or "mean".
    """

    a: Ledger
    b: Ledger
    readers: tuple[Reader, ...]
    scale: str

    @property
    def sites(self) -> tuple[Site, ...]:
        """The rows: the writes, then `rounding`."""
        return (*self.a.sites, Site(kind="rounding"))

    @property
    def labels(self) -> tuple[str, ...]:
        """The rows' labels."""
        return tuple(site.label for site in self.sites)

    @cached_property
    def differences(self) -> Float[Tensor, "write d_model"]:
        """u_a - u_b for every row, in float64; they sum to `stream`."""
        first, second = (torch.cat([x.writes[:, 0, 0].double(), x.rounding[:, 0]]) for x in (self.a, self.b))
        return first - second

    @cached_property
    def stream(self) -> Float[Tensor, " d_model"]:
        """The difference of the two final streams, in float64."""
        return self.a.stream[0, 0].double() - self.b.stream[0, 0].double()

    @cached_property
    def share(self) -> Float[Tensor, " write"]:
        """<du, dx> / |dx|^2 per row: signed, sums to 1 over the rows; 0 where the streams are the same."""
        return self.differences @ self.stream / self.stream.square().sum().clamp_min(1e-300)

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """Each reader's difference, in parts."""
        return tuple(_reading(self.a, self.b, self.differences, reader, SCALES[self.scale]) for reader in self.readers)

    def reading(self, reader: Reader | str) -> Reading:
        """The difference of one reader, by itself or by its name.

        Raises:
            InputError: Not one of the readers of this comparison.
        """
        for mine in self.readings:
            if mine.reader is reader or mine.reader.name == reader:
                return mine
        names = ", ".join(mine.name for mine in self.readers) or "none"
        raise InputError(f"A reader of this comparison is one of {names}; got {getattr(reader, 'name', reader)!r}.")

    def to_frame(self) -> "pd.DataFrame":
        """One row per write: how it differs, and what that gives each reader.

        See `streamlens.frames.SCHEMAS["comparison"]`.
        """
        from streamlens.frames import comparison_frame

        return comparison_frame(self)

    def effects(self) -> "pd.DataFrame":
        """One row per reader: both values, the parts of their difference, and the closing error.

        See `streamlens.frames.SCHEMAS["comparison_effects"]`.
        """
        from streamlens.frames import comparison_effects_frame

        return comparison_effects_frame(self)

    def headline(self, reader: Reader | str | None = None, *, top: int = 3) -> str:
        """*logit(·river) - logit(·money): 3.74 - -6.25 = 9.99 logits. Most by L27.attn +1.90, ...* First row only."""
        reading = self.reading(self.readers[0] if reader is None else reader)
        given = reading.writes[:, 0]
        largest = given.abs().argsort(descending=True)[:top].tolist()
        named = ", ".join(f"{self.labels[row]} {float(given[row]):+.2f}" for row in largest)
        a, b = float(reading.a[0]), float(reading.b[0])
        return (
            f"{reading.reader.rows[0]}: {a:.2f} - {b:.2f} = {a - b:.2f} {reading.reader.unit}. Most by {named}; "
            f"rescale {float(reading.rescale[0]):+.2f}; closing error {float(reading.closure[0]):.1e}."
        )

    def __repr__(self) -> str:
        worst = max((float(reading.closure.max()) for reading in self.readings), default=0.0)
        return f"Comparison({len(self.sites)} rows, {len(self.readers)} readers; closure {worst:.1e})"


def compare_ledgers(a: Ledger, b: Ledger, *, readers: tuple[Reader, ...] = (), scale: str = "a") -> Comparison:
    """The difference of two ledgers, each of one prompt at one position.

    Args:
        a: Context A.
        b: Context B, of the same model at the same level.
        readers: What to read.
        scale: Whose final norm reads the differences: "a", "b", or "mean" for the mean of both.

    Raises:
        InputError: Ledgers of different rows, or of more than one position; a reader of another width; no such scale.

    Cost: O(writes x d_model) per reader row, in float64.
    """
    if scale not in SCALES:
        raise InputError(f"The scale of a comparison is one of {', '.join(SCALES)}; got {scale!r}.")
    if a.labels != b.labels or a.stream.shape != b.stream.shape:
        raise InputError(
            f"A comparison takes two ledgers with the same rows; got {len(a.labels)} and {len(b.labels)} rows of width "
            f"{a.stream.shape[-1]} and {b.stream.shape[-1]}.",
            hint="Take both apart with one model at one level.",
        )
    if a.stream.shape[:2] != (1, 1):
        raise InputError(f"A comparison is of one prompt at one position each; got {tuple(a.stream.shape[:2])}.")
    comparison = Comparison(a=a, b=b, readers=readers, scale=scale)
    _ = comparison.readings  # a reader that does not fit is refused here, not where a frame is made
    return comparison


def _reading(a: Ledger, b: Ledger, differences: Tensor, reader: Reader, weight: float) -> Reading:
    through_a, through_b = project(a, reader), project(b, reader)
    rows = differences[:, None]  # as one position of as many prompts
    stream = (1 - weight) * a.stream.double() + weight * b.stream.double()
    return Reading(
        reader=reader,
        writes=(weight * through_a(rows) + (1 - weight) * through_b(rows))[:, 0],
        rescale=(through_a(stream) - through_b(stream))[0, 0],
        softcap=(softcap(a, reader) - softcap(b, reader))[0, 0],
        a=_own(a, reader),
        b=_own(b, reader),
    )


def _own(ledger: Ledger, reader: Reader) -> Tensor:
    """The model's own value, [reader]; NaN where there is none."""
    value = observe(ledger, reader)
    if value is None:
        return torch.full((len(reader.matrix),), float("nan"), dtype=torch.float64, device=ledger.stream.device)
    return value[0, 0]
