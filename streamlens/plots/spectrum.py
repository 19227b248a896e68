"""The singular values of a Jacobian: how many directions a change of the stream grows along, and by how much.

1. Above, by rank, largest first: of the whole, start to end, as many as were computed. Log axis; zeros are counted.
2. A line at 1, above which a direction grows, and one at the growth of a random direction where all were computed.
3. Below, by depth: the largest and the smallest of each sublayer's own Jacobian, whose product the whole is.
"""

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import display_token, plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.axes import step_axis
from streamlens.plots.finish import axis_title, styled, titled

__all__ = ["spectrum"]

_OWN = {"largest": ("largest of the sublayer's own", "#8d6fc0"), "smallest": ("smallest of it", "#2f9488")}
_WHOLE = "#3b82c4"
_RANDOM = "#cf7a1f"


@typed
def spectrum(frame: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Singular values of a Jacobian by rank, and the largest and smallest of each sublayer's own by depth.

    Args:
        frame: a Jacobian's frame, of one prompt; its attributes hold the singular values of the whole, which a
            .parquet file keeps and a .csv file does not.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: not such a frame, or one of several prompts.
    """
    values = _values(frame)
    rows: Any = frame
    steps = [str(label) for label in rows["component"]]
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.17)
    figure.add_scatter(
        row=1,
        col=1,
        x=list(range(1, len(values) + 1)),
        y=[value if value > 0 else None for value in values],
        mode="lines+markers" if len(values) <= 100 else "lines",
        name="of the whole, by rank",
        line={"color": _WHOLE, "width": 2},
        marker={"size": 5, "color": _WHOLE},
        hovertemplate="number %{x}: %{y:.4~g}<extra></extra>",
    )
    random = _random(frame)
    if random is not None:
        figure.add_scatter(
            row=1,
            col=1,
            x=[1, len(values)],
            y=[random, random],
            mode="lines",
            name="a random direction, root mean square",
            line={"color": _RANDOM, "width": 1.5, "dash": "dash"},
            hovertemplate="a random direction: %{y:.4~g}<extra></extra>",
        )
    for name, (said, colour) in _OWN.items():
        if rows[name].notna().any():
            figure.add_trace(_by_depth(rows, steps, name, said, colour), row=2, col=1)
    for row in (1, 2):
        figure.add_hline(y=1, row=row, col=1, line={"color": theme.NEUTRAL, "width": 1, "dash": "dot"})  # type: ignore[arg-type]
    start, end = str(frame.attrs.get("start", rows["start"].iloc[0])), str(frame.attrs.get("end", steps[-1]))
    growing = sum(value > 1 for value in values)
    whole = frame.attrs.get("method") == "dense"
    how_many = f"{growing} of {len(values)} directions grow" if whole else f"the {len(values)} largest were computed"
    zeros = sum(value <= 0 for value in values)
    closure = frame.attrs.get("jacobian_closure")
    height = titled(
        figure,
        f"Singular values of the Jacobian from {start} to {end}",
        _prompt(frame),
        f"By how much a small change of the stream at {_place(rows)} grows, along the directions that it stretches "
        f"most: {how_many} (above 1, dotted)." + (f" {zeros} are 0 and not drawn." if zeros else ""),
        "Below: each sublayer's own Jacobian, other positions held."
        + ("" if closure is None else f" Their product and the whole differ by {closure:.1e} of it."),
    )
    _laid_out(figure, steps, height)
    summary = (
        f"From {start} to {end} the largest singular value is {values[0]:,.4g}, the last of {len(values)} is "
        f"{values[-1]:.3g}; {how_many}."
    )
    return styled(figure, dark, summary=summary)


def _values(frame: pd.DataFrame) -> list[float]:
    if "reached" not in frame.columns or not len(frame):
        raise InputError(
            "this figure draws a Jacobian's frame with a column 'reached'; got "
            f"{', '.join(map(str, frame.columns)) or 'no columns'}."
        )
    if (held := len(frame.attrs.get("prompts") or [])) > 1:
        raise InputError(f"the singular values of one prompt are drawn; this frame holds {held} prompts.")
    values = frame.attrs.get("singular_values")
    if not values:
        raise InputError(
            "the singular values of the whole are an attribute of a Jacobian's frame, which this one lacks.",
            hint="a .parquet file keeps it, a .csv file does not.",
        )
    return [float(value) for value in values]


def _random(frame: pd.DataFrame) -> float | None:
    """Growth of a random direction to the end; None where it is of another Jacobian than the whole, or unknown."""
    value = float(frame["rms"].iloc[-1])
    return value if frame.attrs.get("others") == "held" and value > 0 else None


def _by_depth(rows: Any, steps: list[str], name: str, said: str, colour: str) -> go.Scatter:
    return go.Scatter(
        x=list(range(len(steps))),
        y=[float(value) if value > 0 else None for value in rows[name]],
        mode="lines+markers",
        name=said,
        line={"color": colour, "width": 2},
        marker={"size": 4, "color": colour},
        customdata=[[plotly_escape(step)] for step in steps],
        hovertemplate="%{customdata[0]}: %{y:.4~g}<extra></extra>",
    )


def _place(rows: Any) -> str:
    return f"{display_token(str(rows['token'].iloc[0]))} (position {int(rows['position'].iloc[0])})"


def _prompt(frame: pd.DataFrame) -> str:
    prompts = frame.attrs.get("prompts") or []
    return f"“{visible(str(prompts[0]))[:150]}”" if prompts else ""


def _laid_out(figure: go.Figure, steps: list[str], height: int) -> None:
    upwards = {"type": "log", "dtick": 1, "tickformat": "~g", "zeroline": False}
    figure.update_layout(
        height=height + 600,
        margin={"l": 72, "r": 16, "t": height + 8, "b": 48},
        legend={"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top"},
        xaxis={"title": axis_title("number of the singular value, largest first"), "zeroline": False},
        xaxis2=step_axis(steps, title="sublayer"),
        yaxis={**upwards, "title": axis_title("growth (log scale)")},
        yaxis2={**upwards, "title": axis_title("growth (log scale)")},
    )
