"""Prompts from the command line: given as text, on standard input, or in a file.

1. An argument is a prompt, unless it is `-` (standard input) or ends like a prompt file.
2. Standard input and `.txt` hold one prompt a line; `.jsonl` one object (or string) a line; `.csv` and
   `.parquet` one prompt a row, in the column that `--column` names.
3. All of it is read and checked before any model is loaded: what is wrong is named by file and line.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import Command
from streamlens.errors import InputError

#: columns that are taken without being named, the first that is there
USUAL = ("prompt", "text")


@dataclass(frozen=True)
class Prompt:
    """A prompt and where it came from: `argument 1`, `prompts.csv:3`, `<stdin>:1`."""

    text: str
    where: str


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
    for number, argument in enumerate(arguments, 1):
        if argument == "-":
            found += _required("<stdin>", _lines(_utf8(sys.stdin.buffer.read(), "<stdin>"), "<stdin>"))
        elif (read := _READERS.get(Path(argument).suffix.lower())) and _means_file(argument):
            found += _required(argument, read(_bytes(argument), argument, column))
        else:
            found.append(_checked(argument, f"argument {number}"))
    return found


def _means_file(argument: str) -> bool:
    """A text that only ends like a file ("He opened notes.txt") is a prompt; a lone name is a file."""
    return " " not in argument or Path(argument).is_file()


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _utf8(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            f"{where}:{line}: prompts are UTF-8; this line holds the byte 0x{raw[error.start]:02X}.",
            hint="Save the file as UTF-8.",
        ) from error


def _required(where: str, prompts: Iterator[Prompt]) -> list[Prompt]:
    found = list(prompts)
    if not found:
        raise InputError(f"{where}: holds no prompt.")
    return found


def _checked(text: Any, where: str) -> Prompt:
    if not isinstance(text, str):
        raise InputError(f"{where}: a prompt is a text; got {_short(text)}.")
    if not text.strip():
        raise InputError(f"{where}: a prompt has some text; this one is empty.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: a prompt is Unicode text; character {error.start + 1} is none.") from error
    return Prompt(text, where)


def _short(value: Any) -> str:
    text = "null" if value is None else json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _rows_of(text: str) -> list[str]:
    """Lines as editors count them; `str.splitlines` would also break at U+2028 and form feeds."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _lines(text: str, where: str, column: str | None = None) -> Iterator[Prompt]:
    for number, line in enumerate(_rows_of(text), 1):
        yield _checked(line, f"{where}:{number}")


def _txt(raw: bytes, where: str, column: str | None) -> Iterator[Prompt]:
    return _lines(_utf8(raw, where), where)


def _jsonl(raw: bytes, where: str, column: str | None) -> Iterator[Prompt]:
    for number, line in enumerate(_rows_of(_utf8(raw, where)), 1):
        place = f"{where}:{number}"
        if not line.strip():
            raise InputError(f"{place}: a line of JSON holds one prompt; this one is empty.")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: not JSON: {str(error) or type(error).__name__}.") from error
        if isinstance(row, dict):
            row = row[_column(list(row), column, place)]
        yield _checked(row, place)


def _csv(raw: bytes, where: str, column: str | None) -> Iterator[Prompt]:
    rows = csv.reader(io.StringIO(_utf8(raw, where), newline=""), strict=True)
    header: list[str] | None = None
    index = 0
    while True:
        start = rows.line_num + 1
        place = f"{where}:{start}"
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{place}: not CSV: {error}.") from error
        if header is None:
            header = row
            index = header.index(_column(header, column, place))
        elif len(row) != len(header):
            raise InputError(
                f"{place}: a row has as many fields as the header, {len(header)}; this one has {len(row)}.",
                hint='A text that holds commas stands in quotes: "After crossing the river, she rested".',
            )
        else:
            yield _checked(row[index], place)


def _parquet(raw: bytes, where: str, column: str | None) -> Iterator[Prompt]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(raw))
        name = _column(file.schema_arrow.names, column, where)
        values = file.read(columns=[name]).column(0).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{where}: not Parquet: {str(error).splitlines()[0]}") from error
    for number, value in enumerate(values, 1):
        yield _checked(value, f"{where}:{number}")


def _column(names: Sequence[str], wanted: str | None, place: str) -> str:
    """The column to read: the one asked for, else a usual one, else the only one."""
    if wanted is not None:
        usual = [wanted] if wanted in names else []
    else:
        usual = [name for name in USUAL if name in names] or (list(names) if len(names) == 1 else [])
    if usual:
        return usual[0]
    there = ", ".join(map(_short, names)) or "none"
    missing = f"no column {wanted!r}" if wanted is not None else f"none of its columns is called {' or '.join(USUAL)}"
    raise InputError(f"{place}: {missing}; there are {there}.", hint="Name one with --column.")


_READERS: dict[str, Callable[[bytes, str, str | None], Iterator[Prompt]]] = {
    ".txt": _txt,
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}
