"""Rows to text and to JSON: a Markdown table that also reads well in a terminal."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Spread


def spread(value: Spread | None, digits: int = 3) -> str:
    """`1.042 (1.036-1.049)`: the median, and the quartiles around it."""
    return "" if value is None else f"{value.median:.{digits}f} ({value.low:.{digits}f}-{value.high:.{digits}f})"


def mebibytes(value: float | None) -> str:
    return "" if value is None else f"{value / 2**20:.1f}"


def lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table alone."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])


def show(title: str, setting: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The title, the setting in one line, and the table."""
    noted = ", ".join(f"{name} {value}" for name, value in setting.items())
    return "\n".join([title, *([noted] if noted else []), "", lines(columns, rows)])


def write_json(path: Path, command: str, setting: Mapping[str, Any], rows: Any) -> None:
    """The same rows, with every number in full; those of several tables by the table's name."""
    content = {"command": command, "setting": setting, "rows": rows}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
