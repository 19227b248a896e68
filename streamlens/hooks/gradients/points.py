"""The points of a stream: the places between which it runs as a chain, x[s + 1] = a function of x[s].

1. The program falls into stretches: an addition, with what is done to the stream before the next one.
2. Stretches join into one step where the later writes do not read the earlier ones: a parallel block's attention and
   MLP, the terms of an embedding. Whether they do is asked of a graph, never of a name.
3. After each step the stream is at a point. It is moved there at the last tensor the model makes before: the write, or
   the output of the norm that follows it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from streamlens.carries import Add, Renorm, Rescale
from streamlens.errors import InputError
from streamlens.models.wiring import Tap, Wiring
from streamlens.sites import Site, find


@dataclass(frozen=True, kw_only=True)
class Point:
    """The stream right after one step.

    Attributes:
        sites: The writes of the step, in order; those of tapped writes only.
        last: The number of its last step in the wiring's program.
        tap: Where the stream can be moved.
        factor: By how much the stream moves there per unit that the tensor at `tap` is moved.
        carry: What the step multiplies the stream before it by, where that is a number; None after a norm.
    """

    sites: tuple[Site, ...]
    last: int
    tap: Tap
    factor: float
    carry: float | None

    @property
    def label(self) -> str:
        """Its writes: `L0.attn`, or `L0.attn + L0.mlp` where both read the same stream."""
        return " + ".join(site.label for site in self.sites)


@dataclass(frozen=True)
class _Stretch:
    """Rows of tapped writes, and the numbers of the first and last step of the program."""

    rows: tuple[int, ...]
    first: int
    last: int


def points_of(wiring: Wiring, reads: Callable[[int, int], bool]) -> tuple[Point, ...]:
    """All points of a stream, in order.

    Args:
        wiring: The stream's.
        reads: Whether the write of one row is computed from the write of an earlier one.
    """
    joined: list[_Stretch] = []
    for stretch in _stretches(wiring):
        before = joined[-1] if joined else None
        if before is not None and not any(reads(row, earlier) for row in stretch.rows for earlier in before.rows):
            joined[-1] = _Stretch((*before.rows, *stretch.rows), before.first, stretch.last)
        else:
            joined.append(stretch)
    return tuple(_point(wiring, stretch) for stretch in joined)


def _stretches(wiring: Wiring) -> Iterator[_Stretch]:
    starts = [number for number, step in enumerate(wiring.program) if isinstance(step, Add)]
    for first, after in zip(starts, [*starts[1:], len(wiring.program)], strict=True):
        step = wiring.program[first]
        assert isinstance(step, Add)
        rows = tuple(row for row in step.writes if wiring.writes[row].tap is not None)
        yield _Stretch(rows, first, after - 1)


def _point(wiring: Wiring, stretch: _Stretch) -> Point:
    write = wiring.writes[stretch.rows[-1]]
    assert write.tap is not None
    tap, factor, carry, normed = write.tap, 1.0, 1.0, False
    for step in wiring.program[stretch.first : stretch.last + 1]:
        if isinstance(step, Add) and stretch.rows[-1] in step.writes:
            tap, factor = write.tap, write.scale * step.factor
        elif isinstance(step, Rescale):
            factor, carry = factor * step.factor, carry * step.factor
        elif isinstance(step, Renorm):
            tap, factor, normed = wiring.norms[step.norm].tap, 1.0, True
    return Point(
        sites=tuple(wiring.writes[row].site for row in stretch.rows),
        last=stretch.last,
        tap=tap,
        factor=factor,
        carry=None if normed else carry,
    )


def number_of(points: tuple[Point, ...], label: str | None, *, default: int) -> int:
    """The point after the step that a write belongs to.

    Raises:
        InputError: No such write; the nearest are named.
    """
    if label is None:
        return default
    names = [point.label for point in points]
    if label in names:
        return names.index(label)
    site = find(label, [site for point in points for site in point.sites])
    return next(number for number, point in enumerate(points) if site in point.sites)


def require_order(points: tuple[Point, ...], start: int, end: int) -> None:
    """Refuses an end that is not after the start.

    Raises:
        InputError: Such an end.
    """
    if end <= start:
        raise InputError(
            f"The end comes after the start in the stream; got {points[start].label} to {points[end].label}.",
            hint="Both name the stream right after a write.",
        )
