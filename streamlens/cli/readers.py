"""Which reader a command reads with: a saved one, one of the model's own, or a token's logit.

1. `reader_options` hands the command a `ReaderChoice` as `reads`.
2. A file is read and checked before the model is loaded; what the model has to say about comes after.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from streamlens.cli.decompose import reader_of, require_for
from streamlens.cli.options import Command
from streamlens.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ReaderChoice:
    """What was asked for; `row` is one row of a reader that has several."""

    reader: Path | None
    head: str | None
    wanted: str | None
    against: str | None
    row: int | None

    @property
    def given(self) -> bool:
        """Whether any reader was named."""
        return any(value is not None for value in (self.reader, self.head, self.wanted))


def reader_options(command: Command) -> Command:
    """`--reader`, `--head`, `--for`, `--against`, `--row`."""
    options = [
        click.option(
            "--reader",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="A saved reader: .safetensors, .npz or .csv (a probe, an encoder, directions).",
        ),
        click.option(
            "--head", metavar="LABEL", help="What the model itself reads with: L10H8.q, .k or .v, or L10.mlp.in."
        ),
        click.option("--for", "wanted", metavar="TOKEN", help="The next token whose logit is read, with its space."),
        click.option("--against", metavar="TOKEN", help="Subtract this token's logit."),
        click.option(
            "--row", type=click.IntRange(min=0), metavar="N", help="One row of a reader that has several, from 0."
        ),
    ]

    @functools.wraps(command)
    def bundled(**given: Any) -> Any:
        names = ("reader", "head", "wanted", "against", "row")
        return command(reads=ReaderChoice(**{name: given.pop(name) for name in names}), **given)

    made: Command = bundled
    for option in reversed(options):
        made = option(made)
    return made


def require_reader(reads: ReaderChoice) -> Any:
    """One reader was named; a saved one is loaded.

    Returns:
        The saved reader; None for one that the model has.

    Raises:
        InputError: A file that cannot be read.
    """
    require_for(reads.wanted, reads.against)
    named = [reads.reader, reads.head, reads.wanted]
    if sum(value is not None for value in named) != 1:
        raise click.UsageError("One of --reader, --head and --for says what reads.", click.get_current_context())
    if reads.reader is None:
        return None
    from streamlens.readouts.readers.reader import Reader

    return _row(Reader.load(reads.reader), reads.row)


def reader_for(model: Any, reads: ReaderChoice, saved: Any) -> Any:
    """The reader: the saved one, or the model's.

    Raises:
        InputError: No such head, part, token or row.
        ModelError: The model has no linear head to read a logit with.
    """
    if saved is not None:
        return saved
    if reads.head is None:
        return reader_of(model, reads.wanted, reads.against)
    from streamlens.readouts.readers.model_readers import head_reader, mlp_reader
    from streamlens.sites import Site

    label, _, part = reads.head.rpartition(".")
    try:
        site = Site.parse(label)
    except InputError:
        raise InputError(f"--head is written like L10H8.q or L10.mlp.in; got {reads.head!r}.") from None
    made = mlp_reader if site.head is None else head_reader
    return _row(made(model, site, part), reads.row)


def _row(reader: Any, row: int | None) -> Any:
    """One row of a reader, or all of it."""
    from dataclasses import replace

    if row is None:
        return reader
    k = len(reader.rows)
    if row >= k:
        raise InputError(f"--row is between 0 and {k - 1} for {reader.name}; got {row}.")
    name = reader.rows[row]
    return replace(
        reader, name=name, rows=(name,), matrix=reader.matrix[row : row + 1], bias=reader.bias[row : row + 1]
    )


def place(reader: Any) -> str:
    """Where it reads, for a line under a table."""
    through = {"none": "", "final": ", through the final norm", "input": ", through its norm"}[reader.norm]
    where = "at its end" if reader.after is None else f"right after {reader.after}"
    return f"{reader.name} reads the stream {where}{through}."
