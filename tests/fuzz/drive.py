"""Runs a target for so many inputs, and counts.

1. Half of the inputs come from the grammar, half are mutated; both are drawn by hypothesis, in chunks of their own
   seed, so that the memory it needs does not grow.
2. A crash at a new place stops its chunk there: hypothesis makes the input smaller while the place stays the same.
   Further crashes at a known place are only counted.
3. Nothing is stored, and the same seed gives the same inputs.
"""

import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from fuzz.target import Input, Target, outcome, place_of

CHUNK = 1000


@dataclass
class Crash:
    """Where, how often, the smallest input that does it, and its traceback."""

    place: str
    given: Input
    trace: str
    count: int = 0


@dataclass
class Tally:
    """What came of all inputs of one target."""

    target: str
    inputs: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    crashes: dict[str, Crash] = field(default_factory=dict)
    seconds: float = 0.0  # of processor time

    def to_dict(self) -> dict[str, Any]:
        crashes = [
            {"place": c.place, "count": c.count, "input": repr(c.given), "traceback": c.trace}
            for c in self.crashes.values()
        ]
        return {**vars(self), "refused": dict(self.refused), "crashes": crashes}


def run(target: Target, inputs: int, *, start: int = 0, watch: Callable[[Input], None] = lambda given: None) -> Tally:
    """Feeds `inputs` inputs.

    Args:
        target: What is fed.
        inputs: How many, both kinds together.
        start: The seed.
        watch: Told every input before it is fed.
    """
    tally = Tally(target.name)
    began = time.process_time()
    number = 0
    chunk = min(CHUNK, -(-inputs // 2))
    while tally.inputs < inputs:
        kind = (target.grammar, target.mutated)[number % 2]
        _chunk(target, kind, min(chunk, inputs - tally.inputs), start * 1_000_003 + number, tally, watch)
        number += 1
    tally.seconds = time.process_time() - began
    return tally


class _NewCrashError(Exception):
    pass


def _chunk(
    target: Target,
    kind: SearchStrategy[Input],
    inputs: int,
    number: int,
    tally: Tally,
    watch: Callable[[Input], None],
) -> None:
    found: str | None = None

    @seed(number)
    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
    )
    @given(kind)
    def feed(one: Input) -> None:
        nonlocal found
        watch(one)
        result = outcome(target.feed, one)
        place = None if result.crash is None else place_of(result.crash)
        if found is None:
            tally.inputs += 1
            tally.accepted += result.accepted
            tally.refused.update([result.refused] if result.refused else [])
        if result.crash is None or place is None:
            return
        if place not in tally.crashes:
            found = place
            tally.crashes[place] = Crash(place, one, "")
        crash = tally.crashes[place]
        crash.count += found is None or crash.count == 0
        if found == place and len(repr(one)) <= len(repr(crash.given)):
            crash.given = one
            crash.trace = "".join(traceback.format_exception(result.crash))
        if found == place:
            raise _NewCrashError(place)

    with suppress(_NewCrashError, Flaky):  # one that does not come again is recorded all the same
        feed()
