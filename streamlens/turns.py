"""Turns: calls from several threads run one after another, so that each gets the numbers it gets alone.

1. While a call runs a model it may put hooks on it, switch dropout off, make attention eager, choose kernels, give
   blocks another order or torch another number of threads. All of that is shared by every thread of the process; so
   whoever does any of it has the turn, from the first change until the last is taken back. So has whoever asks a
   tokenizer, which takes one caller at a time.
2. The turn may be taken again by the thread that has it: a call inside a call does not wait for itself.
3. There is one turn, not one a model: transformers' attention interface, torch's kernels and default type belong to
   the process, two handles can share modules or a config without being one model, and with a single lock nothing can
   wait in a circle. Threads gain no speed by it or without it: two 135M models with one torch thread each took as long
   in two threads as one after the other (1.9 s and 1.8 s, measured), since Python takes turns, too. Processes do.
4. `once` is a cached property that takes the turn before it looks. Python 3.11's own has a lock that it holds while it
   computes; a thread that has that lock must not come to wait for the turn.

What has the turn is one forward or one factorisation, not a whole sweep; a long one lets others in between.
"""

from collections.abc import Callable
from functools import cached_property, wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar

#: held by the thread whose turn it is
TURN = RLock()

Given = ParamSpec("Given")
Made = TypeVar("Made")


def in_turn(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """The function, which has the turn while it runs."""

    @wraps(function)
    def taking(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with TURN:
            return function(*args, **kwargs)

    return taking


class once(cached_property[Made]):
    """A cached property that runs a model, asks a tokenizer or factorises: computed in turn, by one thread."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        with TURN:
            return super().__get__(instance, owner)
