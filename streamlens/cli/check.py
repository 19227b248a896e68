"""`streamlens check`: what was found of a model's wiring, and whether its books close.

A model whose wiring cannot be explained fails the check (exit code 1); one that cannot be loaded at all is an
error (exit code 2).
"""

from typing import Any

import click

from streamlens.cli.options import ModelChoice, Output, model_options, output_options
from streamlens.models.registry import DEFAULT_MODEL


@click.command("check")
@click.argument("source", metavar="[MODEL]", required=False)
@model_options(prompts=False)
@output_options
def command(source: str | None, choice: ModelChoice, out: Output) -> int:
    """Prove that a model's books close: its wiring, the sums, the logits, and that no hook stays behind.

    MODEL is a name (`streamlens models`), a folder or a Hugging Face id. Exits with 1 if something does not
    close.
    """
    if source is not None and choice.model not in (source, DEFAULT_MODEL):
        raise click.UsageError("A model is given once: as MODEL or with -m.", click.get_current_context())
    from dataclasses import replace

    from streamlens.cli.each import load_model
    from streamlens.cli.output import Result, busy, emit
    from streamlens.errors import WiringError

    choice = replace(choice, model=source or choice.model)
    try:
        model = load_model(choice, quiet=out.quiet)
    except WiringError as refused:
        found = _refused(choice, refused)
    else:
        from streamlens.experiments.checks import examine
        from streamlens.models.words import describe

        with busy(f"checking {choice.model}", quiet=out.quiet):
            checks = examine(model)
        found = {
            "model": dict(model.provenance),
            "wiring": describe(model.wiring),
            "checks": [vars(check) for check in checks],
            "closed": all(check.ok for check in checks),
        }
    emit([Result(payload=found, frame=lambda: _frame(found), show=lambda console: _show(console, found))], out)
    return 0 if found["closed"] else 1


def _refused(choice: ModelChoice, error: Any) -> dict[str, Any]:
    check = {"name": "wiring", "value": None, "limit": None, "ok": False, "note": str(error)}
    return {"model": {"model": choice.model}, "wiring": None, "checks": [check], "closed": False}


def _frame(found: dict[str, Any]) -> Any:
    import pandas as pd

    return pd.DataFrame([{"model": found["model"]["model"], **check} for check in found["checks"]])


def _show(console: Any, found: dict[str, Any]) -> None:
    from streamlens.cli import terminal
    from streamlens.cli.steps import show_wiring

    if found["wiring"] is not None:
        show_wiring(console, found["wiring"])
    made = terminal.table("", "check", ("value", "right"), ("at most", "right"))
    for check in found["checks"]:
        mark = terminal.text("ok" if check["ok"] else "FAILS", "" if check["ok"] else "bold red")
        limit = "" if check["limit"] is None else terminal.small(check["limit"])
        value = "" if check["value"] is None else terminal.small(check["value"])
        made.add_row(mark, check["name"], value, limit)
    console.print(made, "")
    name = found["model"]["model"]
    terminal.show_lines(console, [check["note"] for check in found["checks"] if check["note"]])
    if found["closed"]:
        terminal.show_lines(console, [f"{name} closes."], style="bold green")
    else:
        terminal.show_lines(console, [f"{name} does NOT close."], style="bold red")
    if "dtype" in found["model"]:
        terminal.show_lines(console, [terminal.made_by(found["model"])], style="dim")
