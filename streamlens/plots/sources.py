"""From which tokens attention brought what: heads down, the tokens they read from across.

1. The heads that bring most are rows in stream order from the bottom up; above them the sum of all heads of the frame.
2. Columns are source positions. The number in a cell is the attention probability, where it is not small.
3. Colours are symmetric about 0; the limit is a percentile of size.
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.finish import styled, titled
from streamlens.plots.heat import cell_trace, clipped_line, colour_axis, lay_out_grid, place_bar, robust_limit
from streamlens.plots.selection import Token, closing_line, pick, prompt_line, signed, tokens

__all__ = ["sources"]

_COLUMN = 34  # px
_SAID = 0.1  # attention from which it is written into its cell
_CELLS = 1500  # with text; beyond, attention is on hover alone


@typed
def sources(
    frame: pd.DataFrame,
    *,
    top: int = 20,
    position: int | None = None,
    prompt_id: int | None = None,
    reader: str | None = None,
    palette: str = "RdBu",
    dark: bool = False,
) -> go.Figure:
    """What each head brought from each source token, the heads that bring most.

    Args:
        frame: a readout's frame at source level (contributions), or a ledger's (shares of the stream).
        top: how many heads get a row.
        position: the token written into; None is the last, a negative one counts from the end.
        prompt_id: may be left out when the frame holds one prompt.
        reader: may be left out when the frame holds one reader.
        palette: ``RdBu`` (blue adds, red subtracts) or ``PuOr``.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a frame that is not at source level, or a choice that is missing or not held.
    """
    if "source" not in frame.columns or not bool(frame["source"].notna().any()):
        raise InputError("this figure draws heads by source token; this frame is of another level than source.")
    if palette not in theme.SIGN_COLOURS:
        raise InputError(f"palette is one of {', '.join(theme.SIGN_COLOURS)}; got {palette!r}.")
    value = "contribution" if "contribution" in frame.columns else "share"
    chosen = pick(frame, value=value, prompt_id=prompt_id, reader=reader)
    rows: Any = chosen.at(position)
    place = tokens(rows)[0].place
    heads, columns, cells, attention = _grids(rows.loc[rows["source"].notna()], value)
    order = np.argsort(-np.nansum(np.abs(cells), axis=1), kind="stable")
    kept = np.sort(order[:top])
    whole = np.nansum(cells, axis=0)[None]
    labels = [*(heads[i] for i in kept), f"all {len(heads)} heads"]
    shown = np.concatenate([cells[kept], whole])
    unit = visible(chosen.unit) if value == "contribution" else "share of the stream"
    quantity = f"{value}, {unit}" if value == "contribution" else unit
    limit = robust_limit(shown, np.zeros(len(columns), dtype=bool))
    figure = go.Figure(_trace(shown, attention[kept], columns, quantity))
    rule = f"The {top} heads of {len(heads)} that bring most" if top < len(heads) else f"All {len(heads)} heads"
    height = titled(
        figure,
        f"{chosen.reads}from which tokens attention wrote into {place}"
        if chosen.reads
        else f"From which tokens attention wrote into {place}",
        prompt_line(chosen),
        f"{rule}; the numbers are attention probabilities of {_SAID} and more.",
        clipped_line(shown, limit, signs=True, sinks=False),
        closing_line(chosen),
    )
    lay_out_grid(figure, labels, columns, title_px=height)
    edge = {"x0": 0, "x1": 1, "xref": "paper", "y0": len(kept) - 0.5, "y1": len(kept) - 0.5}
    figure.add_shape(type="line", **edge, line={"color": theme.NEUTRAL, "width": 1.5})
    figure.update_layout(coloraxis=colour_axis(limit, quantity, signs=True, palette=palette))
    place_bar(figure, title_px=height)
    layout: Any = figure.layout
    needs = layout.margin.l + layout.margin.r + _COLUMN * len(columns)
    summary = _summary(whole[0], columns, len(heads), quantity, place)
    return styled(figure, dark, scale=palette, summary=summary, min_width=needs, max_width=max(560, needs + 360))


def _grids(rows: pd.DataFrame, value: str) -> tuple[list[str], list[Token], np.ndarray, np.ndarray]:
    """Heads in stream order, source tokens, and [head, source] of the value and of the attention."""
    names = [str(label).partition("<")[0] for label in rows["component"]]
    heads = list(dict.fromkeys(names))
    texts = dict(zip(rows["source"].astype(int), rows["source_token"].fillna("").astype(str), strict=True))
    columns = [Token(position=place, text=texts[place], special=False, sink=False) for place in sorted(texts)]
    row_of = {head: i for i, head in enumerate(heads)}
    column_of = {place: i for i, place in enumerate(sorted(texts))}
    at = [row_of[name] for name in names], [column_of[int(place)] for place in rows["source"]]
    cells, attention = (np.full((len(heads), len(columns)), np.nan) for _ in range(2))
    cells[at] = rows[value].to_numpy(dtype="float64")
    attention[at] = rows["attention"].to_numpy(dtype="float64")
    return heads, columns, cells, attention


def _trace(cells: np.ndarray, attention: np.ndarray, columns: list[Token], quantity: str) -> go.Heatmap:
    trace: Any = cell_trace(cells, columns, quantity)
    shares = [[f"attention {share:.2f}" if share == share else "" for share in row] for row in attention]
    shares.append(["all heads of the frame"] * len(columns))
    names = [plotly_escape(token.place) for token in columns]
    trace.customdata = [list(map(list, zip(names, row, strict=True))) for row in shares]
    trace.hovertemplate = (
        f"%{{y}} from %{{customdata[0]}}<br>{plotly_escape(quantity)} %{{z:+.4~g}}<br>%{{customdata[1]}}<extra></extra>"
    )
    if cells.size <= _CELLS:
        said = [[_short(share) if share >= _SAID else "" for share in row] for row in attention]
        trace.text = [*said, [""] * len(columns)]
        trace.texttemplate = "%{text}"
        trace.textfont = {"size": 10}
    return trace


def _short(share: float) -> str:
    """``.83``, ``1.0``."""
    return f"{share:.2f}".removeprefix("0") if share < 0.995 else "1.0"


def _summary(whole: np.ndarray, columns: list[Token], heads: int, quantity: str, place: str) -> str:
    order = np.argsort(-np.abs(whole), kind="stable")[:5]
    most = ", ".join(f"{columns[i].place} {signed(float(whole[i]))}" for i in order)
    return f"What {heads} heads wrote into {place}, by the token they read from; {quantity}, over all of them: {most}."
