"""What tables in a terminal share: rows, numbers, bars, and the lines that close them."""

from collections.abc import Mapping, Sequence
from typing import Any

ADDS, SUBTRACTS = "blue", "red"
_HALF = 9  # cells a bar has on each side of zero
_PROMPT = 230  # cells of a prompt that stand above a table


def table(*columns: str | tuple[str, str]) -> Any:
    """An empty table; a column is a heading, or a heading with "right"."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for column in columns:
        name, side = column if isinstance(column, tuple) else (column, "left")
        made.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    return made


def text(value: str, style: str = "") -> Any:
    """A piece of plain text, with every character that a terminal could act on made visible."""
    from rich.text import Text

    from streamlens.display import visible

    return Text(visible(value), style=style)


def token(value: str, *, special: bool = False, width: int | None = None, style: str = "") -> Any:
    """A token as people should see it."""
    from rich.text import Text

    from streamlens.display import display_token

    return Text(display_token(value, special=special, width=width), style=style)


def signed(value: float | None) -> str:
    """`+3.742`, `−0.510`; small ones as `+1.2e-05`."""
    if value is None:
        return "not known"
    said = f"{value:+.3f}" if abs(value) >= 0.0005 or value == 0 else f"{value:+.1e}"
    return f"−{said[1:]}" if said.startswith("-") else said


def small(value: float | None) -> str:
    """An error: `0.0`, `1.2e-07`."""
    return "not known" if value is None else "0.0" if value == 0 else f"{value:.1e}"


def bar(value: float, largest: float) -> Any:
    """A bar on its side of zero; `largest` fills one side."""
    from rich.text import Text

    length = round(_HALF * min(abs(value) / largest, 1.0)) if largest else 0
    made = Text(" " * (_HALF - length if value < 0 else _HALF))
    if value < 0:
        made.append("█" * length, style=SUBTRACTS)
    made.append("│", style="dim")
    if value >= 0:
        made.append("█" * length, style=ADDS)
    return made


def show_prompt(console: Any, prompt: str) -> None:
    """The prompt, as the heading of what follows; a long one is cut on a terminal."""
    cut = token(prompt, width=_PROMPT if console.is_terminal else None, style="bold")
    console.print(cut, soft_wrap=not console.is_terminal)


def show_lines(console: Any, lines: Sequence[str], style: str = "") -> None:
    """Sentences, wrapped at a terminal's width only."""
    for line in lines:
        console.print(text(line, style=style), soft_wrap=not console.is_terminal)


def made_by(provenance: Mapping[str, Any]) -> str:
    """Who says so, in one line."""
    bos = provenance.get("bos")
    parts = [
        str(provenance["model"]),
        "" if provenance["origin"] == "registry" else str(provenance["revision"]),
        str(provenance["dtype"]),
        str(provenance["device"]),
        "" if bos is None else {"none": "no BOS", "prepended": "BOS prepended"}.get(bos, "BOS by the tokenizer"),
        f"streamlens {provenance['streamlens']}",
        f"torch {provenance['torch']}",
    ]
    return " · ".join(part for part in parts if part)


def closing_line(closure: Mapping[str, Any]) -> str:
    """How well the writes add up to the stream."""
    return (
        f"Writes re-added in the model's order: {small(closure['in_order'])} off. "
        f"Relative closure {small(closure['relative'])}."
    )


def show_closure(console: Any, closure: Mapping[str, Any]) -> None:
    """`closing_line`, printed."""
    show_lines(console, [closing_line(closure)])
