"""What a figure shows, picked out of a tidy frame, and the words it is introduced with. No plotly, no torch.

1. `pick()` narrows a frame to one prompt and one reader and refuses to guess between several.
2. `tokens()` and `components()` give the two axes: one entry per position, one per part, in stream order.
   Nothing is merged by its text, so a repeated token keeps its own column.
3. `signed()`, `place()`, `prompt_line()` and `closing_line()` put values and names into plain words.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from streamlens.display import CUT, cells, display_token, visible
from streamlens.errors import InputError

__all__ = ["Selection", "closing_line", "components", "pick", "place", "prompt_line", "signed", "tokens"]

_PROMPT = 150  # cells of the prompt that a title repeats


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
        return self.rows[self.rows["position"] == wanted]


def pick(
    frame: pd.DataFrame, *, value: str, prompt_id: int | None = None, reader: str | None = None
) -> Selection:
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
    rows, prompt_id = _narrow(frame, "prompt_id", prompt_id)
    unit = frame.attrs.get("unit")
    if "reader" in rows.columns:
        rows, reader = _narrow(rows, "reader", reader)
        unit = rows["unit"].iloc[0] if "unit" in rows.columns else unit
    return Selection(
        rows=rows.sort_values(["position", "order"], kind="stable"),
        prompt=_prompt(frame.attrs.get("prompts"), int(prompt_id), rows),
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
        return frame[frame[column] == wanted], wanted
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
    return "".join(map(str, tokens(rows)["token"]))


def tokens(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per position, in order, indexed 0..n-1: `position`, `token` (raw), `name` (legible), `sink`."""
    table = rows.drop_duplicates("position").sort_values("position").reset_index(drop=True)
    sink = table["sink"].fillna(False).astype(bool) if "sink" in table else [False] * len(table)
    return pd.DataFrame(
        {
            "position": table["position"].astype(int),
            "token": [str(token) for token in table["token"]],
            "name": [_name(row) for row in table.itertuples()],
            "sink": sink,
        }
    )


def _name(row: Any, *, width: int | None = None) -> str:
    special = getattr(row, "special", False)
    return display_token(str(row.token), special=special is not pd.NA and bool(special), width=width)


def axis_names(rows: pd.DataFrame, *, width: int) -> list[str]:
    """Tick labels for `tokens()`: the token, cut to `width` cells, whether it is a sink, its position."""
    table = rows.drop_duplicates("position").sort_values("position")
    marks = [" (sink)" if sink else "" for sink in tokens(rows)["sink"]]
    return [
        f"{_name(row, width=width)}{mark} {int(row.position)}"
        for row, mark in zip(table.itertuples(), marks, strict=True)
    ]


def components(rows: pd.DataFrame) -> list[str]:
    """The labels of the parts in stream order, one each."""
    table = rows[["component", "order"]].drop_duplicates("component").sort_values("order", kind="stable")
    return [str(label) for label in table["component"]]


def place(rows: pd.DataFrame) -> str:
    """``·bank (position 9)`` for the rows of one position."""
    return f"{_name(next(rows.itertuples()))} (position {int(rows['position'].iloc[0])})"


def signed(value: float) -> str:
    """A number with its sign, three decimals where that says enough: ``+3.742``, ``−0.510``, ``+1.2e-05``."""
    size = abs(value)
    text = (
        f"{value:+,.0f}"
        if size >= 1000
        else f"{value:+.3f}"
        if size >= 0.001 or size == 0
        else f"{value:+.1e}"
    )
    return text.replace("-", "−", 1) if text.startswith("-") else text


def prompt_line(selection: Selection) -> str:
    """The prompt in quotes, shortened; plain text."""
    text = visible(selection.prompt)
    short = text[: next((i for i in range(len(text)) if cells(text[: i + 1]) > _PROMPT), len(text))]
    return f"“{short if short == text else short + CUT}”"


def closing_line(selection: Selection) -> str:
    """How well the writes add up, and the model's name; plain text, empty where the frame says neither."""
    closes = (
        "" if selection.closure is None else f"Writes sum to the stream within {selection.closure:.1e} of it"
    )
    return " · ".join(part for part in (closes, visible(selection.model)) if part)
