"""`streamlens lab`: the worked examples, each with its numbers and how far its claims are off.

Exit code 1 if one claim does not hold.
"""

from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import Output, output_options, require_place

_SHOWN = 14  # claims up to which each has a line


@click.command("lab")
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="Only say which examples there are.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a page with every figure and table, and settings to choose; it needs no network.",
)
@output_options
def command(name: str | None, listing: bool, html: Path | None, out: Output) -> int:
    """Small residual networks solved by hand: run the examples and check their claims.

    NAME is one example; without it all run, in well under two minutes. As CSV or Parquet one example gives its table,
    all of them give their claims.

    \b
    streamlens lab
    streamlens lab euler
    streamlens lab --html lab.html
    """
    from streamlens.cli.output import Result, busy, emit, note
    from streamlens.lab import EXAMPLES, run

    if listing:
        rows = [{"name": each, "about": about} for each, about in EXAMPLES.items()]
        emit([Result(payload=rows, frame=lambda: _frame(rows), show=lambda console: _list(console, rows))], out)
        return 0
    if html is not None:
        require_place(html, "--html")
    found = []
    for each in [name] if name else EXAMPLES:
        with busy(f"running {each}", quiet=out.quiet):
            found.append(run(each))
    emit([_result(example, table=name is not None) for example in found], out, many=name is None)
    if html is not None:
        from streamlens.cli.lab_page import write

        write(html, found, _claims(found))
        note(f"wrote {html}", quiet=out.quiet)
    return 0 if all(example.holds for example in found) else 1


def _result(example: Any, *, table: bool) -> Any:
    from streamlens.cli.output import Result

    return Result(
        payload=_payload(example),
        frame=lambda: example.table if table else _claims([example]),
        show=lambda console: _show(console, example),
    )


def _payload(example: Any) -> dict[str, Any]:
    ledger = example.ledger
    return {
        "name": example.name,
        "title": example.title,
        "teaches": example.teaches,
        "holds": example.holds,
        "checks": [_claim(check) for check in example.checks],
        "table": example.table.to_dict(orient="records"),
        "closure": None
        if ledger is None
        else {"in_order": ledger.in_order, "relative": float(ledger.closure.max()), "writes": len(ledger.sites)},
    }


def _claim(check: Any) -> dict[str, Any]:
    return {"says": check.says, "error": check.error, "limit": check.limit, "holds": check.holds}


def _claims(found: list[Any]) -> Any:
    return _frame([{"example": each.name, **_claim(check)} for each in found for check in each.checks])


def _frame(rows: list[dict[str, Any]]) -> Any:
    import pandas as pd

    return pd.DataFrame(rows)


def _list(console: Any, rows: list[dict[str, Any]]) -> None:
    from streamlens.cli import terminal

    made = terminal.table("name", "about")
    for row in rows:
        made.add_row(row["name"], terminal.text(row["about"]))
    console.print(made)


def _show(console: Any, example: Any) -> None:
    from streamlens.cli import terminal

    terminal.show_lines(console, [f"{example.title} ({example.name})"], style="bold")
    terminal.show_lines(console, [example.teaches, ""])
    numeric = {column for column in example.table if example.table[column].dtype.kind in "if"}
    made = terminal.table(*((column, "right") if column in numeric else column for column in example.table))
    for row in example.table.itertuples(index=False):
        made.add_row(*(terminal.text(_cell(value)) for value in row))
    console.print(made, "")
    broken = [check for check in example.checks if not check.holds]
    for check in example.checks if len(example.checks) <= _SHOWN else broken:
        said = "holds" if check.holds else "FAILS"
        line = f"{said}  {check.says} ({terminal.small(check.error)} off)"
        terminal.show_lines(console, [line], style="" if check.holds else "bold red")
    terminal.show_lines(console, [f"{len(example.checks) - len(broken)} of {len(example.checks)} claims hold."])


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    said = "" if value != value else f"{value:.4g}"
    return f"−{said[1:]}" if said.startswith("-") else said
