"""A folder for the files that are fed; in memory where the system has such a place."""

import os
import tempfile
from functools import cache
from pathlib import Path

_IN_MEMORY = "/dev/shm"


@cache
def folder() -> Path:
    """One for this process, gone at its end."""
    held = tempfile.TemporaryDirectory(prefix="fuzz-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None)
    _KEPT.append(held)
    return Path(held.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def written(name: str, content: bytes) -> Path:
    """A file with this content; the next of the same name takes its place."""
    path = folder() / name
    path.write_bytes(content)
    return path
