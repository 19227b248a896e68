"""What depth does to a change of the stream, and to the model when its steps are longer or shorter.

1. `amplification`: the largest growth that any direction sees up to each sublayer, beside that of a random direction,
   and below beside the product of the sublayers' largest singular values, which bounds it. Log axes.
2. `perturbation`: how far a real change ends up from the linear prediction, by its size, after some of the sublayers.
3. `scaled_steps`: the loss and the divergence from the model as it is, against the factor h of every write.
"""

import math
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

__all__ = ["amplification", "perturbation", "scaled_steps"]

_BODY = 420  # px below the title
_LINES = ("#3b82c4", "#cf7a1f", "#8d6fc0", "#2f9488", "#d1495b")  # read on both backgrounds
_GROWTH = {
    "bound": ("product of the largest values (bound)", theme.NEUTRAL, "dash"),
    "reached": ("largest value of the product", "#3b82c4", "solid"),
    "rms": ("a random direction", "#cf7a1f", "solid"),
}


@typed
def amplification(frame: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Growth of a change of the stream by depth: the direction that grows most, a random one, and the bound.

    Args:
        frame: a Jacobian's frame.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: not such a frame, or one of several prompts.
    """
    rows = _require(frame, "reached", "a Jacobian's frame")
    steps = [str(label) for label in rows["component"]]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for row, names in enumerate((("reached", "rms"), ("bound", "reached")), start=1):
        for name in names:
            if rows[name].notna().any():
                figure.add_trace(_growth(rows, steps, name, legend=row == 1 or name == "bound"), row=row, col=1)
    first, last = str(rows["start"].iloc[0]), steps[-1]
    end = rows.iloc[-1]
    closure = frame.attrs.get("jacobian_closure")
    height = titled(
        figure,
        f"How much a change of the stream at {_place(rows)} grows",
        _prompt(frame),
        f"Singular values of the Jacobian from {first} to each sublayer, the other positions held. Below, the same "
        "beside the product of the sublayers' own largest values, which bounds it.",
        "" if closure is None else _closing(frame.attrs.get("others"), closure),
    )
    _by_depth(figure, steps, height, decades=math.log10(max(1.0, float(rows["bound"].max()))))
    summary = (
        f"From {first} to {last} the direction that grows most grows {float(end['reached']):,.4g} times; the product "
        f"of the sublayers' largest singular values is {float(end['bound']):.2g}."
    )
    return styled(figure, dark, summary=summary)


def _closing(others: object, closure: float) -> str:
    if others == "free":
        return f"The product over the sublayers and the whole Jacobian, others free, differ by {closure:.1e} of it"
    return f"The product over the sublayers is the whole Jacobian within {closure:.1e} of it"


def _growth(rows: Any, steps: list[str], name: str, *, legend: bool) -> go.Scatter:
    said, colour, dash = _GROWTH[name]
    return go.Scatter(
        x=list(range(len(steps))),
        y=[float(value) for value in rows[name]],
        mode="lines+markers",
        name=said,
        showlegend=legend,
        line={"color": colour, "width": 2, "dash": dash},
        marker={"size": 4, "color": colour},
        customdata=[[plotly_escape(step)] for step in steps],
        hovertemplate="%{customdata[0]}: %{y:.4~g}<extra></extra>",
    )


@typed
def perturbation(frame: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """How far a real change is from its linear prediction, by size, after sublayers spread over the depth.

    Args:
        frame: a perturbation's frame.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: not such a frame, or one of several prompts.
    """
    rows = _require(frame, "error", "a perturbation's frame")
    steps = [str(label) for label in dict.fromkeys(rows["component"].astype(str))]
    last = len(steps) - 1
    shown = sorted({1, *(round(last * part / 4) for part in (1, 2, 3, 4))} & set(range(1, last + 1)))
    figure = go.Figure()
    for number, colour in zip(shown, theme.position_colours(len(shown)), strict=True):
        own: Any = rows.loc[rows["order"] == number]
        figure.add_scatter(
            x=[float(size) for size in own["size"]],
            y=[float(error) for error in own["error"]],
            mode="lines+markers",
            name=plotly_escape(f"after {steps[number]}"),
            line={"color": colour, "width": 2},
            marker={"size": 6, "color": colour},
            hovertemplate="size %{x:.3~g}: off by %{y:.3~g} of the prediction<extra></extra>",
        )
    how = {"random": "a random direction", "top": "the direction that grows most"}
    what = how.get(str(rows["direction"].iloc[0]), "a direction")
    end: Any = rows.loc[rows["order"] == last]
    height = titled(
        figure,
        f"Where a change of the stream at {_place(rows)} stops being linear",
        _prompt(frame),
        f"|real change − Jacobian times it| / |Jacobian times it|, for {what} added after {rows['start'].iloc[0]}, by "
        "its length relative to the stream's.",
        "At 1 the prediction says nothing. Float32 roundings lift the left end.",
    )
    _frame(figure, height)
    figure.update_layout(
        xaxis={
            "title": axis_title("size of the change, relative to the stream (log scale)"),
            "type": "log",
            "dtick": 1,
            "tickformat": "~g",
        },
        yaxis={"title": axis_title("distance from linear (log scale)"), "type": "log", "dtick": 1, "tickformat": "~g"},
    )
    said = ", ".join(f"{float(row['size']):g}: {float(row['error']):.2g}" for _, row in end.iterrows())
    return styled(
        figure, dark, summary=f"Relative distance from the linear prediction after {steps[last]} by size: {said}."
    )


@typed
def scaled_steps(frame: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Loss and divergence against the factor of every write; a line for each number of calls.

    Args:
        frame: a frame of scaled steps.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: not such a frame, or one of several prompts.
    """
    rows = _require(frame, "h", "a frame of scaled steps")
    base = float((rows["loss"] - rows["delta"]).iloc[0])
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    counts = sorted({int(n) for n in rows["calls"]})
    for calls, colour in zip(counts, _LINES * len(counts), strict=False):
        own: Any = rows.loc[rows["calls"] == calls].sort_values("h")
        for row, name in enumerate(("kl", "loss"), start=1):
            figure.add_scatter(
                row=row,
                col=1,
                x=[float(h) for h in own["h"]],
                y=[float(value) if value > 0 else None for value in own[name]],
                mode="lines+markers",
                name="each layer once" if calls == 1 else f"{calls} calls of h / {calls}",
                legendgroup=str(calls),
                showlegend=row == 1,
                line={"color": colour, "width": 2},
                marker={"size": 6, "color": colour},
                customdata=[[plotly_escape(display_token(str(top)))] for top in own["top"]],
                hovertemplate="h = %{x}: %{y:.4~g}<br>says %{customdata[0]}<extra></extra>",
            )
    figure.add_hline(y=base, row=2, col=1, line={"color": theme.NEUTRAL, "width": 1, "dash": "dot"})  # type: ignore[arg-type]
    layers = frame.attrs.get("layers") or []
    which = f"layers {min(layers)} to {max(layers)}" if layers else "the layers"
    height = titled(
        figure,
        "The model when every write is scaled by h",
        _prompt(frame),
        f"Every write of {which} times h: 1 is the model, 0 leaves the embedding. Above: KL from the model's own next "
        f"token at {_place(rows)}, in nats. Below: loss, dotted as it is ({base:.3f} nats per token). Log axes: "
        "no KL is drawn at h = 1.",
    )
    _frame(figure, height + 26)
    figure.update_layout(
        height=height + 26 + 500,
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        xaxis2={"title": axis_title("h, what every write is multiplied by"), "zeroline": False},
        xaxis={"zeroline": False},
        yaxis={"title": axis_title("KL, nats"), "type": "log", "dtick": 1, "tickformat": "~g"},
        yaxis2={"title": axis_title("loss, nats per token"), "type": "log", "dtick": "D2"},
    )
    said = ", ".join(
        f"{float(row['h']):g}: {float(row['loss']):.3f}" for _, row in rows.iterrows() if row["calls"] == 1
    )
    return styled(
        figure, dark, summary=f"Loss in nats per token by h, each layer applied once: {said}; {base:.3f} as it is."
    )


def _require(frame: pd.DataFrame, column: str, what: str) -> Any:
    if column not in frame.columns or not len(frame):
        raise InputError(
            f"this figure draws {what} with a column {column!r}; got {', '.join(map(str, frame.columns))}."
        )
    if "prompt_id" in frame.columns and (held := len(set(frame["prompt_id"]))) > 1:  # their lines would run into one
        raise InputError(f"this figure draws one prompt; this frame holds {held}.")
    return frame


def _place(rows: Any) -> str:
    return f"{display_token(str(rows['token'].iloc[0]))} (position {int(rows['position'].iloc[0])})"


def _prompt(frame: pd.DataFrame) -> str:
    prompts = frame.attrs.get("prompts") or []
    return f"“{visible(str(prompts[0]))[:150]}”" if prompts else ""


def _frame(figure: go.Figure, height: int) -> None:
    figure.update_layout(
        height=height + _BODY,
        margin={"l": 72, "r": 16, "t": height + 8, "b": 48},
        legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"},
    )


def _by_depth(figure: go.Figure, steps: list[str], height: int, *, decades: float) -> None:
    shared = step_axis(steps)
    upwards = {"type": "log", "tickformat": "~g", "zeroline": False, "title": axis_title("growth (log scale)")}
    _frame(figure, height)
    figure.update_layout(
        height=height + 540,
        xaxis=shared,
        xaxis2={**shared, "title": axis_title("up to this sublayer")},
        yaxis={**upwards, "dtick": 1},
        yaxis2={**upwards, "dtick": max(1, round(decades / 8))},
    )
