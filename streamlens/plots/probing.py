"""How well a probe reads a word after every write, beside its controls.

1. The held-out accuracy, a point after each write, the best one marked.
2. The shuffled labels: their mean, and a band from the smallest to the largest.
3. Level lines: the bag of context, and chance with its 95 percent interval.
"""

import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import display_token, plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.axes import step_axis
from streamlens.plots.finish import axis_title, styled, titled

__all__ = ["probe_depth"]

OWN, SHUFFLED, CONTEXT = "#3b82c4", "#8d6fc0", "#cf7a1f"
_BAND = "rgba(141,111,192,0.22)"
_CHANCE = "rgba(127,135,147,0.20)"
_BODY = 400  # px below the title


@typed
def probe_depth(frame: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Held-out accuracy after every write, with shuffled labels, the bag of context and chance.

    Args:
        frame: a probe frame, of `probe(...).to_frame()`.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a frame that is no probe frame.
    """
    if "shuffled" not in frame.columns or frame.empty:
        raise InputError("this figure draws a probe frame, of `probe(...).to_frame()`; this is none.")
    steps = [str(label) for label in frame["component"]]
    values = {name: frame[name].astype("float64").tolist() for name in ("accuracy", "shuffled")}
    one = {name: float(frame[name].iloc[0]) for name in ("context", "chance", "chance_low", "chance_high")}
    best = max(range(len(steps)), key=lambda n: values["accuracy"][n])
    figure = go.Figure()
    _levels(figure, len(steps), one)
    _shuffled(figure, frame, steps)
    figure.add_scatter(
        mode="lines+markers",
        name="held-out accuracy",
        x=list(range(len(steps))),
        y=values["accuracy"],
        line={"color": OWN, "width": 2},
        marker={
            "size": [11 if n == best else 5 for n in range(len(steps))],
            "color": OWN,
            "opacity": 1,
            "line": {"width": 0},
        },
        customdata=[[plotly_escape(label)] for label in steps],
        hovertemplate="after %{customdata[0]}: %{y:.1%}<extra></extra>",
    )
    token, method = display_token(str(frame.attrs.get("token") or "the token")), str(frame["method"].iloc[0])
    train, held = int(frame["train"].iloc[0]), int(frame["held_out"].iloc[0])
    top = values["accuracy"][best]
    height = titled(
        figure,
        f"Probe at {token}: {top:.1%} after {steps[best]}",
        f"Share right of {held} held-out sentences ({method.replace('_', ' ')}, fitted to {train} others).",
        f"Bag of context {one['context']:.1%}. Bands: the range of the shuffles, and 95 % of chance.",
        visible(str(frame.attrs.get("model") or "")),
    )
    _lay_out(figure, steps, title_px=height)
    low, high = min(values["shuffled"]), max(values["shuffled"])
    summary = (
        f"Held-out accuracy of a probe at {token}: {values['accuracy'][0]:.1%} after {steps[0]}, best {top:.1%} after "
        f"{steps[best]}, {values['accuracy'][-1]:.1%} after {steps[-1]}. Shuffled labels {low:.1%} to {high:.1%} on "
        f"average, bag of context {one['context']:.1%}, chance {one['chance']:.1%}."
    )
    return styled(figure, dark, summary=summary)


def _levels(figure: go.Figure, count: int, one: dict[str, float]) -> None:
    """Chance with its interval, and the bag of context, over the whole width."""
    across = [-0.6, count - 0.4]
    figure.add_hrect(y0=one["chance_low"], y1=one["chance_high"], fillcolor=_CHANCE, line_width=0, layer="below")
    for name, level, colour, dash in (
        ("bag of context", one["context"], CONTEXT, "dash"),
        ("chance", one["chance"], theme.NEUTRAL, "dot"),
    ):
        figure.add_scatter(
            mode="lines",
            name=name,
            x=across,
            y=[level, level],
            line={"color": colour, "width": 1.8, "dash": dash},
            hovertemplate=f"{name} %{{y:.1%}}<extra></extra>",
        )


def _shuffled(figure: go.Figure, frame: pd.DataFrame, steps: list[str]) -> None:
    low, high = (frame[name].astype("float64").tolist() for name in ("shuffled_low", "shuffled_high"))
    x = list(range(len(steps)))
    figure.add_scatter(
        mode="lines",
        x=[*x, *reversed(x)],
        y=[*high, *reversed(low)],
        fill="toself",
        fillcolor=_BAND,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_scatter(
        mode="lines",
        name="shuffled labels",
        x=x,
        y=frame["shuffled"].astype("float64").tolist(),
        line={"color": SHUFFLED, "width": 1.5},
        customdata=[
            [plotly_escape(label), f"{a:.1%} to {b:.1%}"] for label, a, b in zip(steps, low, high, strict=True)
        ],
        hovertemplate="shuffled, after %{customdata[0]}: %{y:.1%} (%{customdata[1]})<extra></extra>",
    )


def _lay_out(figure: go.Figure, steps: list[str], *, title_px: int) -> None:
    figure.update_layout(
        height=title_px + _BODY,
        margin={"l": 64, "r": 16, "t": title_px + 8, "b": 48},
        legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top", "traceorder": "reversed"},
        hovermode="closest",
        xaxis={**step_axis(steps, title="after this write"), "showgrid": False},
        yaxis={
            "title": axis_title("share right"),
            "tickformat": ".0%",
            "range": [0, 1.04],
            "zeroline": False,
        },
    )
