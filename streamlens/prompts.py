"""Prompts out of files: lines of `.txt`, objects of `.jsonl`, rows of `.csv` and `.parquet`, lines of standard input.

1. A file is read whole and cut into rows: one prompt a line of `.txt` and of standard input; one object (or string) a
   line of `.jsonl`; one row of `.csv` and `.parquet`, in the column that is named, or in a usual one.
2. A row becomes a `Prompt`, or a `BadPrompt` that says what is wrong with it, by file and line. What is wrong with
   the file as a whole is raised.
3. The caller decides what a bad row means: most commands refuse before a model is loaded, a batch records it.

Nothing here loads more than the standard library, but for Parquet.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from streamlens.errors import InputError, first_line

#: columns that are taken without being named, the first that is there
USUAL = ("prompt", "text")


@dataclass(frozen=True)
class Prompt:
    """A prompt and where it came from: `argument 1`, `prompts.csv:3`, `<stdin>:1`; and the other columns of its row."""

    text: str
    where: str
    others: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class BadPrompt:
    """A row that holds no prompt."""

    where: str
    rule: str  # what is wrong, without the place
    hint: str | None = None

    def throw(self) -> NoReturn:
        """Raises it as an `InputError`."""
        raise InputError(f"{self.where}: {self.rule}", hint=self.hint)


Row = Prompt | BadPrompt


def rows_of(arguments: Sequence[str], *, column: str | None = None) -> Iterator[Row]:
    """Every row that the arguments name: a text, a file, or `-` for standard input.

    Raises:
        InputError: A file that cannot be read, is not what its name says, has no such column, or holds no prompt.
    """
    for number, argument in enumerate(arguments, 1):
        if argument == "-":
            yield from _some("<stdin>", _lines(sys.stdin.buffer.read(), "<stdin>"))
        elif (read := _READERS.get(Path(argument).suffix.lower())) and _means_file(argument):
            yield from _some(argument, read(_bytes(argument), argument, column))
        else:
            yield checked(argument, f"argument {number}")


def checked(text: Any, where: str, others: Mapping[str, Any] | None = None) -> Row:
    """The prompt, or what keeps the value from being one."""
    if not isinstance(text, str):
        return BadPrompt(where, f"a prompt is a text; got {_short(text)}.")
    if not text.strip():
        return BadPrompt(where, "a prompt has some text; this one is empty.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return BadPrompt(where, f"a prompt is Unicode text; character {error.start + 1} is none.")
    return Prompt(text, where, others or {})


def _means_file(argument: str) -> bool:
    """A text that only ends like a file ("He opened notes.txt") is a prompt; a lone name is a file."""
    return " " not in argument or os.path.isfile(argument)  # which no text is too long for


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _some(where: str, rows: Iterator[Row]) -> Iterator[Row]:
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise InputError(f"{where}: holds no prompt.")


def _decoded(raw: bytes) -> str:
    """The text, with every byte that is no UTF-8 as a lone surrogate, which `_foreign` finds again."""
    return raw.decode("utf-8-sig", "surrogateescape")


def _foreign(text: str, where: str) -> BadPrompt | None:
    """What is wrong with a row that holds a byte which is no UTF-8."""
    byte = next((ord(c) - 0xDC00 for c in text if 0xDC80 <= ord(c) <= 0xDCFF), None)
    if byte is None:
        return None
    return BadPrompt(
        where, f"prompts are UTF-8; this line holds the byte 0x{byte:02X}.", hint="Save the file as UTF-8."
    )


def _short(value: Any) -> str:
    try:
        text = "null" if value is None else json.dumps(value, default=str)
    except RecursionError:  # what could just be read cannot always be written
        return "a value nested too deeply to show"
    return text if len(text) <= 40 else f"{text[:39]}…"


def _split(text: str) -> list[str]:
    """Lines as editors count them; `str.splitlines` would also break at U+2028 and form feeds."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _lines(raw: bytes, where: str, column: str | None = None) -> Iterator[Row]:
    for number, line in enumerate(_split(_decoded(raw)), 1):
        place = f"{where}:{number}"
        yield _foreign(line, place) or checked(line, place)


def _jsonl(raw: bytes, where: str, column: str | None) -> Iterator[Row]:
    for number, line in enumerate(_split(_decoded(raw)), 1):
        place = f"{where}:{number}"
        yield _foreign(line, place) or _object(line, place, column)


def _object(line: str, place: str, column: str | None) -> Row:
    if not line.strip():
        return BadPrompt(place, "a line of JSON holds one prompt; this one is empty.")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadPrompt(place, f"not JSON: {str(error) or type(error).__name__}.")
    if not isinstance(row, dict):
        return checked(row, place)
    name = _column(list(row), column)
    return BadPrompt(place, *name) if isinstance(name, tuple) else checked(row[name], place, row)


def _csv(raw: bytes, where: str, column: str | None) -> Iterator[Row]:
    rows = csv.reader(io.StringIO(_decoded(raw), newline=""), strict=True)
    header: list[str] | None = None
    index = 0
    while True:
        place = f"{where}:{rows.line_num + 1}"
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            bad = BadPrompt(place, f"not CSV: {error}.")
            if header is None:
                bad.throw()
            yield bad
            continue
        foreign = _foreign("".join(row), place)
        if header is None:
            if foreign:
                foreign.throw()
            header, index = row, _index(row, column, place)
        elif foreign:
            yield foreign
        elif len(row) != len(header):
            yield BadPrompt(
                place,
                f"a row has as many fields as the header, {len(header)}; this one has {len(row)}.",
                hint='A text that holds commas stands in quotes: "After crossing the river, she rested".',
            )
        else:
            yield checked(row[index], place, dict(zip(header, row, strict=True)))


def _parquet(raw: bytes, where: str, column: str | None) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(raw))
        names = file.schema_arrow.names
        name = names[_index(names, column, where)]
        kinds = zip(names, file.schema_arrow.types, strict=True)
        simple = [n for n, kind in kinds if n == name or not pyarrow.types.is_nested(kind)]
        batches = [batch.to_pylist() for batch in file.iter_batches(columns=simple)]
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{where}: not Parquet: {first_line(error)}") from error
    except Exception as error:  # a date in the year 100,000, a text that is no UTF-8
        raise InputError(f"{where}: holds a value that cannot be read: {first_line(error)}.") from error
    for number, row in enumerate((row for batch in batches for row in batch), 1):
        yield checked(row[name], f"{where}:{number}", row)


def _index(names: Sequence[str], wanted: str | None, where: str) -> int:
    found = _column(names, wanted)
    if isinstance(found, tuple):
        BadPrompt(where, *found).throw()
    if (times := names.count(found)) > 1:
        BadPrompt(where, f"{times} columns are called {found!r}.", "Rename all but one.").throw()
    return names.index(found)


def _column(names: Sequence[str], wanted: str | None) -> str | tuple[str, str]:
    """The column to read: the one asked for, else a usual one, else the only one; or what is wrong, and a hint."""
    if wanted is not None:
        usual = [wanted] if wanted in names else []
    else:
        usual = [name for name in USUAL if name in names] or (list(names) if len(names) == 1 else [])
    if usual:
        return usual[0]
    there = ", ".join(map(_short, names)) or "none"
    missing = f"no column {wanted!r}" if wanted is not None else f"none of its columns is called {' or '.join(USUAL)}"
    return f"{missing}; there are {there}.", "Name one with --column."


_READERS: dict[str, Callable[[bytes, str, str | None], Iterator[Row]]] = {
    ".txt": _lines,
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}
