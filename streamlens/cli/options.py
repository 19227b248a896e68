"""Options that several commands share, each group bundled into one value.

1. `model_options` hands the command a `ModelChoice` as `choice`, `output_options` an `Output` as `out`.
2. What can be refused without a model is refused here, before one is loaded.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from streamlens.errors import InputError
from streamlens.models.registry import DEFAULT_MODEL

FORMATS = ("table", "json", "jsonl", "csv", "parquet")
DTYPES = ("float32", "float64", "bfloat16", "float16")
_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "table"}

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Which model, and how it is run."""

    model: str
    dtype: str
    device: str
    prepend_bos: bool = False


@dataclass(frozen=True, kw_only=True)
class Output:
    """How a result is written.

    Attributes:
        format: One of `FORMATS`; None takes the file's suffix, then a table on a terminal and JSON elsewhere.
        path: A file; None for standard output.
        quiet: Nothing on standard error but errors.
    """

    format: str | None
    path: Path | None
    quiet: bool

    def __post_init__(self) -> None:
        if self.path is not None:
            require_place(self.path, "-o")

    def kind(self, *, terminal: bool) -> str:
        """The format to write, given whether standard output is a terminal."""
        if self.format is not None:
            return self.format
        if self.path is not None:
            return _SUFFIXES.get(self.path.suffix.lower(), "json")
        return "table" if terminal else "json"


def require_place(path: Path, option: str) -> None:
    """A file can be written there, as far as can be seen before the work.

    Raises:
        InputError: The folder does not exist, or the path is a folder.
    """
    if path.is_dir() or not path.parent.is_dir():
        said = "is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
        raise InputError(f"{option} names a file in an existing folder; {path}: {said}.")


def html_option(command: Command) -> Command:
    """`--html`."""
    named = "Also write a page with plots."
    return click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help=named)(command)


def require_page(html: Path | None, *, prompts: int = 1) -> None:
    """A page that is asked for can be written, and is about one prompt.

    Raises:
        InputError: No such folder, or several prompts.
    """
    if html is None:
        return
    require_place(html, "--html")
    if prompts > 1:
        raise InputError(f"--html shows one prompt; got {prompts}.", hint="Make one page for each.")


def model_options(*, prompts: bool = True) -> Decorator:
    """`--model`, `--dtype`, `--device`, and `--prepend-bos` for commands that take prompts."""
    options: list[Decorator] = [
        click.option(
            "-m",
            "--model",
            default=DEFAULT_MODEL,
            show_default=True,
            metavar="NAME",
            help="A name (`streamlens models`), a folder or a Hugging Face id.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(DTYPES),
            default="float32",
            show_default=True,
            help="Numbers it runs in.",
        ),
        click.option("--device", default="cpu", show_default=True, help="Where it runs."),
    ]
    if prompts:
        options.append(
            click.option("--prepend-bos", is_flag=True, help="Put the BOS token in front (default: as tokenised).")
        )
    return _bundled(options, "choice", ModelChoice)


def output_options(command: Command) -> Command:
    """`--format`, `--output`, `--quiet`, `--debug`."""
    options = [
        click.option(
            "--format",
            type=click.Choice(FORMATS),
            help="Default: a table on a terminal, JSON in a pipe, what -o ends in.",
        ),
        click.option(
            "-o",
            "--output",
            "path",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Write there, whole or not at all.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="No progress or notes on standard error."),
    ]
    return _bundled(options, "out", Output)(debug_option(command))


def debug_option(command: Command) -> Command:
    """`--debug`, which counts before the command's name and after it."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value and isinstance(ctx.obj, dict):
            ctx.obj["debug"] = True

    option = click.option("--debug", is_flag=True, expose_value=False, callback=note, help="Show tracebacks.")
    return option(command)


def _bundled(options: Sequence[Decorator], name: str, bundle: type) -> Decorator:
    """Click passes each option by its own name; the command gets one value instead."""
    names = [field.name for field in fields(bundle)]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def bundled(**given: Any) -> Any:
            own = {option: given.pop(option) for option in names if option in given}
            return command(**{name: bundle(**own)}, **given)

        made: Command = bundled
        for option in reversed(options):
            made = option(made)
        return made

    return decorate
