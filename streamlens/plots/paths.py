"""Where the gradient is, by path length, beside where the paths are.

1. Per length, bars of each length's norm as a share of all norms, and a line of the share of paths: the binomial.
2. Where single paths were drawn, a second line: number of paths times the norm of one, as Veit et al. 2016 draw it.
3. The title says how much larger the largest length is than the sum of all: the rest cancels.
"""

import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import visible
from streamlens.errors import InputError
from streamlens.plots.finish import SMALL, axis_title, styled, titled
from streamlens.plots.selection import Selection, need, prompt_line

__all__ = ["paths"]

_BODY = 400  # px below the title
_SAYS = {
    "all": "paths through any branches",
    "attn": "all paths, counting attention branches",
    "mlp": "all paths, counting MLP branches",
    "attn only": "paths through attention branches only",
    "mlp only": "paths through MLP branches only",
}


@typed
def paths(frame: pd.DataFrame, *, family: str = "all", dark: bool = False) -> go.Figure:
    """The gradient's norm by path length beside the share of paths.

    Args:
        frame: ``Paths.to_frame()``.
        family: "all", "attn", "mlp", "attn only" or "mlp only".
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a family that the frame does not hold.
    """
    need(frame, "family")
    held = [str(name) for name in frame["family"].drop_duplicates()]
    if family not in held:
        raise InputError(f"a family of paths is one of {', '.join(held)}; got {family!r}.")
    rows = frame.loc[frame["family"].astype(str) == family]
    figure = go.Figure()
    figure.add_bar(
        x=rows["length"],
        y=rows["norm_share"],
        name="norm of what the paths of a length bring",
        marker={"color": theme.SIGN_COLOURS["RdBu"][0], "opacity": 0.8, "line": {"width": 0}},
        customdata=rows[["norm", "share"]],
        hovertemplate="length %{x}: norm %{customdata[0]:.4~g}, %{y:.1%} of all norms; signed share of the sum "
        "%{customdata[1]:+.3f}<extra></extra>",
    )
    _line(figure, rows, "path_share", "number of paths", theme.NEUTRAL, dash="solid")
    if rows["single_share"].notna().any():
        _line(figure, rows, "single_share", "number of paths × norm of a single one", "#cf7a1f", dash="dash")
    height = titled(
        figure,
        f"{visible(str(frame.attrs.get('metric') or 'The metric'))}: its gradient by path length",
        _prompt(frame, rows),
        f"Shares of {_SAYS.get(family, family)}. {_cancelling(frame, rows)}",
        _closes(frame),
    )
    figure.update_layout(
        height=height + _BODY,
        margin={"l": 64, "r": 16, "t": height + 8, "b": 48},
        legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top", "font": {"size": SMALL}},
        bargap=0.25,
        xaxis={"title": axis_title("branches that the path goes through"), "zeroline": False},
        yaxis={"title": axis_title("share"), "tickformat": ".0%", "rangemode": "tozero", "zeroline": False},
    )
    return styled(figure, dark, summary=_summary(rows, family))


def _line(figure: go.Figure, rows: pd.DataFrame, column: str, name: str, colour: str, *, dash: str) -> None:
    figure.add_scatter(
        x=rows["length"],
        y=rows[column],
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 1.8, "dash": dash},
        marker={"size": 4, "color": colour},
        hovertemplate=f"length %{{x}}: {name} %{{y:.1%}}<extra></extra>",
    )


def _prompt(frame: pd.DataFrame, rows: pd.DataFrame) -> str:
    prompts = frame.attrs.get("prompts")
    if not prompts:
        return ""
    blank = {"reader": "", "unit": "", "model": "", "closure": None, "sum_error": None}
    return prompt_line(Selection(rows=rows, prompt=str(prompts[0]), **blank))


def _cancelling(frame: pd.DataFrame, rows: pd.DataFrame) -> str:
    size = frame.attrs.get("sums", {}).get(str(rows["family"].iloc[0]))
    if not size:
        return ""
    return f"The largest length brings a norm of {rows['norm'].max():,.3g}; the sum of all has {size:,.3g}."


def _closes(frame: pd.DataFrame) -> str:
    size = frame.attrs.get("paths_closure")
    closes = "" if size is None else f"Lengths sum to autograd's gradient within {size:.1e} of it"
    return " · ".join(part for part in (closes, visible(str(frame.attrs.get("model") or ""))) if part)


def _summary(rows: pd.DataFrame, family: str) -> str:
    def middle(column: str) -> float:
        weights = rows[column].to_numpy()
        return float(rows["length"].to_numpy() @ weights / max(weights.sum(), 1e-300))

    return (
        f"Of {_SAYS.get(family, family)}, the mean length is {middle('path_share'):.1f} by number and "
        f"{middle('norm_share'):.1f} by the norm of what they bring."
    )
