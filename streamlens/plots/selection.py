"""What a figure shows, picked out of a tidy frame, and the words it is introduced with. No plotly, no torch.

1. `pick()` narrows a frame to one prompt and one reader and refuses to guess between several.
2. `tokens()` and `components()` give the two axes: one entry per position, one per part, in stream order.
   Nothing is merged by its text, so a repeated token keeps its own column.
3. `signed()`, `prompt_line()` and `closing_line()` put values and names into plain words.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from streamlens.display import CUT, cells, display_token, visible
from streamlens.errors import InputError

__all__ = [
    "Selection",
    "Token",
    "closes",
    "closing_line",
    "components",
    "pick",
    "prompt_line",
    "signed",
    "tokens",
]

_FLAGS = ("special", "sink")
_TOKEN = 14  # cells of a token on an axis; it is whole on hover
_PROMPT = 150  # cells of the prompt that a title repeats


@dataclass(frozen=True, kw_only=True)
class Token:
    """One column of a figure. `text` is raw; what the properties give is legible and not yet escaped."""

    position: int
    text: str
    special: bool
    sink: bool

    def shown(self, width: int | None = None) -> str:
        """``·bank``, cut to `width` cells."""
        return display_token(self.text, special=self.special, width=width)

    @property
    def place(self) -> str:
        """``·bank (position 9)``, the whole token."""
        return f"{self.shown()} (position {self.position})"

    @property
    def label(self) -> str:
        """``·bank 9`` for an axis or a legend: short, a sink marked, and unlike any other position's."""
        return f"{self.shown(_TOKEN)}{' (sink)' if self.sink else ''} {self.position}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Selection:
    """The rows of one prompt and reader, with what the frame says about them. Texts are raw, not escaped."""

    rows: pd.DataFrame
    prompt: str
    reader: str
    unit: str
    model: str
    closure: float | None
    sum_error: float | None  # between the contributions' sum and the model's own value, in `unit`

    @property
    def reads(self) -> str:
        """The reader's name as the start of a heading, legible; empty without a reader."""
        return f"{display_token(self.reader)}: " if self.reader else ""

    def at(self, position: int | None) -> pd.DataFrame:
        """The rows of one position; None is the last, a negative one counts from the end.

        Raises:
            InputError: this frame has no such position.
        """
        known = sorted({int(p) for p in self.rows["position"]})
        wanted = -1 if position is None else int(position)
        if wanted < 0 and -wanted <= len(known):
            wanted = known[wanted]
        if wanted not in known:
            raise InputError(
                f"position must be one this frame holds, {known[0]} to {known[-1]}; got {position}.",
                hint="Take one of those, or decompose again with that position.",
            )
        return self.rows.loc[self.rows["position"] == wanted]


def need(frame: pd.DataFrame, *columns: str) -> None:
    """Refuses a frame that is none of those a figure draws.

    Raises:
        InputError: a column is missing, or there is no row.
    """
    if missing := [name for name in columns if name not in frame.columns]:
        held = ", ".join(map(str, frame.columns)) or "none"
        raise InputError(f"this figure draws the column {missing[0]!r}; the frame has {held}.")
    if not len(frame):
        raise InputError("a figure draws at least one row; the frame has none.")


