"""Numbers along depth, steps or size as lines, and a few numbers side by side as bars.

1. One line, or one bar beside the others, for each series, in the order of the frame; colours run from blue to orange.
2. On a log axis what is zero or negative cannot be drawn; the line stops there and the title counts what is missing.
3. The summary for screen readers says where each series starts and ends.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape
from streamlens.plots.finish import SMALL, axis_title, label_margin, require_columns, styled, titled

__all__ = ["curves", "grouped_bars"]

_BODY = 380  # px below the title
_SHORT = 4  # characters of a label up to which bars stand upright
_TICKS = 12  # values on a log axis up to which each has a tick
_MARKED = 45  # points of a line up to which each has a marker


@typed
def curves(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    series: str,
    heading: str,
    says: str = "",
    x_title: str | None = None,
    y_title: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    dashed: Collection[str] = (),
    dark: bool = False,
) -> go.Figure:
    """One line for each series.

    Args:
        frame: one observation a row.
        x: the column along the axis below.
        y: the column drawn.
        series: the column that names the line.
        heading: the title.
        says: a sentence under it.
        x_title: what stands on the axis; the column's name by default.
        y_title: the same upwards, with the unit.
        log_x: a log axis.
        log_y: a log axis; what is not positive is left out.
        dashed: series that are references (an exact solution, a bound), drawn dashed.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: the frame lacks a column.
    """
    _require(frame, x, y, series)
    names = _names(frame, series)
    figure = go.Figure()
    missing = 0
    for name, colour in zip(names, theme.position_colours(len(names)), strict=True):
        rows = frame.loc[frame[series].astype(str) == name]
        across, values = rows[x].to_numpy(dtype="float64"), rows[y].to_numpy(dtype="float64")
        drawn = np.isfinite(values) & ((values > 0) | (not log_y)) & ((across > 0) | (not log_x))
        missing += int((~drawn).sum())
        reference = name in dashed
        figure.add_scatter(
            x=[float(value) for value in across],
            y=[float(value) if keep else None for value, keep in zip(values, drawn, strict=True)],
            mode="lines+markers" if len(values) <= _MARKED and not reference else "lines",
            name=plotly_escape(name),
            line={"color": colour, "width": 1.6 if reference else 2.2, "dash": "dash" if reference else "solid"},
            marker={"size": 5, "color": colour},
            hovertemplate="%{x:.4~g}: %{y:.5~g}<extra>%{fullData.name}</extra>",
        )
    note = f"{missing} points that are zero, or not finite, have no place on this axis." if missing else ""
    top = titled(figure, heading, says, note) + _legend_px(names)
    _lay_out(figure, top, x_title or x, y_title or y)
    figure.update_xaxes(type="log" if log_x else "linear", zeroline=False, exponentformat="power")
    ticks = sorted({float(value) for value in frame[x]})
    if log_x and len(ticks) <= _TICKS:
        figure.update_xaxes(tickvals=ticks)
    figure.update_yaxes(type="log" if log_y else "linear", zeroline=not log_y, exponentformat="power")
    return styled(figure, dark, summary=_summary(frame, names, x=x, y=y, series=series, heading=heading))


@typed
def grouped_bars(
    frame: pd.DataFrame,
    *,
    label: str,
    value: str,
    series: str,
    heading: str,
    says: str = "",
    x_title: str | None = None,
    y_title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """For each label a bar of each series, side by side. Arguments as in `curves`; `label` is a column of names.

    Raises:
        InputError: the frame lacks a column.
    """
    _require(frame, label, value, series)
    names, labels = _names(frame, series), _names(frame, label)
    lying = max(len(text) for text in labels) > _SHORT
    at = {text: i for i, text in enumerate(labels)}
    figure = go.Figure()
    for name, colour in zip(names, theme.position_colours(len(names)), strict=True):
        rows = frame.loc[frame[series].astype(str) == name]
        places, sizes = [at[text] for text in rows[label].astype(str)], [float(number) for number in rows[value]]
        figure.add_bar(
            x=sizes if lying else places,
            y=places if lying else sizes,
            orientation="h" if lying else "v",
            name=plotly_escape(name),
            marker={"color": colour, "line": {"width": 0}},
            customdata=[plotly_escape(text) for text in rows[label].astype(str)],
            hovertemplate=f"%{{customdata}}: %{{{'x' if lying else 'y'}:.4~g}}<extra>%{{fullData.name}}</extra>",
        )
    top = titled(figure, heading, says) + _legend_px(names)
    _lay_out(figure, top, x_title or label, y_title or value)
    named = {
        "tickmode": "array",
        "tickvals": list(range(len(labels))),
        "ticktext": [plotly_escape(text) for text in labels],
        "showgrid": False,
        "zeroline": False,
        "ticklabelstandoff": 4,
    }
    figure.update_layout(barmode="group", bargap=0.3)
    if lying:
        rows_px = len(labels) * max(18, 9 * len(names) + 6)
        figure.update_layout(height=top + rows_px + 48, margin={"l": label_margin(labels)})
        figure.update_yaxes(
            named, range=[len(labels) - 0.4, -0.6], title=None, tickfont={"family": theme.MONO, "size": SMALL}
        )
        figure.update_xaxes(title=axis_title(y_title or value), zeroline=True)
    else:
        figure.update_xaxes(named)
    return styled(figure, dark, summary=_summary(frame, names, x=label, y=value, series=series, heading=heading))


def _require(frame: pd.DataFrame, *columns: str) -> None:
    require_columns(frame, columns, "This figure needs")


def _names(frame: pd.DataFrame, column: str) -> list[str]:
    return list(dict.fromkeys(frame[column].astype(str)))


def _legend_px(names: list[str]) -> int:
    """The height of a legend above the plot: plotly sets its entries in columns as wide as the widest."""
    columns = max(1, 560 // (7 * max(len(name) for name in names) + 45))
    return 10 + 20 * -(-len(names) // columns)


def _lay_out(figure: go.Figure, top: int, x_title: str, y_title: str) -> None:
    figure.update_layout(
        height=top + _BODY,
        margin={"l": 72, "r": 16, "t": top, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        showlegend=True,
        hovermode="closest",
        xaxis={"title": axis_title(x_title)},
        yaxis={"title": axis_title(y_title)},
    )


def _summary(frame: pd.DataFrame, names: list[str], *, x: str, y: str, series: str, heading: str) -> str:
    said = []
    for name in names:
        rows: Any = frame.loc[frame[series].astype(str) == name]
        first, last = rows.iloc[0], rows.iloc[-1]
        said.append(f"{name} goes from {first[y]:.3g} at {first[x]} to {last[y]:.3g} at {last[x]}")
    return f"{heading}: {'; '.join(said)}."
