"""How the stream's norm grows through the layers.

1. One line per token, one point after every sublayer, on a log axis; of over 200 tokens an even choice.
2. Sinks are dashed: their norm is another order of magnitude and says little about the sentence.
3. Colour runs with the position; a few tokens get a legend, many only their ends and the sinks.
"""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape
from streamlens.plots.axes import step_axis
from streamlens.plots.finish import SMALL, axis_title, styled, titled
from streamlens.plots.selection import Token, closing_line, components, pick, prompt_line, tokens

__all__ = ["norm_growth"]

_LEGEND = 12  # tokens
_LINES = 200  # beyond, an even choice of tokens is drawn and the title says so
_BODY = 440  # px below the title


@typed
def norm_growth(frame: pd.DataFrame, *, prompt_id: int | None = None, dark: bool = False) -> go.Figure:
    """The norm of the stream after every sublayer, one line per token, on a log axis; sinks dashed.

    Args:
        frame: a ledger's frame, with ``stream_norm``.
        prompt_id: may be left out when the frame holds one prompt.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    chosen = pick(frame, value="stream_norm", prompt_id=prompt_id)
    # The row of roundings comes after the last sublayer and writes nothing.
    rows = chosen.rows.loc[chosen.rows["kind"].astype(str) != "rounding"]
    steps, known = components(rows), tokens(rows)
    columns = _spread(known)
    figure = go.Figure()
    for token, colour in zip(columns, theme.position_colours(len(columns)), strict=True):
        line = rows.loc[rows["position"] == token.position]
        figure.add_scatter(**_line(line, steps, token, colour, last=token is columns[-1]))
    _thin_legend(figure, columns)
    height = titled(
        figure,
        "Norm of the residual stream after every sublayer",
        prompt_line(chosen),
        f"{_which(columns, known)}, blue to orange by position, the last thicker"
        + (", sinks dashed." if any(token.sink for token in columns) else "."),
        closing_line(chosen),
    )
    _lay_out(figure, steps, title_px=height)
    return styled(figure, dark, summary=_summary(rows, steps, known))


def _spread(known: list[Token]) -> list[Token]:
    """All tokens, or of very many an even choice with every sink and the last."""
    every = -(-len(known) // _LINES)
    return [token for i, token in enumerate(known) if i % every == 0 or token.sink or token is known[-1]]


def _which(columns: list[Token], known: list[Token]) -> str:
    return "One line per token" if len(columns) == len(known) else f"{len(columns)} of {len(known):,} tokens"


def _line(rows: pd.DataFrame, steps: list[str], token: Token, colour: str, *, last: bool) -> dict:
    """One token's line. Its hover text is data, never part of the template: tokens may hold ``%{...}``."""
    at = {label: i for i, label in enumerate(steps)}
    labels = [str(label) for label in rows["component"]]
    norms = rows["stream_norm"].to_numpy(dtype="float64")
    return {
        "x": [at[label] for label in labels],
        "y": [norm if norm > 0 else None for norm in norms],
        "mode": "lines+markers",
        "name": plotly_escape(token.label),
        "opacity": 1.0 if last or token.sink else 0.75,
        "line": {"color": colour, "width": 2.5 if last else 1.2, "dash": "dash" if token.sink else "solid"},
        "marker": {
            "size": 5 if token.sink else 4,
            "color": colour,
            "symbol": "circle-open" if token.sink else "circle",
        },
        "customdata": [[plotly_escape(token.place), label] for label in labels],
        "hovertemplate": "%{customdata[0]}<br>after %{customdata[1]}: %{y:,.4~g}<extra></extra>",
    }


def _thin_legend(figure: go.Figure, columns: list[Token]) -> None:
    """With many tokens the legend names the first, the last and the sinks."""
    if len(columns) <= _LEGEND:
        return
    traces: Any = figure.data
    for i, trace in enumerate(traces):
        trace.showlegend = i in (0, len(columns) - 1) or columns[i].sink


def _lay_out(figure: go.Figure, steps: list[str], *, title_px: int) -> None:
    figure.update_layout(
        height=title_px + _BODY,
        margin={"l": 64, "r": 16, "t": title_px + 8, "b": 48},
        legend={
            "orientation": "h",
            "x": 0,
            "y": -0.14,  # below the axis title; takes the room it needs from the plot
            "yanchor": "top",
            "font": {"family": theme.MONO, "size": SMALL},
        },
        hovermode="closest",
        xaxis=step_axis(steps, title="after this sublayer"),
        yaxis={
            "title": axis_title("norm (log scale)"),
            "type": "log",
            "dtick": "D2",  # 1, 2, 5
            "zeroline": False,
            "minor": {"showgrid": False},
        },
    )


def _summary(rows: pd.DataFrame, steps: list[str], columns: list[Token]) -> str:
    plain = [token.position for token in columns if not token.sink] or [token.position for token in columns]
    kept: Any = rows.loc[rows["position"].isin(plain)]
    norm = kept.groupby(kept["component"].astype(str))["stream_norm"].median()
    sinks = len(columns) - len(plain)
    aside = f" {sinks} sink{'s' if sinks > 1 else ''} (dashed) left out of the median." if sinks else ""
    return (
        f"The median norm over {len(plain)} tokens goes from {norm[steps[0]]:,.3g} after {steps[0]} to "
        f"{norm[steps[-1]]:,.3g} after {steps[-1]}.{aside}"
    )
