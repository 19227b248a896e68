"""Many prompts at once: which components write most along a reader, and what zeroing them does.

1. The components with the largest mean size get a row each, in stream order from the bottom up.
2. Left, their mean contribution with the standard deviation over the prompts. Right, where the batch has ablations, the
   mean total effect of zeroing them, and the correlation of direct and total effect over the prompts.
3. The summary for screen readers names the largest.
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import display_token, plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.axes import row_axis
from streamlens.plots.finish import axis_title, label_margin, styled, titled
from streamlens.plots.selection import need

__all__ = ["corpus"]

_ROW = 18  # px


@typed
def corpus(
    frame: pd.DataFrame,
    *,
    reader: str | None = None,
    role: str | None = None,
    top: int = 20,
    dark: bool = False,
) -> go.Figure:
    """Bars of mean contributions over prompts, and beside them of mean effects where the frame has any.

    Args:
        frame: a frame of `streamlens.batch.corpus(results)`.
        reader: may be left out when the frame holds one reader.
        role: may be left out when the frame holds one role.
        top: components that get a row.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    rows, reader = _only(frame, "reader", reader)
    rows, role = _only(rows, "role", role)
    largest: Any = rows.nlargest(top, "size").sort_values("order")
    labels = [str(label) for label in largest["component"]]
    effects = bool(largest["effect"].notna().any())
    unit = visible(str(largest["unit"].iloc[0]))
    figure = go.Figure()
    _bars(figure, largest["mean"], largest["std"], labels, unit, axis="", name="mean contribution")
    if effects:
        said = [_r(value) for value in largest["correlation"]]
        _bars(figure, largest["effect"], largest["effect_std"], labels, unit, axis="2", name="mean effect", said=said)
    n, together = int(largest["n"].max()), frame.attrs.get("correlation", {}).get(f"{role} | {reader}")
    agree = f" All components together: {_r(together)}." if together is not None and np.isfinite(together) else ""
    height = titled(
        figure,
        f"What writes along {reader} at {display_token(role)}",
        f"Means over {n:,} tokens, one a prompt; lines are standard deviations.",
        f"Right: r is the correlation of direct and total effect over the prompts.{agree}" if effects else "",
    )
    _lay_out(figure, labels, unit, height, effects)
    return styled(figure, dark, summary=_summary(largest, reader, role, unit, n))


def _r(value: float) -> str:
    """`r = −0.32`; nothing where it is not known."""
    return f"r = {value:.2f}".replace("-", "−") if np.isfinite(value) else ""


def _only(frame: pd.DataFrame, column: str, wanted: str | None) -> tuple[Any, str]:
    need(frame, column)
    there = [str(value) for value in dict.fromkeys(frame[column].astype(str))]
    if wanted is None and len(there) == 1:
        wanted = there[0]
    if wanted not in there:
        said = "several" if wanted is None else repr(wanted)
        raise InputError(f"A figure shows one {column} of {', '.join(there)}; got {said}.", hint=f"{column}=...")
    return frame[frame[column].astype(str) == wanted], wanted


def _bars(
    figure: go.Figure,
    values: pd.Series,
    spread: pd.Series,
    labels: list[str],
    unit: str,
    *,
    axis: str,
    name: str,
    said: list[str] | None = None,
) -> None:
    sizes = values.to_numpy(dtype="float64")
    adds, subtracts = theme.SIGN_COLOURS["RdBu"]
    figure.add_bar(
        orientation="h",
        name=name,
        x=[None if np.isnan(size) else float(size) for size in sizes],
        y=list(range(len(labels))),
        xaxis=f"x{axis}",
        width=0.72,
        marker={"color": [adds if size >= 0 else subtracts for size in sizes], "line": {"width": 0}},
        error_x={
            "type": "data",
            "array": [0.0 if np.isnan(s) else float(s) for s in spread.to_numpy(dtype="float64")],
            "color": theme.NEUTRAL,
            "thickness": 1,
            "width": 2,
        },
        customdata=[
            [plotly_escape(label), text] for label, text in zip(labels, said or [""] * len(labels), strict=True)
        ],
        hovertemplate=f"%{{customdata[0]}}: %{{x:+.4~g}} {unit} %{{customdata[1]}}<extra></extra>",
        showlegend=False,
    )
    for place, text in enumerate(said or []):
        figure.add_annotation(
            x=1,
            xref="x2 domain",
            y=place,
            yref="y",
            text=text,
            showarrow=False,
            xanchor="left",
            xshift=4,
            font={"size": 11},
        )


def _lay_out(figure: go.Figure, labels: list[str], unit: str, title_px: int, effects: bool) -> None:
    top = title_px + 16
    figure.update_layout(
        height=top + _ROW * len(labels) + 52,
        margin={"l": label_margin(labels), "r": 70 if effects else 16, "t": top, "b": 52},
        bargap=0.28,
        xaxis={
            "title": axis_title(f"mean contribution, {unit}"),
            "domain": [0, 0.48 if effects else 1],
            "zeroline": True,
        },
        yaxis=row_axis(labels),
    )
    if effects:
        title = axis_title(f"mean effect of zeroing, ablated − clean, {unit}")
        figure.update_layout(xaxis2={"title": title, "domain": [0.52, 1], "zeroline": True, "anchor": "y"})


def _summary(rows: Any, reader: str, role: str, unit: str, n: int) -> str:
    first = rows.nlargest(3, "size")
    named = ", ".join(f"{c} {m:+.2f}" for c, m in zip(first["component"], first["mean"], strict=True))
    return f"Mean contributions to {reader} at {display_token(role)} over {n} prompts, in {unit}; the largest: {named}."
