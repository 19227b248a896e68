"""Every part by every token.

1. Rows are parts in stream order from the bottom up, columns are positions; both axes are integers with
   tick text.
2. The limit is a percentile of size outside sink columns; cells beyond it are drawn at the limit and counted.
3. The figure grows with its rows and columns: all labels are drawn, at any number, and a page lets it scroll.
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.axes import CELLS
from streamlens.plots.finish import SMALL, label_margin, styled, text_px, titled
from streamlens.plots.selection import (
    Token,
    closing_line,
    components,
    pick,
    prompt_line,
    signed,
    tokens,
)

__all__ = [
    "cell_trace",
    "clipped_line",
    "colour_axis",
    "grid",
    "heatmap",
    "lay_out_grid",
    "mark_sinks",
    "place_bar",
    "robust_limit",
]

PERCENTILE = 98
_ROW, _COLUMN = 15, 20  # px a cell
_PAGE = 900  # px; a figure that needs more gets a width of its own
_LABELS = 500  # of tokens; a browser's time to lay them out grows with their square. All are on hover
_NARROW = 560  # px; few tokens need no more than this, and no more than 110 px each
_TALL = 30  # rows from which the tokens are written above the cells too
_BAR = 52  # px, the colour bar with its title
_VALUES = {
    "contribution": "contribution",
    "norm": "norm of the write",
    "share": "share of the final stream",
}
_HEADINGS = {
    "contribution": "{reads}contribution by part and token",
    "norm": "Norm of every write, by part and token",
    "share": "Share of the final stream, by part and token",
}


@typed
def heatmap(
    frame: pd.DataFrame,
    *,
    value: str | None = None,
    prompt_id: int | None = None,
    reader: str | None = None,
    palette: str = "RdBu",
    dark: bool = False,
) -> go.Figure:
    """Every part by every token, in stream order from the bottom up; grey where there is no value.

    Limits are the 98th percentile of size outside sink columns, symmetric about 0 for signed values.
    Cells beyond are drawn at the limit, counted in the title, and show their true value on hover.

    Args:
        frame: a readout's or a ledger's frame.
        value: ``contribution`` (reader's unit, positive adds), ``norm`` (of each write), or ``share``
            (signed, of the final stream; a column sums to 1). None takes ``contribution`` where the frame
            has it, else ``norm``.
        prompt_id: may be left out when the frame holds one prompt.
        reader: may be left out when the frame holds one reader.
        palette: ``RdBu`` or ``PuOr``, for signed values; norms use a sequential scale.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    value = value or ("contribution" if "contribution" in frame.columns else "norm")
    if value not in _VALUES:
        raise InputError(f"value is one of {', '.join(_VALUES)}; got {value!r}.")
    if palette not in theme.SIGN_COLOURS:
        raise InputError(f"palette is one of {', '.join(theme.SIGN_COLOURS)}; got {palette!r}.")
    chosen = pick(frame, value=value, prompt_id=prompt_id, reader=reader)
    parts, columns, cells = grid(chosen.rows, value)
    sinks = np.array([token.sink for token in columns])
    limit = robust_limit(cells, sinks)
    signs = value != "norm"
    unit = visible(chosen.unit) if value == "contribution" else ""
    quantity = f"{_VALUES[value]}, {unit}" if unit else _VALUES[value]
    figure = go.Figure(cell_trace(cells, columns, quantity))
    height = titled(
        figure,
        _HEADINGS[value].format(reads=chosen.reads),
        prompt_line(chosen),
        clipped_line(cells, limit, signs=signs, sinks=bool(sinks.any())),
        closing_line(chosen),
    )
    lay_out_grid(figure, parts, columns, title_px=height)
    mark_sinks(figure, sinks)
    figure.update_layout(coloraxis=colour_axis(limit, quantity, signs=signs, palette=palette))
    place_bar(figure, title_px=height)
    layout: Any = figure.layout
    needs = layout.margin.l + layout.margin.r + _COLUMN * len(columns)
    layout.width = needs if needs > _PAGE else None
    reads = chosen.reads if value == "contribution" else ""
    summary = f"{reads}{quantity}, {_summary(cells, parts, columns, sinks, signs=signs)}"
    return styled(
        figure,
        dark,
        scale=palette if signs else "sequential",
        summary=summary,
        min_width=needs,
        max_width=max(_NARROW, needs + 90 * len(columns)),
    )


def grid(rows: pd.DataFrame, value: str) -> tuple[list[str], list[Token], np.ndarray]:
    """Row labels, columns, and values [part, position]; NaN where the frame has no row."""
    parts, columns = components(rows), tokens(rows)
    row_of = {label: i for i, label in enumerate(parts)}
    column_of = {token.position: i for i, token in enumerate(columns)}
    cells = np.full((len(parts), len(columns)), np.nan)
    at = [row_of[str(c)] for c in rows["component"]], [column_of[int(p)] for p in rows["position"]]
    cells[at] = rows[value].to_numpy(dtype="float64", na_value=np.nan)
    return parts, columns, cells


def robust_limit(cells: np.ndarray, sink: np.ndarray) -> float:
    """The percentile of size over the columns that are no sinks (all, if every one is)."""
    sizes = np.abs(cells[:, ~sink] if not sink.all() else cells)
    sizes = sizes[np.isfinite(sizes)]
    limit = float(np.percentile(sizes, PERCENTILE)) if sizes.size else 0.0
    return limit or float(sizes.max(initial=0.0)) or 1.0


def cell_trace(cells: np.ndarray, columns: list[Token], quantity: str) -> go.Heatmap:
    shown = [plotly_escape(token.place) for token in columns]
    gap = 1 if cells.size <= 4000 else 0
    return go.Heatmap(
        z=cells,
        x=list(range(cells.shape[1])),
        y=list(range(cells.shape[0])),
        coloraxis="coloraxis",
        customdata=[shown] * cells.shape[0],
        hovertemplate=f"%{{y}} at %{{customdata}}<br>{plotly_escape(quantity)} %{{z:.4~g}}<extra></extra>",
        hoverongaps=False,
        xgap=gap,
        ygap=gap,
    )


def clipped_line(cells: np.ndarray, limit: float, *, signs: bool, sinks: bool) -> str:
    beyond, known = int((np.abs(cells) > limit).sum()), int(np.isfinite(cells).sum())
    bound = f"{'±' if signs else ''}{_short(limit)}"
    clipped = f"{beyond:,} of {known:,} cells clipped at {bound} (true value on hover)"
    return f"{clipped if beyond else 'No cell is clipped'}{'; sinks set no limit' if sinks else ''}."


def _short(size: float) -> str:
    return f"{size:,.0f}" if size >= 1000 else f"{size:.3g}"


def lay_out_grid(figure: go.Figure, parts: list[str], columns: list[Token], *, title_px: int) -> None:
    every = -(-len(columns) // _LABELS)
    labelled = [i for i, token in enumerate(columns) if i % every == 0 or token.sink]
    names = [columns[i].label for i in labelled]
    tokens_px = text_px(names) + 14
    above = tokens_px if len(parts) > _TALL else 8
    top = title_px + _BAR + above
    across = {
        **CELLS,
        "tickvals": labelled,
        "ticktext": [plotly_escape(name) for name in names],
        "tickangle": -90,
        "range": [-0.5, len(columns) - 0.5],
    }
    figure.update_layout(
        height=top + _ROW * len(parts) + tokens_px,
        margin={"l": label_margin(parts), "r": 12, "t": top, "b": tokens_px},
        plot_bgcolor=theme.NAN_GREY,
        xaxis=across,
        yaxis={
            **CELLS,
            "tickvals": list(range(len(parts))),
            "ticktext": [plotly_escape(part) for part in parts],
            "range": [-0.5, len(parts) - 0.5],
        },
    )
    if len(parts) > _TALL:
        figure.add_scatter(x=[None], y=[None], xaxis="x2", showlegend=False, hoverinfo="skip")  # axes need a trace
        figure.update_layout(xaxis2={**across, "side": "top", "overlaying": "x", "matches": "x"})


def mark_sinks(figure: go.Figure, sink: np.ndarray) -> None:
    for column in np.flatnonzero(sink):
        edges = {"x0": column - 0.5, "x1": column + 0.5, "y0": 0, "y1": 1, "yref": "paper"}
        figure.add_shape(type="rect", **edges, line={"color": theme.NEUTRAL, "width": 1.5, "dash": "dot"})


def colour_axis(limit: float, quantity: str, *, signs: bool, palette: str) -> dict:
    adds, subtracts = ("purple", "orange") if palette == "PuOr" else ("blue", "red")
    words = f"{quantity}: {adds} adds, {subtracts} subtracts" if signs else quantity
    low, high = (f"−{_short(limit)}", f"+{_short(limit)}") if signs else ("0", _short(limit))
    return {
        "cmin": -limit if signs else 0.0,
        "cmax": limit,
        "colorbar": {
            "orientation": "h",
            "thickness": 9,
            "lenmode": "pixels",
            "len": 300,
            "x": 0,
            "xanchor": "left",
            "xpad": 0,
            "ypad": 0,
            "title": {"text": plotly_escape(words), "side": "top", "font": {"size": 12}},
            "tickmode": "array",
            "tickvals": [-limit, 0, limit] if signs else [0, limit / 2, limit],
            "ticktext": [low, "0", high] if signs else [low, _short(limit / 2), high],
            "tickfont": {"size": SMALL},
        },
    }


def place_bar(figure: go.Figure, *, title_px: int) -> None:
    """The bar hangs below the title, wherever the cells begin."""
    layout: Any = figure.layout
    margin = layout.margin
    inner = layout.height - margin.t - margin.b
    figure.update_layout(coloraxis={"colorbar": {"y": 1 + (margin.t - title_px) / inner, "yanchor": "top"}})


def _summary(cells: np.ndarray, parts: list[str], columns: list[Token], sink: np.ndarray, *, signs: bool) -> str:
    """The largest cell in words; sinks are named and, unless there is nothing else, do not compete."""
    sizes = np.nan_to_num(np.abs(cells), nan=-1.0)
    row, column = np.unravel_index(np.argmax(np.where(sink & ~sink.all(), -1.0, sizes)), cells.shape)
    size = signed(cells[row, column]) if signs else _short(cells[row, column])
    sinks = ", ".join(token.place for token, is_sink in zip(columns, sink, strict=True) if is_sink)
    return (
        f"{len(parts)} parts by {len(columns)} tokens. The largest in size is {parts[row]} at "
        f"{columns[column].place}, {size}."
    ) + (f" Sinks, marked: {sinks}." if sinks else "")
