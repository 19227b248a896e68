"""A target: inputs, how they are fed to the package, and what may come of it.

1. An input is plain data: a tuple of texts, bytes and None, so that it can be printed, stored and fed again.
2. `feed` hands it to the package as a user would. It returns, or it raises.
3. What it raises is a refusal if it is ours (`StreamlensError`) or click's for a wrong command line; anything else is a
   crash, and so is an input that takes longer than `LIMIT` seconds.
"""

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from hypothesis.strategies import SearchStrategy

from streamlens.errors import StreamlensError

Input = tuple[Any, ...]

#: a refusal is one of these; nothing else is allowed
REFUSALS: tuple[type[BaseException], ...] = (StreamlensError, click.ClickException, click.exceptions.Exit)
#: seconds of processor time that one input may take
LIMIT = 20.0


class TooSlowError(BaseException):
    """One input took longer than `LIMIT`. Not an `Exception`, so that no handler of the package can take it."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One thing that reads what a user typed or stored.

    Attributes:
        name: For the command line.
        about: What is read.
        seeds: Valid inputs, every one of which must be accepted.
        grammar: Inputs made by rules: nearly valid.
        mutated: Valid inputs with something flipped, cut, inserted, doubled or exchanged.
        feed: Hands one input to the package.
    """

    name: str
    about: str
    seeds: tuple[Input, ...]
    grammar: SearchStrategy[Input]
    mutated: SearchStrategy[Input]
    feed: Callable[[Input], object]


@dataclass(frozen=True)
class Outcome:
    """What came of one input: `refused` names the class of our error, `crash` is the error that is not ours."""

    refused: str | None = None
    crash: BaseException | None = None

    @property
    def accepted(self) -> bool:
        return self.refused is None and self.crash is None


def outcome(feed: Callable[[Input], object], given: Input, *, limit: float = LIMIT) -> Outcome:
    """Feeds one input."""
    try:
        with _limited(limit):
            feed(given)
    except REFUSALS as error:
        return Outcome(refused=type(error).__name__)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return Outcome(crash=error)
    return Outcome()


def place_of(error: BaseException) -> str:
    """Where a crash is: its class and the last line of the package it went through."""
    package = Path(__import__("streamlens").__file__).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if package in Path(frame.filename).parents]
    where = f"{Path(frames[-1].filename).relative_to(package)}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {where}"


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def late(_signal: int, _frame: object) -> None:
        raise TooSlowError(f"more than {seconds:g} seconds")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
