"""`streamlens models`: the models that have a name, and fetching one. Neither imports torch."""

from typing import Any

import click

from streamlens.cli.options import Output, debug_option, output_options
from streamlens.models.registry import DEFAULT_MODEL, MODELS, ModelSpec


@click.group("models", invoke_without_command=True)
@output_options
@click.pass_context
def command(ctx: click.Context, out: Output) -> None:
    """List the models that have a name, and which of them are on this machine.

    Any other model is given as a folder or a Hugging Face id.
    """
    if ctx.invoked_subcommand is None:
        from streamlens.cli.output import Result, emit

        rows = [_row(spec) for spec in MODELS.values()]
        emit([Result(payload=rows, frame=lambda: _frame(rows), show=lambda console: _show(console, rows))], out)


@command.command("pull")
@click.argument("name", default=DEFAULT_MODEL)
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@debug_option
def pull_command(name: str, quiet: bool) -> None:
    """Fetch a model once and print its folder. One that is there and whole is left as it is."""
    from streamlens.cli.output import busy, note
    from streamlens.models import store
    from streamlens.models.pull import pull

    known = name in MODELS and store.is_complete(name)
    with busy(f"pulling {name}", quiet=quiet or known) as log:
        folder = pull(name, log=log)
    note(f"{name} is {'already there' if known else 'ready'}", quiet=quiet)
    click.echo(folder)


def _row(spec: ModelSpec) -> dict[str, Any]:
    from streamlens.models import store

    complete = store.is_complete(spec.name)
    return {
        "name": spec.name,
        "default": spec.name == DEFAULT_MODEL,
        "title": spec.title,
        "architecture": spec.architecture,
        "wiring": spec.wiring,
        "parameters": spec.parameters,
        "precision": spec.precision,
        "licence": spec.licence,
        "download_bytes": spec.wheel.size,
        "source": spec.wheel.requirement,
        "complete": complete,
        "folder": str(store.model_folder(spec.name)) if complete else None,
    }


def _frame(rows: list[dict[str, Any]]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows)


def _show(console: Any, rows: list[dict[str, Any]]) -> None:
    from streamlens.cli import terminal
    from streamlens.models import store

    made = terminal.table("name", ("size", "right"), "wiring", "licence", "here")
    for row in rows:
        here = "yes" if row["complete"] else f"no, {row['download_bytes'] / 1e6:,.0f} MB"
        mark = " (default)" if row["default"] else ""
        size = f"{row['parameters'] / 1e6:,.0f} M"
        made.add_row(f"{row['name']}{mark}", size, row["wiring"], row["licence"], here)
    console.print(made, "")
    lines = [f"Kept in {store.home() / 'models'}"]
    if not all(row["complete"] for row in rows):
        lines.append("Fetch one with `streamlens models pull NAME`; a command that needs it does so by itself.")
    terminal.show_lines(console, lines, style="dim")
