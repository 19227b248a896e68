"""Which write responded to which edit: edited down, responding across.

1. A write that stands before the edited one cannot move: those cells are grey, and the rest is an upper triangle.
2. The edited write's own cell is hatched: it was set, it did not respond. It sets no limit of the colours.
3. Colours are symmetric about 0; the limit is a percentile of the responses' size.
"""

import re
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import display_token, plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.axes import CELLS
from streamlens.plots.finish import axis_title, label_margin, styled, text_px, titled
from streamlens.plots.heat import clipped_line, colour_axis, place_bar, robust_limit
from streamlens.plots.selection import closes, signed

__all__ = ["FAINT", "hatched", "responses"]

FAINT = "rgba(127,135,147,0.25)"  # what did not change
_CELL = 15  # px
_BAR = 56  # px, the colour bar with its title
_TALL = 70  # rows from which the writes are written below the cells too


@typed
def responses(
    frame: pd.DataFrame,
    *,
    reader: str = "",
    unit: str = "",
    palette: str = "RdBu",
    dark: bool = False,
) -> go.Figure:
    """The edited x responding matrix: what each write's change gives the reader. Ablated − clean.

    Args:
        frame: a matrix of `sweep(...).responses()`: variants down, writes across in stream order.
        reader: its name for the title, where ``attrs`` do not hold it (a matrix that was read from a file).
        unit: likewise its unit.
        palette: ``RdBu`` (blue adds, red subtracts) or ``PuOr``.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: an empty matrix, or no such palette.
    """
    if frame.empty:
        raise InputError("a matrix of responses has rows and columns; this one is empty.")
    if palette not in theme.SIGN_COLOURS:
        raise InputError(f"palette is one of {', '.join(theme.SIGN_COLOURS)}; got {palette!r}.")
    edited, writes = [str(name) for name in frame.index], [str(name) for name in frame.columns]
    values = frame.to_numpy(dtype="float64")
    own = _own_cells(edited, writes, values)
    first = np.where(own.any(1), own.argmax(1), 0)
    before = np.arange(len(writes))[None] < first[:, None]
    cells = np.where(own | before, np.nan, values)
    limit = robust_limit(cells, np.zeros(len(writes), dtype=bool))
    said, unit = str(frame.attrs.get("reader") or reader), str(frame.attrs.get("unit") or unit)
    quantity = f"change, {visible(unit)}" if unit else "change"
    figure = go.Figure(_trace(cells, quantity))
    down, across = np.nonzero(own)
    hatched(figure, down.tolist(), across.tolist(), values[own].tolist(), edited)
    prompts = frame.attrs.get("prompts") or [""]
    moved = float(np.abs(values[before]).max(initial=0.0))
    height = titled(
        figure,
        f"{display_token(said)}: responses to each edit" if said else "Responses to each edit",
        f"“{visible(str(prompts[0]))}”" if prompts[0] else "",
        f"Ablated − clean, at {_place(frame.attrs)}. Hatched: the edited write. Grey: earlier writes, "
        + ("unchanged." if moved == 0 else f"unchanged within {moved:.0e}."),
        clipped_line(cells, limit, signs=True, sinks=False),
        closes(frame.attrs.get("closure"), str(frame.attrs.get("model") or "")),
    )
    width = _lay_out(figure, edited, writes, title_px=height)
    figure.update_layout(coloraxis=colour_axis(limit, quantity, signs=True, palette=palette))
    place_bar(figure, title_px=height)
    return styled(
        figure,
        dark,
        scale=palette,
        summary=_summary(cells, edited, writes),
        min_width=width,
        max_width=width,
    )


def _place(attrs: Mapping[Hashable, Any]) -> str:
    """The token that is read."""
    if "token" not in attrs:
        return "the last token that was read"
    shown = display_token(str(attrs["token"]), special=bool(attrs.get("special")))
    return f"{shown} (position {attrs['position']})"


