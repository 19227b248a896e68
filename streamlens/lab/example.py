"""What every worked example hands over, and how its equalities are stated.

1. An example computes plain tensors with plain torch; nothing of it is precomputed.
2. What it claims is a list of `Check`s: a sentence with numbers, the error that was measured, the error allowed.
3. Its table is a frame, its figures are drawn from frames when asked for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from streamlens.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class Check:
    """One claim and how far off it is.

    Attributes:
        says: The claim, with its numbers.
        error: By how much it fails; 0.0 where it holds to the last bit, NaN where there was nothing to measure.
        limit: The largest error that still counts as holding: roundings, or 0.
    """

    says: str
    error: float
    limit: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the error is within its limit; NaN is not."""
        return self.error <= self.limit


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawing:
    """One figure of an example: what it shows in a sentence, and the function that draws it for a theme."""

    caption: str
    draw: Callable[[bool], Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Example:
    """One worked example.

    Attributes:
        name: What `streamlens lab NAME` calls it.
        title: Its heading.
        teaches: What it shows, in a sentence or two.
        table: Its numbers, a row each.
        drawings: Its figures.
        checks: What it claims, each with its error.
        ledger: The books of one of its forward passes; None where there is no single one.
    """

    name: str
    title: str
    teaches: str
    table: pd.DataFrame
    drawings: tuple[Drawing, ...]
    checks: tuple[Check, ...]
    ledger: Ledger | None = None

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)


def equal(says: str, found: Any, wanted: Any, *, limit: float = 0.0) -> Check:
    """The claim that two numbers or tensors of one shape are equal; the error is their largest absolute difference."""
    found, wanted = torch.as_tensor(found, dtype=torch.float64), torch.as_tensor(wanted, dtype=torch.float64)
    assert found.shape == wanted.shape, f"{tuple(found.shape)} is compared with {tuple(wanted.shape)}"
    return Check(says=says, error=float((found - wanted).abs().max()), limit=limit)


def relative(says: str, found: Any, wanted: Any, *, limit: float = 1e-12) -> Check:
    """The same with the error relative to the largest entry of what is wanted."""
    size = float(torch.as_tensor(wanted, dtype=torch.float64).abs().max())
    absolute = equal(says, found, wanted)
    return Check(says=says, error=absolute.error / size, limit=limit)


def below(says: str, smaller: float, larger: float) -> Check:
    """The claim that one number is below another; the error is how far above it is."""
    error = smaller - larger
    return Check(says=says, error=error if math.isnan(error) else max(0.0, error))


def closes(ledger: Ledger, *, limit: float = 1e-12, of: str = "the stream") -> Check:
    """The claim that a ledger closes, re-added in order and as a sum of carried writes; `of` names what it sums to."""
    error = max(ledger.in_order / float(ledger.stream.abs().max().clamp_min(1e-300)), float(ledger.closure.max()))
    return Check(says=f"the carried writes sum to {of}", error=error, limit=limit)


def point(x: Tensor) -> str:
    """A vector as text: `(0.5, 3)`."""
    return "(" + ", ".join(f"{value:.4g}" for value in (x + 0.0).tolist()) + ")"  # + 0.0: no minus zero
