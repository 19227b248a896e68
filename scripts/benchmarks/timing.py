"""Timing things against each other on a machine that does other work as well.

1. All cases take turns, A B C B C A ..., so that what slows the machine down for a while slows all of them.
2. Each turn gives wall time and processor time (user and system, all threads) of one call. What the call returned is
   freed, and garbage collected, outside the clock.
3. A ratio is taken within a round and the median is taken over the rounds: the quotient of two medians would compare
   different moments.
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Timed(Protocol):
    """One thing to time, here or in another process."""

    @property
    def name(self) -> str: ...

    def once(self) -> None: ...

    def timed(self) -> tuple[float, float]: ...


@dataclass(frozen=True)
class Case:
    """One thing to time in this process: a call without arguments."""

    name: str
    call: Callable[[], Any]

    def once(self) -> None:
        self.call()

    def timed(self) -> tuple[float, float]:
        """Wall and processor time of one call, in seconds; what it returns is freed outside the clock."""
        cpu, wall = time.process_time(), time.perf_counter()
        result = self.call()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        del result
        return wall, cpu


@dataclass(frozen=True)
class Spread:
    """The median of some numbers with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The quartiles; of one number, that number."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass
class Times:
    """What the rounds gave for one case, in seconds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def over(self, base: "Times") -> tuple[Spread, Spread]:
        """Wall and processor time as multiples of another case's in the same round."""
        wall = [mine / other for mine, other in zip(self.wall, base.wall, strict=True)]
        cpu = [mine / other for mine, other in zip(self.cpu, base.cpu, strict=True)]
        return Spread.of(wall), Spread.of(cpu)

    def best_over(self, base: "Times") -> float:
        """The fastest round over the other's fastest round: what is left when nothing else runs."""
        return min(self.wall) / min(base.wall)


def in_turns(cases: Sequence[Timed], *, rounds: int, warmup: int = 2) -> dict[str, Times]:
    """Times every case `rounds` times, taking turns; the first in a round moves on by one each round.

    Args:
        cases: What to time.
        rounds: How often.
        warmup: Calls of each before the clock runs: kernels are chosen, caches filled, modules imported.
    """
    for case in cases:
        for _ in range(warmup):
            case.once()
    times = {case.name: Times() for case in cases}
    gc.collect()
    gc.freeze()  # the model's own objects are not looked through again between the turns
    gc.disable()
    try:
        for number in range(rounds):
            first = number % len(cases)
            for case in [*cases[first:], *cases[:first]]:
                wall, cpu = case.timed()
                times[case.name].wall.append(wall)
                times[case.name].cpu.append(cpu)
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return times
