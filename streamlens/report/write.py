"""Put a page on disk whole or not at all.

1. Write and flush a temporary file in the same folder. 2. Rename it over the target. 3. On any failure
   remove it.
"""

import os
from pathlib import Path

from streamlens.errors import InputError

__all__ = ["write_page"]


def write_page(path: str | os.PathLike[str], page: str) -> Path:
    """Write the HTML of `page` to `path` atomically; returns the path.

    Raises:
        InputError: the folder does not exist, or `path` is a folder.
    """
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        rule = "a page is written to a file in an existing folder"
        raise InputError(f"{rule}; got {target}.", hint="Create the folder first, or name a file.")
    if target.exists() and not target.is_file():  # a device or a pipe is written to, never replaced
        target.write_text(page, encoding="utf-8")
        return target
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