def _own_cells(edited: list[str], writes: list[str], values: np.ndarray) -> np.ndarray:
    """Which cells are the edited writes' own: by their names, else the first of the row that moved."""
    own = np.zeros(values.shape, dtype=bool)
    for row, variant in enumerate(edited):
        sites = [re.split(r"[<@=]", text)[0] for text in variant.split(" + ")]
        for site in sites:
            if site in writes:
                own[row, writes.index(site)] = True
        if len(own[row].nonzero()[0]) < len(sites) and values[row].any():
            own[row, int(np.flatnonzero(values[row])[0])] = True
    return own


def _trace(cells: np.ndarray, quantity: str) -> go.Heatmap:
    return go.Heatmap(
        z=cells,
        x=list(range(cells.shape[1])),
        y=list(range(cells.shape[0])),
        coloraxis="coloraxis",
        hovertemplate=f"without %{{y}}<br>%{{x}}: {plotly_escape(quantity)} %{{z:+.4~g}}<extra></extra>",
        hoverongaps=False,
        xgap=1 if cells.size <= 4000 else 0,
        ygap=1 if cells.size <= 4000 else 0,
    )


def hatched(figure: go.Figure, rows: list[int], columns: list[int], sizes: list[float], names: list[str]) -> None:
    """Hatches cells of a grid; their true value is on hover."""
    figure.add_bar(
        x=columns,
        y=[1] * len(rows),
        base=[row - 0.5 for row in rows],
        width=1,
        showlegend=False,
        marker={
            "color": "rgba(0,0,0,0)",
            "line": {"width": 1, "color": theme.NEUTRAL},
            "pattern": {"shape": "/", "size": 5, "fgcolor": theme.NEUTRAL, "bgcolor": FAINT, "fillmode": "replace"},
        },
        customdata=[[plotly_escape(visible(names[row])), signed(size)] for row, size in zip(rows, sizes, strict=True)],
        hovertemplate="%{customdata[0]}, edited: %{customdata[1]}<extra></extra>",
    )


def _lay_out(figure: go.Figure, edited: list[str], writes: list[str], *, title_px: int) -> int:
    """Lays the matrix out; its width in px."""
    labels_px = text_px(writes) + 14
    left, top, bottom = label_margin(edited) + 20, title_px + _BAR + labels_px, 34
    across = {
        **CELLS,
        "side": "top",
        "tickvals": list(range(len(writes))),
        "ticktext": [plotly_escape(visible(write)) for write in writes],
        "tickangle": -90,
        "range": [-0.5, len(writes) - 0.5],
    }
    if len(edited) > _TALL:
        bottom += labels_px
        figure.add_scatter(x=[None], y=[None], xaxis="x2", showlegend=False, hoverinfo="skip")  # axes need a trace
        figure.update_layout(xaxis2={**across, "side": "bottom", "overlaying": "x", "matches": "x"})
    width = left + 16 + max(_CELL * len(writes), 440)
    figure.update_layout(
        height=top + _CELL * len(edited) + bottom,
        width=width,
        margin={"l": left, "r": 16, "t": top, "b": bottom},
        plot_bgcolor=FAINT,
        bargap=0,
        xaxis=across,
        yaxis={
            **CELLS,
            "title": axis_title("edited"),
            "tickvals": list(range(len(edited))),
            "ticktext": [plotly_escape(visible(name)) for name in edited],
            "range": [len(edited) - 0.5, -0.5],
        },
    )
    note = {"text": "responding", "showarrow": False, "xref": "paper", "yref": "paper", "font": {"size": 12}}
    figure.add_annotation(**note, x=0.5, y=0, xanchor="center", yanchor="top", yshift=26 - bottom)
    return width


def _summary(cells: np.ndarray, edited: list[str], writes: list[str]) -> str:
    head = f"{len(edited)} edits by {len(writes)} writes, ablated minus clean."
    if not np.isfinite(cells).any():
        return f"{head} No write responds."
    row, column = np.unravel_index(np.nanargmax(np.abs(cells)), cells.shape)
    return f"{head} The largest response: {writes[column]}, {signed(cells[row, column])}, to {edited[row]}."
