"""`streamlens doctor`: what is here, what is missing, and the one step that mends it.

Every finding is `ok`, `note` (something optional is missing) or `broken` (something needed is); only the last
makes the exit code 1. The findings themselves are made in `findings.py`.
"""

from typing import Any

import click

from streamlens.cli.options import Output, output_options


@click.command("doctor")
@output_options
def command(out: Output) -> int:
    """Look at this installation: versions, models, disk, pip, browser, speed, and one sum that must close."""
    from streamlens.cli.findings import examine
    from streamlens.cli.output import Result, busy, emit

    with busy("looking", quiet=out.quiet):
        found = [vars(finding) for finding in examine()]
    works = all(finding["state"] != "broken" for finding in found)
    payload = {"works": works, "findings": found}
    emit(
        [Result(payload=payload, frame=lambda: _frame(found), show=lambda console: _show(console, payload))],
        out,
    )
    return 0 if works else 1


def _frame(found: list[dict[str, Any]]) -> Any:
    import pandas as pd

    return pd.DataFrame(found)


def _show(console: Any, payload: dict[str, Any]) -> None:
    from rich.table import Table

    from streamlens.cli import terminal

    styles = {"ok": "green", "note": "yellow", "broken": "bold red"}
    made = Table.grid(padding=(0, 2))
    for finding in payload["findings"]:
        said = terminal.text(finding["found"])
        if finding["fix"]:
            said.append_text(terminal.text(f"  Fix: {finding['fix']}", "bold"))
        made.add_row(terminal.text(finding["state"], styles[finding["state"]]), finding["what"], said)
    console.print(made, "")
    verdict = "streamlens works here." if payload["works"] else "streamlens does not work here: see `broken` above."
    terminal.show_lines(console, [verdict], style="bold")
