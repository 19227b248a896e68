"""Each example of the lab is computed once a session."""

import functools
from collections.abc import Callable

import pytest

from streamlens import lab


@functools.cache
def _computed(name: str) -> lab.Example:
    return lab.run(name)


@pytest.fixture(scope="session")
def example() -> Callable[[str], lab.Example]:
    """An example by its name."""
    return _computed
