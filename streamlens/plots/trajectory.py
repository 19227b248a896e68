"""The stream's path through the layers: as a line in a plane, and as lengths and angles by depth.

1. `trajectory`: one token's path along its two main directions, one point per sublayer, coloured by layer, its start
   and end marked. Both axes have one scale, so that lengths and angles in the plane are true.
2. `geometry`: how long each write is beside the stream it is added to, on a log axis, and the cosine of the two, above
   0 where it reinforces, below where it cancels. Attention and MLP have a line each. All tokens' median, sinks left
   out, or one token.
"""

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape
from streamlens.plots.axes import step_axis
from streamlens.plots.finish import axis_title, styled, titled
from streamlens.plots.selection import closing_line, components, pick, prompt_line, tokens

__all__ = ["geometry", "trajectory"]

_BODY = 460  # px below the title
_LINES = ("#3b82c4", "#cf7a1f", "#8d6fc0", "#2f9488")  # read on both backgrounds


@typed
def trajectory(
    frame: pd.DataFrame, *, position: int | None = None, prompt_id: int | None = None, dark: bool = False
) -> go.Figure:
    """One token's path in the plane of its two main directions.

    Args:
        frame: a trajectory's frame.
        position: which token; None is the last, a negative one counts from the end.
        prompt_id: may be left out when the frame holds one prompt.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    chosen = pick(frame, value="plane_x", prompt_id=prompt_id)
    rows: Any = chosen.at(position)
    token = tokens(rows)[0]
    x, y = ([float(v) for v in rows[name]] for name in ("plane_x", "plane_y"))
    labels = [str(label) for label in rows["component"]]
    layers = [-1 if layer is pd.NA else int(layer) for layer in rows["layer"]]
    figure = go.Figure()
    figure.add_scatter(x=x, y=y, mode="lines", line={"color": theme.NEUTRAL, "width": 1}, hoverinfo="skip")
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        marker={
            "size": 8,
            "color": [max(layer, 0) for layer in layers],
            "colorscale": _by_layer(),
            "cmin": 0,
            "cmax": max(max(layers), 1),
            "colorbar": {
                "title": {"text": "layer", "side": "right", "font": {"size": 12}},
                "outlinewidth": 0,
                "thickness": 9,
            },
        },
        customdata=[[label, f"{norm:,.4g}"] for label, norm in zip(labels, rows["norm"], strict=True)],
        hovertemplate="after %{customdata[0]}<br>norm %{customdata[1]}<extra></extra>",
    )
    _mark_ends(figure, x, y, labels)
    share = float(rows["plane_share"].iloc[0])
    height = titled(
        figure,
        f"Path of the stream at {token.place}",
        prompt_line(chosen),
        "One point after every sublayer, blue to orange by layer. The plane of the two directions in which this path "
        f"varies most; it holds {share:.0%} of its variance.",
        closing_line(chosen),
    )
    figure.update_layout(
        height=height + _BODY,
        margin={"l": 64, "r": 16, "t": height + 8, "b": 48},
        showlegend=False,
        xaxis={"title": axis_title("along the first main direction"), "zeroline": False},
        yaxis={"title": axis_title("along the second"), "zeroline": False, "scaleanchor": "x"},
    )
    summary = (
        f"The path of the stream at {token.place} from {labels[0]} to {labels[-1]}, {len(labels)} points; the plane "
        f"holds {share:.0%} of its variance. Norm {float(rows['norm'].iloc[0]):,.3g} at the start, "
        f"{float(rows['norm'].iloc[-1]):,.3g} at the end."
    )
    return styled(figure, dark, summary=summary)


def _by_layer() -> list[list]:
    colours = theme.position_colours(9)
    return [[n / 8, colour] for n, colour in enumerate(colours)]


def _mark_ends(figure: go.Figure, x: list[float], y: list[float], labels: list[str]) -> None:
    for name, at, symbol in (("start", 0, "square"), ("end", len(x) - 1, "star")):
        figure.add_scatter(
            x=[x[at]],
            y=[y[at]],
            mode="markers+text",
            text=[plotly_escape(f" {name}: {labels[at]} ")],
            textposition="top center",
            marker={"symbol": symbol, "size": 14, "color": "#d1495b", "line": {"color": "#ffffff", "width": 1}},
            hoverinfo="skip",
        )


@typed
def geometry(
    frame: pd.DataFrame, *, position: int | None = None, prompt_id: int | None = None, dark: bool = False
) -> go.Figure:
    """Length of every write relative to the stream, and its cosine with it, by depth.

    Args:
        frame: a trajectory's frame.
        position: one token; None for the median over all that are no sinks.
        prompt_id: may be left out when the frame holds one prompt.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    chosen = pick(frame, value="step", prompt_id=prompt_id)
    rows: Any = chosen.rows.loc[~chosen.rows["sink"]] if position is None else chosen.at(position)
    known = tokens(rows)
    where = f"median of {len(known)} tokens, sinks left out" if position is None else f"at {known[0].place}"
    steps = components(rows)
    table = rows.groupby(rows["component"].astype(str), sort=False)[["step", "cosine_stream"]].median()
    kinds = dict(zip(rows["component"].astype(str), rows["kind"].astype(str), strict=True))
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    branches = list(dict.fromkeys(kinds[label] for label in steps if pd.notna(table["step"][label])))
    for kind, colour in zip(branches, _LINES * len(branches), strict=False):
        own = [n for n, label in enumerate(steps) if kinds[label] == kind and pd.notna(table["step"][label])]
        for row, name in enumerate(("step", "cosine_stream"), start=1):
            figure.add_scatter(
                row=row,
                col=1,
                x=own,
                y=[float(table[name][steps[n]]) for n in own],
                mode="lines+markers",
                name=plotly_escape(kind),
                legendgroup=kind,
                showlegend=row == 1,
                line={"color": colour, "width": 1.5},
                marker={"size": 5, "color": colour},
                customdata=[[steps[n]] for n in own],
                hovertemplate="%{customdata[0]}: %{y:.3f}<extra></extra>",
            )
    height = titled(
        figure,
        "How far each write moves the stream, and which way",
        prompt_line(chosen),
        f"Above: length of the write over that of the stream before it. Below: their cosine; {where}.",
        closing_line(chosen),
    )
    _axes(figure, steps, height)
    longest = table["step"].idxmax()
    against = int((table["cosine_stream"] < 0).sum())
    summary = (
        f"The longest write beside its stream is {longest}, {float(table['step'].max()):.3g} times; {against} of "
        f"{int(table['cosine_stream'].notna().sum())} point against the stream ({where})."
    )
    return styled(figure, dark, summary=summary)


def _axes(figure: go.Figure, steps: list[str], height: int) -> None:
    shared = step_axis(steps)
    top = height + 34
    figure.update_layout(
        height=top + 500,
        margin={"l": 64, "r": 16, "t": top, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        xaxis=shared,
        xaxis2={**shared, "title": axis_title("write")},
        yaxis={"title": axis_title("length / stream (log scale)"), "type": "log", "dtick": "D2", "zeroline": False},
        yaxis2={"title": axis_title("cosine (below 0 cancels)"), "zeroline": True},
    )
