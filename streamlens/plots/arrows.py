"""A stream of two coordinates as a walk in the plane: each write is an arrow from where the last one ended.

1. One chain of arrows for each series, all from their own start; equal scales on both axes.
2. Each end of an arrow is labelled with the write and the point it leads to.
"""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape
from streamlens.plots.finish import axis_title, require_columns, styled, titled

__all__ = ["arrows"]

_BODY = 460  # px below the title
COLUMNS = ("series", "step", "x", "y")


@typed
def arrows(frame: pd.DataFrame, *, heading: str, says: str = "", dark: bool = False) -> go.Figure:
    """Chains of arrows in the plane.

    Args:
        frame: one point a row, in the order of the walk: ``series``, ``step`` (what led there), ``x``, ``y``.
        heading: the title.
        says: a sentence under it.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: the frame lacks a column.
    """
    require_columns(frame, COLUMNS, "A walk has")
    names = list(dict.fromkeys(frame["series"].astype(str)))
    figure = go.Figure()
    ends = []
    for number, (name, colour) in enumerate(zip(names, theme.position_colours(len(names)), strict=True)):
        steps, points = _walk(frame.loc[frame["series"].astype(str) == name])
        # chains that share a stretch lie on each other: the first is the widest, so that all are seen
        width = 2.0 + 2.5 * (len(names) - 1 - number)
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="lines+markers",
            name=plotly_escape(name),
            line={"color": colour, "width": width},
            marker={
                "size": [width + 5, *[width + 11] * (len(points) - 1)],
                "symbol": ["circle", *["arrow"] * (len(points) - 1)],
                "angleref": "previous",
                "color": colour,
                "opacity": 1.0,
                "line": {"width": 0},
            },
            customdata=steps,
            hovertemplate="%{customdata}: (%{x:.4~g}, %{y:.4~g})<extra>%{fullData.name}</extra>",
        )
        ends.append(f"{name} ends at ({points[-1][0]:.4g}, {points[-1][1]:.4g})")
    for x, y in _labelled(frame):
        label = {"text": f"({x:.4g}, {y:.4g})", "font": {"size": 11}}
        figure.add_annotation(x=x, y=y, showarrow=False, xshift=26, yshift=16, **label)
    height = titled(figure, heading, says)
    figure.update_layout(
        height=height + 30 + _BODY,
        margin={"l": 56, "r": 16, "t": height + 30, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        showlegend=True,
        hovermode="closest",
        xaxis={"title": axis_title("first coordinate"), "range": _range(frame, "x"), "constrain": "domain"},
        yaxis={"title": axis_title("second coordinate"), "range": _range(frame, "y"), "scaleanchor": "x"},
    )
    return styled(figure, dark, summary=f"{heading}: {'; '.join(ends)}.")


def _walk(rows: pd.DataFrame) -> tuple[list[str], list[tuple[float, float]]]:
    """What led where; a step that goes nowhere has no arrow."""
    steps, points = [], []
    for step, x, y in zip(rows["step"], rows["x"], rows["y"], strict=True):
        if not points or points[-1] != (float(x), float(y)):
            steps.append(plotly_escape(str(step)))
            points.append((float(x), float(y)))
    return steps, points


def _labelled(frame: pd.DataFrame) -> list[tuple[float, float]]:
    """The points with a label: each chain's ends first, then the others as far as they lie apart."""
    chains = [_walk(rows)[1] for _, rows in frame.groupby(frame["series"].astype(str), sort=False)]
    ends = [point for chain in chains for point in (chain[0], chain[-1])]
    apart = 0.2 * max(float(np.ptp(frame[axis].to_numpy(dtype="float64"))) for axis in ("x", "y"))
    kept: list[tuple[float, float]] = []
    for x, y in [*ends, *(point for chain in chains for point in chain)]:
        if all(abs(x - a) > apart or abs(y - b) > apart for a, b in kept):
            kept.append((x, y))
    return kept


def _range(frame: pd.DataFrame, column: str) -> list[float]:
    """From the smallest to the largest with room for the labels, zero included."""
    values = frame[column].to_numpy(dtype="float64")
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    pad = 0.18 * (high - low or 1.0)
    return [low - pad, high + 1.6 * pad]
