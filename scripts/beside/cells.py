"""What becomes of one quantity on one architecture: who is how far from the model's own numbers.

1. A part's distance is |found - own| / |own| at one token, over the width of the stream or the vocabulary;
   contributions and effects, which are numbers, are taken over all their parts. A cell shows the largest.
2. Up to `AGREES` it is the roundings of float32. Beyond it one of the two is wrong, and the model says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from beside import by_hand, ours, theirs
from beside.subject import Subject

#: the most that float32 and another attention kernel were seen to do, times ten
AGREES = 1e-3

#: quantity -> its column
COLUMNS = {
    "writes": "writes",
    "sum": "sum of writes",
    "stream": "stream",
    "heads": "heads",
    "heads sum": "sum of heads",
    "attribution": "attribution",
    "attribution, as booted": "attribution, as booted",
    "lens": "logit lens",
    "ablated": "sublayer off",
    "ablated heads": "head off",
    "effects": "effect",
}
#: numbers per part, not vectors
NUMBERS = ("attribution", "attribution, as booted", "effects")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One quantity of one architecture.

    Attributes:
        name: The architecture.
        quantity: A key of `COLUMNS`.
        ours: Distance of streamlens from the model's own; None where it has no such number.
        theirs: The same of transformer-lens; what it raised, where it did.
        apart: Distance of the two from each other.
        missing: Parts that transformer-lens does not have.
    """

    name: str
    quantity: str
    ours: float | None
    theirs: float | str | None
    apart: float | None
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """What the cell says: "agree", "none" (nothing by hand), or who is not right.

        "ours" and "theirs" are wrong numbers, "incomplete" and "raises" are theirs.
        """
        if self.ours is None:
            return "none"
        if not self.ours < AGREES:  # NaN is not small
            return "ours"
        if isinstance(self.theirs, str):
            return "raises"
        if self.theirs is None or not self.theirs < AGREES:
            return "theirs"
        return "incomplete" if self.missing else "agree"


def measure(subject: Subject) -> list[Cell]:
    """Every quantity of one architecture."""
    own, mine, other = by_hand.numbers(subject), ours.numbers(subject), theirs.numbers(subject)
    for found in (own, mine):
        if "attribution" in found:
            found["attribution, as booted"] = found["attribution"]
    return [_cell(subject.name, quantity, own, mine, other) for quantity in COLUMNS]


def _cell(name: str, quantity: str, own: Mapping, mine: Mapping, other: Mapping) -> Cell:
    if quantity not in own:
        return Cell(name=name, quantity=quantity, ours=None, theirs=None, apart=None)
    wanted, found, answer = own[quantity], mine[quantity], other[quantity]
    absent = [label for label in wanted if label not in found]
    assert not absent, f"{name}: streamlens has no {', '.join(absent)}"
    distance = _distance(quantity, found, wanted)
    if isinstance(answer, str):
        return Cell(name=name, quantity=quantity, ours=distance, theirs=answer, apart=None)
    there = [label for label in wanted if label in answer]
    return Cell(
        name=name,
        quantity=quantity,
        ours=distance,
        theirs=_distance(quantity, answer, {label: wanted[label] for label in there}),
        apart=_distance(quantity, answer, {label: found[label] for label in there}),
        missing=tuple(label for label in wanted if label not in answer),
    )


def _distance(quantity: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest relative distance over the parts and tokens of `wanted`."""
    pairs: list[tuple[Any, Any]] = [(found[label].detach().double(), part.double()) for label, part in wanted.items()]
    if quantity in NUMBERS:
        pairs = [tuple(torch.stack(side, dim=-1) for side in zip(*pairs, strict=True))]
    return float(torch.stack([((a - b).norm(dim=-1) / b.norm(dim=-1)).max() for a, b in pairs]).max())  # keeps NaN
