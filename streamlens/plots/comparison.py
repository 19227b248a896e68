"""What separates two contexts, as bars that sum. A − B.

1. The writes whose differences give the reader most, by size; the others, the roundings included, as one bar.
2. What no write did: the two final norms' different scales, a softcap where there is one.
3. The total, which is the difference of the model's own values. Without a reader the bars are shares of the
   difference of the two streams, and sum to 1.
"""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamlens.arguments import typed
from streamlens.display import display_token, visible
from streamlens.errors import InputError
from streamlens.plots.bars import colours, largest, lay_out_bars, named_largest, waterfall
from streamlens.plots.finish import styled, titled
from streamlens.plots.selection import need, signed, tokens

__all__ = ["comparison"]

_PREFIX = "difference: "
#: rows that stand below the writes
_CLOSING = ("rescale", "softcap")


@typed
def comparison(
    frame: pd.DataFrame,
    *,
    top: int = 15,
    reader: str | None = None,
    palette: str = "RdBu",
    dark: bool = False,
) -> go.Figure:
    """Bars that sum to the difference of two contexts: the largest writes, the others, rescale. A − B.

    Args:
        frame: a comparison frame, of `compare(...).to_frame()`.
        top: how many writes get a bar of their own.
        reader: may be left out when the frame holds at most one. Without any the bars are each write's share of the
            difference of the two streams.
        palette: ``RdBu`` (blue adds, red subtracts) or ``PuOr``.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    if top < 1:
        raise InputError(f"top is the number of writes with a bar of their own, at least 1; got {top}.")
    need(frame, "component")
    name = _reader(frame, reader)
    column = "share" if name is None else f"{_PREFIX}{name}"
    labels = [str(label) for label in frame["component"]]
    values = frame[column].to_numpy(dtype="float64", na_value=0.0)
    writes = [i for i, label in enumerate(labels) if label not in _CLOSING]
    bars = largest([labels[i] for i in writes], values[writes], top)
    closing = [i for i, label in enumerate(labels) if label in _CLOSING and values[i] != 0]
    bars += [(labels[i], float(values[i])) for i in closing]
    total = float(values.sum())
    facts = (frame.attrs.get("readers") or {}).get(name) or {}
    unit = visible(str(facts.get("unit") or ""))
    place = _place(frame)
    said = f"A − B = {signed(total)} {unit}".rstrip()
    figure = waterfall(bars, total, colours(palette))
    height = titled(
        figure,
        f"What separates A from B at {place}" if name is None else f"{display_token(name)}: {said} at {place}",
        *_contexts(frame),
        _rule(len(writes), top, name, facts, unit),
        _closing_line(frame),
    )
    lay_out_bars(figure, bars, title_px=height, unit=unit or "share of the difference")
    what = display_token(name) if name else "the difference of the streams"
    summary = f"{what} at {place}, A minus B: the parts sum to {signed(total)}. The largest: {named_largest(bars)}."
    return styled(figure, dark, summary=summary)


def _reader(frame: pd.DataFrame, wanted: str | None) -> str | None:
    """The reader that is wanted, or the only one; None where there is none."""
    held = [str(column).removeprefix(_PREFIX) for column in frame.columns if str(column).startswith(_PREFIX)]
    if wanted is None and len(held) < 2:
        return held[0] if held else None
    if wanted not in held:
        got = "none was named" if wanted is None else f"got {wanted!r}"
        raise InputError(
            f"a figure shows one reader; this frame holds {', '.join(map(repr, held[:8])) or 'none'}, and {got}.",
            hint="Pass reader= one of those." if held else "",
        )
    return wanted


def _place(frame: pd.DataFrame) -> str:
    """``·bank``, or two tokens where they are not the same."""
    here, there = tokens(frame)[0], str(frame["token_b"].iloc[0])
    return here.shown() if there == here.text else f"{here.shown()} (A) and {display_token(there)} (B)"


def _contexts(frame: pd.DataFrame) -> list[str]:
    """Each prompt, with the position that is read."""
    prompts = frame.attrs.get("prompts") or ("", "")
    places = (int(frame[column].iloc[0]) for column in ("position", "position_b"))
    lines = zip("AB", prompts, places, strict=True)
    return [f"{side}: “{visible(str(prompt))}”, position {place}" for side, prompt, place in lines]


def _rule(writes: int, top: int, name: str | None, facts: dict[str, Any], unit: str) -> str:
    shown = f"Largest {top} of {writes} parts" if top < writes else f"All {writes} parts by size"
    if name is None:
        return f"{shown}; shares of the difference of the two streams, which sum to 1."
    a, b, closure = (float(facts.get(key, "nan")) for key in ("a", "b", "closure"))
    if closure != closure:
        return f"{shown}; the bars sum to the total."
    own = f"the model's own difference, {signed(a)} in A less {signed(b)} in B,"
    return f"{shown}; the bars sum to {own} within {closure:.0e} {unit}".rstrip() + "."


def _closing_line(frame: pd.DataFrame) -> str:
    """How well the writes of both contexts add up, and the model's name."""
    size = frame.attrs.get("closure")
    closes = "" if size is None else f"Writes sum to both streams within {float(size):.1e} of them"
    return " · ".join(part for part in (closes, visible(str(frame.attrs.get("model") or ""))) if part)
