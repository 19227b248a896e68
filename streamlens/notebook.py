"""What a notebook shows of an object: a heading, a small table, and how well it adds up.

Plain HTML without colours or scripts, so that it reads on any background; every text is made legible and escaped.
"""

import html
from collections.abc import Sequence

from streamlens.display import visible

__all__ = ["ROWS", "summary_html"]

#: rows that are shown; the others are counted
ROWS = 8


def summary_html(
    heading: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float]]],
    *,
    others: int = 0,
    closing: str = "",
) -> str:
    """A heading, a table of labelled numbers, and a closing line.

    Args:
        heading: What it is.
        columns: A heading for the labels, and one for each number.
        rows: A label and its numbers.
        others: How many more rows there are.
        closing: How well it adds up.
    """
    head = "".join(f'<th style="text-align: {_side(n)}">{_safe(name)}</th>' for n, name in enumerate(columns))
    body = "".join(_row(label, values) for label, values in rows)
    more = f'<tr><td colspan="{len(columns)}">and {others} more</td></tr>' if others else ""
    foot = f"<p><small>{_safe(closing)}</small></p>" if closing else ""
    return (
        f'<div style="font-variant-numeric: tabular-nums"><p><b>{_safe(heading)}</b></p>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>{foot}</div>"
    )


def _row(label: str, values: Sequence[float]) -> str:
    cells = "".join(f'<td style="text-align: right">{_number(value)}</td>' for value in values)
    return f'<tr><th scope="row" style="text-align: left">{_safe(label)}</th>{cells}</tr>'


def _side(column: int) -> str:
    return "right" if column else "left"


def _safe(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _number(value: float) -> str:
    return "" if value != value else f"{value:.4g}".replace("-", "\N{MINUS SIGN}", 1)
