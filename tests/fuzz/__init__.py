"""Fuzzing: the package is fed what nobody would write, and may only answer with its own errors.

1. `target.py`: what a target is, and what counts as a crash.
2. `mutate.py`: changes to valid texts, files and plain data.
3. `texts.py`, `prompts.py`, `readers.py`, `configs.py`, `results.py`: the targets, by the names in `TARGETS`;
   `stored.py` has what `results.py` spoils.
4. `drive.py` runs a target; `scripts/fuzz.py` runs all of them for as many inputs as one likes.
"""

from functools import cache
from importlib import import_module

from fuzz.target import Target

TARGETS = ("texts", "prompts", "readers", "configs", "results")


@cache
def target(name: str) -> Target:
    """A target by its name. Its seeds are fed once, so that no later input pays for what is imported and loaded."""
    found: Target = import_module(f"fuzz.{name}").TARGET
    for given in found.seeds:
        found.feed(given)
    return found
