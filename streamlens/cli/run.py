"""`streamlens run`: many prompts, stored in a folder as they are done.

1. Settings come from `--config`, then from the flags that are given; what was resolved is stored with the results.
2. A row that is no prompt is recorded, not refused: the others are to finish.
3. Progress goes to standard error: a bar on a terminal, else a line of JSON every few seconds.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import DTYPES, debug_option, require_place
from streamlens.errors import InputError

#: seconds between two lines of progress where there is no terminal for a bar
EVERY = 5.0


@click.command("run")
@click.argument("prompts", nargs=-1, required=True)
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), required=True, metavar="DIR")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings from .yaml or .toml.")
@click.option("-m", "--model", metavar="NAME", help="A name, a folder or a Hugging Face id. [default: smollm2-135m]")
@click.option("--dtype", type=click.Choice(DTYPES), help="Numbers it runs in. [default: float32]")
@click.option("--device", help="Where it runs. [default: cpu]")
@click.option("--prepend-bos/--no-prepend-bos", default=None, help="Put the BOS token in front.")
@click.option("--stream", type=click.Choice(["encoder"]), help="For an encoder-decoder, which reads with its encoder.")
@click.option("--column", metavar="NAME", help="The prompts' column. [default: prompt, or text]")
@click.option(
    "--analysis",
    multiple=True,
    metavar="NAME",
    help="writes, logits, visibility, ablations or backward. Repeatable. [default: writes]",
)
@click.option("--for", "for", multiple=True, metavar="TOKEN", help="A reader: this token's logit. Repeatable.")
@click.option("--against", multiple=True, metavar="TOKEN", help="Subtracted from it; once for each --for.")
@click.option("--reader", multiple=True, metavar="FILE", help="A further reader from a file. Repeatable.")
@click.option("--token", multiple=True, metavar="TEXT|INDEX", help="The token to look at. Repeatable. [default: all]")
@click.option("--token-column", metavar="NAME", help="A column that names each prompt's token.")
@click.option("--mean", type=click.Choice(["role", "layer"]), help="Store means over prompts, not rows.")
@click.option("--mode", type=click.Choice(["frozen", "local", "finite"]), help="For visibility. [default: frozen]")
@click.option("--top", type=click.IntRange(min=1), help="Next tokens that `logits` keeps. [default: 5]")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longer prompts fail. [default: the model's limit]")
@click.option("--memory", type=click.IntRange(min=1), metavar="MIB", help="For one batch of prompts. [default: 64]")
@click.option("--shard", type=click.IntRange(min=1), help="Prompts that are stored together. [default: 128, or 16]")
@click.option("--resume", "start", flag_value="resume", default="resume", help="Go on where it stopped (the default).")
@click.option("--fresh", "start", flag_value="fresh", help="Drop what is stored.")
@click.option("--retry-failed", "start", flag_value="retry-failed", help="Run shards with failed prompts again.")
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes, or Ray actors.")
@click.option("--ray-address", metavar="ADDRESS", help="Of a running cluster; by default one is started here.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page about the readers.")
@click.option("-q", "--quiet", is_flag=True, help="No progress or notes on standard error.")
@debug_option
def command(
    prompts: tuple[str, ...],
    folder: Path,
    config: Path | None,
    start: str,
    engine: str,
    workers: int,
    ray_address: str | None,
    html: Path | None,
    quiet: bool,
    **flags: Any,
) -> int:
    """Analyse many prompts, and store the results as they are done.

    PROMPTS is a .txt, .jsonl, .csv or .parquet file, - for lines on standard input, a text, or the name of a data set
    (NAME or NAME:SPLIT) where `datasets` is installed.

    Whatever ends a run, the same command goes on from there. A prompt that fails is a row with the reason, and the
    exit code is then 1.

    \b
    streamlens run bank.jsonl -o results --token bank \\
        --for " river" --against " money" --for " water" --against " cash"
    """
    from streamlens.batch.settings import Settings, read_settings

    given = {name: _typed(name, value) for name, value in flags.items() if value not in (None, ())}
    settings = Settings().changed(read_settings(config) if config else {}, where=str(config)).changed(given)
    if html is not None:
        require_place(html, "--html")
        if settings.mean or "writes" not in settings.analysis or not (settings.wanted or settings.reader):
            raise InputError("--html shows what is written along readers: rows of the analysis writes, and a --for.")
    rows = _rows(prompts, settings.column)

    from streamlens.cli.output import note

    with _shown(quiet=quiet) as progress:
        from streamlens.batch.running import run

        results = run(
            rows,
            folder,
            settings=settings,
            start=start,
            engine=engine,
            workers=workers,
            ray_address=ray_address,
            progress=progress,
            log=lambda line: note(line, quiet=quiet),
        )
    failures = results.failures()
    if html is not None:
        from streamlens.batch.questions import write_report

        write_report(results, html)
        note(f"wrote {html}", quiet=quiet)
    note(f"{results.manifest['prompts'] - len(failures)} prompts in {folder}", quiet=quiet)
    for place, reason in list(zip(failures["where"], failures["reason"], strict=True))[:5]:
        note(f"failed: {place}: {reason}")
    if len(failures):
        note(f"{len(failures)} of {results.manifest['prompts']} prompts failed; their reasons are in the table prompts")
    return 1 if len(failures) else 0


def _typed(name: str, value: Any) -> Any:
    """Tokens that are digits are positions."""
    from streamlens.cli.decompose import position_of

    return [position_of(token) for token in value] if name == "token" else value


def _rows(arguments: tuple[str, ...], column: str | None) -> list[Any]:
    from streamlens.batch.datasets import data_set
    from streamlens.prompts import Prompt, rows_of

    rows: list[Any] = []
    for row in rows_of(arguments, column=column):
        named = data_set(row.text, column) if isinstance(row, Prompt) and row.where.startswith("argument") else None
        rows += [row] if named is None else named
    if not rows:
        raise InputError("A batch has at least one prompt; got none.")
    return rows


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """Shows counts: a bar on a terminal, else JSON lines, the first and the last always."""
    if quiet:
        yield lambda tally: None
    elif not sys.stderr.isatty():
        yield _lines()
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from streamlens.cli.output import console

        said = TextColumn("{task.fields[said]}")
        columns = [TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), said, TimeRemainingColumn()]
        with Progress(*columns, console=console(sys.stderr, terminal=True), transient=True) as bar:
            task = bar.add_task("", total=None, said="")

            def move(tally: Any) -> None:
                found = tally.to_dict()
                rate = "" if found["tokens_per_second"] is None else f"{found['tokens_per_second']:,.0f} tokens/s"
                failed = f"  {found['failed']} failed" if found["failed"] else ""
                bar.update(task, completed=found["done"], total=found["total"], said=rate + failed)

            yield move


def _lines() -> Callable[[Any], None]:
    last: list[float] = []

    def line(tally: Any) -> None:
        now, found = time.monotonic(), tally.to_dict()
        if not last or found["done"] == found["total"] or now - last[0] >= EVERY:
            last[:] = [now]
            click.echo(json.dumps({"event": "progress", **found}), err=True)

    return line
