"""Writing a result: a table, JSON, or the frame as CSV, JSON lines or Parquet.

1. A `Result` knows its three faces: what JSON holds, the tidy frame, and how it looks in a terminal.
2. Colour, bars and spinners are for terminals: never in a pipe or a file, and no colour under `NO_COLOR`.
3. A file is written beside its place and moved there, so that nobody finds half of one.
4. If whoever reads standard output stops listening, the rest is dropped without a word.
"""

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import Output
from streamlens.errors import InputError

#: columns of a table that is not for a terminal: never wrapped
UNBOUNDED = 100_000


@dataclass(frozen=True, kw_only=True)
class Result:
    """One answer.

    Attributes:
        payload: What JSON holds: plain data.
        frame: Makes the tidy frame.
        show: Prints it on a rich console.
    """

    payload: Any
    frame: Callable[[], Any]
    show: Callable[[Any], None]


def emit(results: Sequence[Result], out: Output, *, many: bool = False) -> None:
    """Writes the results where and how `out` says; JSON is a list if `many`."""
    kind = out.kind(terminal=_is_terminal(sys.stdout))
    if out.path is None and kind == "parquet" and _is_terminal(sys.stdout):
        raise InputError("Parquet is not for a terminal.", hint="Name a file: -o FILE.parquet")
    if out.path is not None:
        data = _table(results, terminal=False) if kind == "table" else _bytes(results, kind, many=many)
        write_whole(out.path, data)
        note(f"wrote {out.path}", quiet=out.quiet)
        return
    terminal = _is_terminal(sys.stdout)
    data = _table(results, terminal=terminal) if kind == "table" else _bytes(results, kind, many=many)
    if kind == "csv" and terminal:  # raw tokens may hold what a terminal acts on
        from streamlens.display import visible

        data = "".join(f"{visible(line)}\n" for line in data.decode().splitlines()).encode()
    with _quiet_pipe():
        stream = sys.stdout.buffer
        stream.write(data)
        stream.flush()


def note(text: str, *, quiet: bool = False) -> None:
    """One line on standard error."""
    if not quiet:
        from streamlens.display import visible

        click.echo(f"streamlens: {visible(text)}", err=True)


def console(stream: Any, *, terminal: bool) -> Any:
    """A rich console that reads no markup, and has colour only on a terminal without `NO_COLOR`."""
    from rich.console import Console

    plain = not terminal or bool(os.environ.get("NO_COLOR"))
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        force_terminal=terminal,
        color_system=None if plain else "auto",
        width=None if terminal else UNBOUNDED,
    )


@contextmanager
def busy(text: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal while something takes seconds; gives a log that prints lines."""

    def log(line: str) -> None:
        note(line, quiet=quiet)

    if quiet or not _is_terminal(sys.stderr):
        yield log
        return
    with console(sys.stderr, terminal=True).status(text):
        yield log


def write_whole(path: Path, data: bytes) -> None:
    """Puts a file in its place by one rename.

    Raises:
        InputError: It cannot be written.
    """
    path = path.resolve()  # what a link points to is written, the link stays
    if path.exists() and not path.is_file():  # a pipe or a device is no place to move a file to
        path.write_bytes(data)
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def as_json(value: Any, *, indent: int | None = 1) -> str:
    """JSON that no terminal acts on: characters without a shape are escaped, NaN is null."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # numpy's and torch's numbers
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _bytes(results: Sequence[Result], kind: str, *, many: bool) -> bytes:
    if kind == "json":
        payloads = [result.payload for result in results]
        return f"{as_json(payloads if many else payloads[0])}\n".encode()
    if kind == "jsonl":
        return "".join(f"{as_json(result.payload, indent=None)}\n" for result in results).encode()
    frame = _one_frame(results)
    if kind == "csv":
        return frame.to_csv(index=False, lineterminator="\n").encode("utf-8", "replace")
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _one_frame(results: Sequence[Result]) -> Any:
    import pandas as pd

    frames = [result.frame() for result in results]
    if len(frames) == 1:
        return frames[0]
    joined = pd.concat(frames, ignore_index=True)
    joined.attrs = frames[0].attrs | {"prompts": [p for frame in frames for p in frame.attrs.get("prompts", [])]}
    return joined


def _table(results: Sequence[Result], *, terminal: bool) -> bytes:
    drawn = io.StringIO()
    made = console(drawn, terminal=terminal)
    for number, result in enumerate(results):
        if number:
            made.print()
        result.show(made)
    lines = drawn.getvalue().splitlines() if terminal else [s.rstrip() for s in drawn.getvalue().splitlines()]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


@contextmanager
def _quiet_pipe() -> Iterator[None]:
    """`streamlens ... | head` is no error: once nobody reads, standard output leads nowhere."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