def pick(frame: pd.DataFrame, *, value: str, prompt_id: int | None = None, reader: str | None = None) -> Selection:
    """The part of `frame` that one figure shows.

    Args:
        frame: a writes or a readout frame (see `streamlens.frames`); ``attrs`` are used where present.
        value: the column to be drawn, which must exist.
        prompt_id: may be left out when the frame holds one prompt.
        reader: likewise, for a readout's frame.

    Raises:
        InputError: no such column, prompt or reader, or several and none named.
    """
    if value not in frame.columns:
        raise InputError(
            f"this figure draws the column {value!r}; the frame has {', '.join(map(str, frame.columns))}.",
            hint="Contributions come from a readout's frame, norms and shares from a ledger's.",
        )
    rows, number = _narrow(frame, "prompt_id", prompt_id)
    unit = frame.attrs.get("unit")
    if "reader" in rows.columns:
        rows, reader = _narrow(rows, "reader", reader)
        unit = rows["unit"].iloc[0] if "unit" in rows.columns else unit
    return Selection(
        rows=rows.sort_values(["position", "order"], kind="stable"),
        prompt=_prompt(frame.attrs.get("prompts"), int(number), rows),
        reader=str(reader or frame.attrs.get("reader") or ""),
        unit=str(unit or ""),
        model=str(frame.attrs.get("model") or ""),
        closure=_number(frame.attrs.get("closure")),
        sum_error=_number(frame.attrs.get("readout_closure")),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | np.number) and np.isfinite(value) else None


def _narrow(frame: pd.DataFrame, column: str, wanted: Any) -> tuple[pd.DataFrame, Any]:
    """The rows that hold `wanted`, or the column's one value; `column` is also the argument's name."""
    held = list(frame[column].drop_duplicates())
    if wanted is None and len(held) == 1:
        wanted = held[0]
    if wanted in held:
        return frame.loc[frame[column] == wanted], wanted
    shown = ", ".join(repr(item if isinstance(item, str) else int(item)) for item in held[:8])
    more = f" and {len(held) - 8} more" if len(held) > 8 else ""
    got = "none was named" if wanted is None else f"got {wanted!r}"
    raise InputError(
        f"a figure shows one {column}; this frame holds {shown or 'no rows'}{more}, and {got}.",
        hint=f"Pass {column}= one of those." if held else "Pass a frame with rows.",
    )


def _prompt(prompts: Any, prompt_id: int, rows: pd.DataFrame) -> str:
    if isinstance(prompts, list | tuple) and 0 <= prompt_id < len(prompts):
        return str(prompts[prompt_id])
    known = tokens(rows)  # of a frame without the prompt itself, what is left of it
    return (CUT if known and known[0].position else "") + "".join(token.text for token in known)


def tokens(rows: pd.DataFrame) -> list[Token]:
    """The columns of a figure: one token per position, in order."""
    table: Any = rows.drop_duplicates("position").sort_values("position")
    flags = {name: table[name].fillna(False) if name in table else [False] * len(table) for name in _FLAGS}
    return [
        Token(position=int(position), text=str(text), special=bool(special), sink=bool(sink))
        for position, text, special, sink in zip(
            table["position"], table["token"], flags["special"], flags["sink"], strict=True
        )
    ]


def components(rows: pd.DataFrame) -> list[str]:
    """The labels of the parts in stream order, one each."""
    table: Any = rows.drop_duplicates("component").sort_values("order", kind="stable")
    return [str(label) for label in table["component"]]


def signed(value: float) -> str:
    """A number with its sign, three decimals where that says enough: ``+3.742``, ``−0.510``, ``+1.2e-05``."""
    size = abs(value)
    form = "+,.0f" if size >= 1000 else "+.3f" if size >= 0.001 or size == 0 else "+.1e"
    text = f"{value:{form}}"
    return f"−{text[1:]}" if text.startswith("-") else text


def prompt_line(selection: Selection) -> str:
    """The prompt in quotes, shortened; plain text."""
    text = visible(selection.prompt)
    short = text[: next((i for i in range(len(text)) if cells(text[: i + 1]) > _PROMPT), len(text))]
    return f"“{short if short == text else short + CUT}”"


def closing_line(selection: Selection) -> str:
    """How well the writes add up, and the model's name; plain text, empty where the frame says neither."""
    return closes(selection.closure, selection.model)


def closes(size: float | None, model: str) -> str:
    """The same of a frame that is not of one observation a row."""
    said = "" if size is None else f"Writes sum to the stream within {size:.1e} of it"
    return " · ".join(part for part in (said, visible(model)) if part)
