"""Prompts from the command line: given as text, on standard input, or in a file.

1. An argument is a prompt, unless it is `-` (standard input) or ends like a prompt file (`streamlens.prompts`).
2. All of it is read and checked before any model is loaded: the first row that is no prompt is refused, by file and
   line.
"""

from collections.abc import Sequence

import click

from streamlens.cli.options import Command
from streamlens.prompts import BadPrompt, Prompt, rows_of


def prompt_options(command: Command) -> Command:
    """The argument PROMPT... and `--column`."""
    named = "The column of a .jsonl, .csv or .parquet file. [default: prompt, or text]"
    command = click.option("--column", metavar="NAME", help=named)(command)
    return click.argument("prompt", nargs=-1, required=True)(command)


def read_prompts(arguments: Sequence[str], *, column: str | None = None) -> list[Prompt]:
    """Every prompt that the arguments name.

    Raises:
        InputError: A file, line or row that is no prompt.
    """
    found: list[Prompt] = []
    for row in rows_of(arguments, column=column):
        if isinstance(row, BadPrompt):
            row.throw()
        found.append(row)
    return found
