"""The logit lens: what the model would say after every write, at every token.

1. Rows are writes in stream order from the bottom up, columns are positions; the likeliest token is written in its
   cell.
2. The colour is its probability, from 0 to 1, so that no limit has to be chosen.
3. The title says from which write on the last column's token is the final one.
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import display_token, plotly_escape
from streamlens.errors import InputError
from streamlens.plots.finish import styled, titled
from streamlens.plots.heat import colour_axis, grid, lay_out_grid, mark_sinks, place_bar
from streamlens.plots.selection import Token, closing_line, pick, prompt_line

__all__ = ["lens"]

_COLUMN = 74  # px
_CELL = 9  # cells of a token in its cell; it is whole on hover
_TEXT = 10  # px
_CELLS = 3000  # of text; a browser's time to set them grows with their number


@typed
def lens(frame: pd.DataFrame, *, prompt_id: int | None = None, dark: bool = False) -> go.Figure:
    """The likeliest next token after every write, at every token of the frame; the colour is its probability.

    Args:
        frame: a frame of `logit_lens(...).to_frame()`.
        prompt_id: may be left out when the frame holds one prompt.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or this is no frame of a logit lens.
    """
    if "top_token" not in frame.columns:
        raise InputError("this figure draws the frame of a logit lens, with `top_token`; this is none.")
    best: Any = frame.loc[frame["rank"] == 0]
    chosen = pick(best, value="probability", prompt_id=prompt_id)
    parts, columns, shares = grid(chosen.rows, "probability")
    said = _texts(chosen.rows, parts, columns)
    figure = go.Figure(_trace(shares, said, columns))
    last = columns[-1]
    turn = _settles([row[-1] for row in said])
    height = titled(
        figure,
        "Logit lens: the likeliest next token after every write",
        prompt_line(chosen),
        "The stream there through the true final norm and unembedding. Colour: the token's probability.",
        f"After {last.place} it is the final one, “{display_token(said[-1][-1])}”, from {parts[turn]} on.",
        closing_line(chosen),
    )
    lay_out_grid(figure, parts, columns, title_px=height)
    mark_sinks(figure, np.array([token.sink for token in columns]))
    axis = colour_axis(1.0, "probability of that token", signs=False, palette="RdBu")
    figure.update_layout(coloraxis=axis)
    place_bar(figure, title_px=height)
    layout: Any = figure.layout
    needs = layout.margin.l + layout.margin.r + _COLUMN * len(columns)
    summary = (
        f"The logit lens over {len(parts)} writes and {len(columns)} tokens. After {last.place} the likeliest next "
        f"token is {display_token(said[-1][-1])}, probability {shares[-1, -1]:.0%}, from {parts[turn]} on."
    )
    return styled(figure, dark, scale="sequential", summary=summary, min_width=needs, max_width=max(560, needs + 300))


def _texts(rows: pd.DataFrame, parts: list[str], columns: list[Token]) -> list[list[str]]:
    """The raw top tokens, [part][column]."""
    row_of = {label: i for i, label in enumerate(parts)}
    column_of = {token.position: i for i, token in enumerate(columns)}
    said = [["" for _ in columns] for _ in parts]
    for component, position, text in zip(rows["component"], rows["position"], rows["top_token"], strict=True):
        said[row_of[str(component)]][column_of[int(position)]] = str(text)
    return said


def _settles(column: list[str]) -> int:
    """The first row from which on a column says what it says at the end."""
    return next((n + 1 for n in range(len(column) - 1, -1, -1) if column[n] != column[-1]), 0)


def _trace(shares: np.ndarray, said: list[list[str]], columns: list[Token]) -> go.Heatmap:
    hover = [
        [
            [plotly_escape(token.place), plotly_escape(display_token(text))]
            for token, text in zip(columns, row, strict=True)
        ]
        for row in said
    ]
    written = {}
    if shares.size <= _CELLS:
        short = [[plotly_escape(display_token(text, width=_CELL)) for text in row] for row in said]
        written = {"text": short, "texttemplate": "%{text}", "textfont": {"size": _TEXT, "family": theme.MONO}}
    return go.Heatmap(
        z=np.round(shares, 4),
        x=list(range(len(columns))),
        y=list(range(len(said))),
        coloraxis="coloraxis",
        customdata=hover,
        hovertemplate="after %{customdata[0]}, once %{y} has written:<br>%{customdata[1]} %{z:.1%}<extra></extra>",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        **written,
    )
