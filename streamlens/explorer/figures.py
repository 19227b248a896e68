"""The figures of an answer, as plain data without what the page decides: theme and width."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamlens import plots, theme
from streamlens.explorer.engine import Answer
from streamlens.plots.axes import step_axis

#: what the page needs to put a theme on a figure
THEMES = {
    name: {
        "template": theme.template(dark=dark),
        "scales": {scale: theme.scale(scale, dark=dark) for scale in (*theme.SIGN_COLOURS, "sequential")},
    }
    for name, dark in (("light", False), ("dark", True))
}


def plain(figure: go.Figure) -> dict[str, Any]:
    """A figure's data and layout, as JSON would hold them, without template and width."""
    found = json.loads(str(figure.to_json(engine="json")))
    for name in ("template", "width"):
        found["layout"].pop(name, None)
    return {"data": found["data"], "layout": found["layout"]}


def changed(answer: Answer) -> Mapping[str, dict[str, Any] | None]:
    """What the edits did: `downstream` and `effects`; None for both without edits."""
    if answer.effects is None:
        return {"downstream": None, "effects": None}
    drawn = plots.downstream(answer.writes, reader=answer.reader or None)
    # one bar, whose label would name every edit; the headline of `downstream` does
    effects = answer.effects.assign(variant="the edit")
    return {"downstream": plain(drawn), "effects": plain(plots.effects(effects))}


def stream(answer: Answer) -> Mapping[str, dict[str, Any] | None]:
    """The stream of the run that is shown: `contributions` (None without a reader) and `growth`."""
    parts = None
    if answer.parts is not None:
        # no room for dozens of rows beside the column; what is not drawn is one bar
        parts = plain(plots.contributions(answer.parts, top=12, reader=answer.reader))
    return {"contributions": parts, "growth": plain(_growth(answer))}


def compared(frame: pd.DataFrame, answer: Answer) -> dict[str, Any]:
    """The comparison with a second prompt."""
    return plain(plots.comparison(frame, top=12, reader=answer.reader or None))


def _growth(answer: Answer) -> go.Figure:
    frame = answer.growth
    figure = plots.curves(
        frame,
        x="step",
        y="norm",
        series="series",
        heading="Norm of the stream after every write",
        says="At the picked token, on a log axis.",
        x_title="after this write",
        y_title="norm (log scale)",
        log_y=True,
        dashed=("clean",) if answer.effects is not None else (),
    )
    steps = frame.loc[frame["series"] == "clean", "component"].tolist()
    figure.update_xaxes(step_axis(steps))
    hover = "after %{customdata}: %{y:,.4~g}<extra>%{fullData.name}</extra>"
    return figure.update_traces(customdata=steps, hovertemplate=hover)
