"""Prompts out of a data set of the `datasets` library, where that is installed.

1. An argument without a space that is no file may be the name of a data set, `NAME` or `NAME:SPLIT`.
2. A local folder that `datasets` has saved is read from disk; a name is asked of the hub.
"""

import os
from importlib.util import find_spec
from typing import Any

from streamlens.errors import InputError
from streamlens.prompts import USUAL, BadPrompt, Prompt, checked


def data_set(argument: str, column: str | None) -> list[Prompt | BadPrompt] | None:
    """The prompts of a data set; None where the argument does not look like one's name.

    Raises:
        InputError: A folder or name that `datasets` cannot read, or without such a column.
    """
    name, _, split = argument.partition(":")
    folder = os.path.isdir(name)  # which no text is too long for
    if " " in argument or not (folder or "/" in name):
        return None
    if find_spec("datasets") is None:
        raise InputError(
            f"{argument!r} is no file; data sets need the library datasets, which is not installed.",
            hint="pip install datasets, or give a .jsonl file.",
        )
    import datasets

    library: Any = datasets
    try:
        found = library.load_from_disk(name) if folder else library.load_dataset(name, split=split or "train")
        found = found[split or "train"] if isinstance(found, dict) else found
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{argument}: is no data set: {' '.join(str(error).split())}") from error
    names = list(found.column_names)
    wanted = next((n for n in ([column] if column else USUAL) if n in names), names[0] if len(names) == 1 else None)
    if wanted is None:
        raise InputError(
            f"{argument}: no column {column or ' or '.join(USUAL)}; there are {', '.join(names)}.",
            hint="Name one with --column.",
        )
    return [checked(row[wanted], f"{argument}:{number}", row) for number, row in enumerate(found, 1)]
