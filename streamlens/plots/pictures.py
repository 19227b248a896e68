"""Small images side by side on one signed scale, such as a blurred image, its correction, and their sum.

1. Each image is a heatmap; all share one scale, symmetric about 0, so that they can be added by eye.
2. Images of few pixels carry their numbers.
"""

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from streamlens.arguments import typed
from streamlens.display import plotly_escape
from streamlens.plots.finish import require_columns, styled, titled

__all__ = ["pictures"]

_BODY = 220  # px below the title
_NUMBERED = 32  # pixels up to which each is written out
COLUMNS = ("image", "row", "column", "value")


@typed
def pictures(frame: pd.DataFrame, *, heading: str, says: str = "", dark: bool = False) -> go.Figure:
    """Images in the order of the frame.

    Args:
        frame: one pixel a row: ``image``, ``row`` (0 at the top), ``column``, ``value``.
        heading: the title.
        says: a sentence under it.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: the frame lacks a column.
    """
    require_columns(frame, COLUMNS, "Pictures have")
    names = list(dict.fromkeys(frame["image"].astype(str)))
    figure = make_subplots(cols=len(names), subplot_titles=[plotly_escape(name) for name in names])
    for number, name in enumerate(names, 1):
        rows = frame.loc[frame["image"].astype(str) == name]
        pixels = rows.pivot_table(index="row", columns="column", values="value", aggfunc="sum").to_numpy()
        figure.add_trace(
            go.Heatmap(
                z=pixels.tolist(),
                coloraxis="coloraxis",
                texttemplate="%{z:.3f}" if pixels.size <= _NUMBERED else None,
                hovertemplate="row %{y}, column %{x}: %{z:.3f}<extra></extra>",
                xgap=1,
                ygap=1,
            ),
            row=1,
            col=number,
        )
    figure.update_xaxes(showticklabels=False, showgrid=False, zeroline=False, constrain="domain")
    figure.update_yaxes(showticklabels=False, showgrid=False, zeroline=False, autorange="reversed", constrain="domain")
    for number in range(1, len(names) + 1):
        figure.update_yaxes(scaleanchor="x" if number == 1 else f"x{number}", col=number)
    height = titled(figure, heading, says)
    values = frame["value"].to_numpy(dtype="float64")
    largest = float(abs(values).max())
    figure.update_layout(
        height=height + _BODY,
        margin={"l": 12, "r": 12, "t": height + 34, "b": 16},
        coloraxis={
            "cmin": -largest,
            "cmax": largest,
            "colorbar": {"title": {"text": "value<br>(blue > 0)", "font": {"size": 11}}, "thickness": 12},
        },
    )
    figure.update_annotations(font={"size": 12})
    said = f"{heading}: {', '.join(names)}; values from {values.min():.3g} to {values.max():.3g}."
    return styled(figure, dark, scale="RdBu", summary=said)
