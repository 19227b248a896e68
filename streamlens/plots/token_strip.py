"""The prompt as a strip of tokens, wrapped like text.

1. One box a token, as wide as its text, its position below it; a box that does not fit begins a new line.
2. The colour is what the tokens are told apart by: the norm of the final stream, or what a reader reads of each.
   Sinks are dotted and set no limit. The token that is looked at has a thick edge.
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import cells, plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.finish import styled, titled
from streamlens.plots.heat import clipped_line, colour_axis, place_bar
from streamlens.plots.selection import Token, closing_line, pick, prompt_line, signed, tokens

__all__ = ["token_strip"]

_WIDE = 84  # characters of a line
_CHAR, _LINE = 7.4, 46  # px
_TEXT = 24  # cells of a token; it is whole on hover
_BAR = 56  # px, the colour bar with its title
_SIDE = 24  # px, room for the numbers at the ends of the colour bar


@typed
def token_strip(
    frame: pd.DataFrame,
    *,
    position: int | None = None,
    prompt_id: int | None = None,
    reader: str | None = None,
    palette: str = "RdBu",
    dark: bool = False,
) -> go.Figure:
    """The prompt's tokens as a strip; the colour is the final stream's norm, or what the reader reads there.

    Args:
        frame: a ledger's frame, or a readout's.
        position: the token that gets a thick edge; None for none, a negative one counts from the end.
        prompt_id: may be left out when the frame holds one prompt.
        reader: may be left out when the frame holds one reader.
        palette: ``RdBu`` (blue adds, red subtracts) or ``PuOr``, for a readout.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    if palette not in theme.SIGN_COLOURS:
        raise InputError(f"palette is one of {', '.join(theme.SIGN_COLOURS)}; got {palette!r}.")
    value = "contribution" if "contribution" in frame.columns else "stream_norm"
    chosen = pick(frame, value=value, prompt_id=prompt_id, reader=reader)
    rows: Any = chosen.rows
    columns = tokens(rows)
    groups = rows.groupby("position")[value]
    sizes = (groups.sum() if value == "contribution" else groups.last()).to_numpy(dtype="float64")
    picked = None if position is None else int(chosen.at(position)["position"].iloc[0])
    signs = value == "contribution"
    quantity = f"value, {visible(chosen.unit)}" if signs else "norm of the final stream"
    sinks = np.array([token.sink for token in columns])
    plain = np.abs(sizes[~sinks] if not sinks.all() else sizes)
    limit = float(plain.max(initial=0.0)) or 1.0
    figure, lines = _boxes(columns, sizes, picked, quantity, signs=signs)
    height = titled(
        figure,
        f"{chosen.reads}value at every token" if signs else "The tokens, by the norm of their final stream",
        prompt_line(chosen),
        clipped_line(sizes[None], limit, signs=signs, sinks=bool(sinks.any())),
        closing_line(chosen),
    )
    width = round(_WIDE * _CHAR) + 2 * _SIDE
    figure.update_layout(
        height=height + _BAR + _LINE * lines + 12,
        width=width,
        margin={"l": _SIDE, "r": _SIDE, "t": height + _BAR, "b": 12},
        showlegend=False,
        xaxis={"visible": False, "range": [-0.3, _WIDE]},
        yaxis={"visible": False, "range": [lines - 0.42, -0.5]},
        coloraxis=colour_axis(limit, quantity, signs=signs, palette=palette),
    )
    place_bar(figure, title_px=height)
    summary = _summary(columns, sizes, picked, quantity, signs=signs)
    scale = palette if signs else "sequential"
    return styled(figure, dark, scale=scale, summary=summary, min_width=width, max_width=width)


def _boxes(
    columns: list[Token], sizes: np.ndarray, picked: int | None, quantity: str, *, signs: bool
) -> tuple[go.Figure, int]:
    """The boxes, and on how many lines they stand."""
    figure, places = go.Figure(), _wrapped(columns)
    for token, (line, start, width) in zip(columns, places, strict=True):
        box = {"x0": start, "x1": start + width, "y0": line - 0.36, "y1": line + 0.14}
        looked = token.position == picked
        edge = {"color": theme.NEUTRAL, "width": 3 if looked else 1, "dash": "dot" if token.sink else "solid"}
        figure.add_shape(type="rect", **box, line=edge)
    for line in range(places[-1][0] + 1):
        own = [i for i, place in enumerate(places) if place[0] == line]
        figure.add_trace(_line(line, [(columns[i], places[i], float(sizes[i])) for i in own], quantity, signs=signs))
    figure.add_scatter(
        mode="text",
        x=[start + width / 2 for _, start, width in places],
        y=[line + 0.3 for line, _, _ in places],
        text=[f"{token.position}{' sink' if token.sink else ''}" for token in columns],
        textfont={"size": 10, "color": theme.NEUTRAL},
        hoverinfo="skip",
    )
    return figure, places[-1][0] + 1


def _line(
    line: int, boxes: list[tuple[Token, tuple[int, float, float], float]], quantity: str, *, signs: bool
) -> go.Heatmap:
    """The boxes of one line: a row of cells, with an empty one between two boxes."""
    edges = [edge for _, (_, start, width), _ in boxes for edge in (start, start + width)]
    values, text, hover = [], [], []
    for token, _, size in boxes:
        values += [size, None]
        text += [plotly_escape(token.shown(_TEXT)), ""]
        hover += [[plotly_escape(token.place), signed(size) if signs else f"{size:,.4g}"], ["", ""]]
    return go.Heatmap(
        x=edges,
        y=[line - 0.36, line + 0.14],
        z=[values[:-1]],
        text=[text[:-1]],
        texttemplate="%{text}",
        textfont={"family": theme.MONO, "size": 12},
        customdata=[hover[:-1]],
        hovertemplate=f"%{{customdata[0]}}<br>{plotly_escape(quantity)} %{{customdata[1]}}<extra></extra>",
        hoverongaps=False,
        coloraxis="coloraxis",
    )


def _wrapped(columns: list[Token]) -> list[tuple[int, float, float]]:
    """(line, start, width) of each box, in characters."""
    places, line, at = [], 0, 0.0
    for token in columns:
        width = max(cells(token.shown(_TEXT)) + 1.5, 4.0, 7.0 if token.sink else 0.0)
        if at and at + width > _WIDE:
            line, at = line + 1, 0.0
        places.append((line, at, width))
        at += width + 0.6
    return places


def _summary(columns: list[Token], sizes: np.ndarray, picked: int | None, quantity: str, *, signs: bool) -> str:
    shown = [
        f"{token.place} {signed(float(size)) if signs else f'{size:,.3g}'}"
        for token, size in zip(columns, sizes, strict=True)
    ]
    looked = next((f" Looked at: {token.place}." for token in columns if token.position == picked), "")
    sinks = ", ".join(token.place for token in columns if token.sink)
    return (
        f"{len(columns)} tokens; {quantity}: {', '.join(shown[:12])}{' and more' if len(shown) > 12 else ''}.{looked}"
        + (f" Sinks: {sinks}." if sinks else "")
    )
