"""How a gradient grows on its way back: the whole of it, and the route that passes no branch.

1. Per depth, one point after every write: the norm over the drawn positions of the total gradient and of the direct
   route, on a log axis where they differ much.
2. What each branch hands back is a triangle at the depth of its write: up and blue where it amplifies what passes it,
   down and red where it cancels some of it.
3. The gradient runs from right to left: from the last write, where the reader is, to the embedding.
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape, visible
from streamlens.plots.axes import step_axis
from streamlens.plots.finish import SMALL, axis_title, styled, titled
from streamlens.plots.selection import Selection, components, pick, prompt_line, signed, tokens

__all__ = ["backward"]

_TOTAL, _DIRECT = "#3b82c4", "#cf7a1f"  # mid-tones, legible on both backgrounds
_BODY = 420  # px below the title
_LOG = 10  # times that the curves differ by before the axis is logarithmic


@typed
def backward(
    frame: pd.DataFrame, *, position: int | None = None, prompt_id: int | None = None, dark: bool = False
) -> go.Figure:
    """The norms of the total gradient and of the direct route at every depth, and what each branch hands back.

    Args:
        frame: ``BackwardLedger.to_frame()``.
        position: one position, a negative one counts from the end; None for the norm over all of them.
        prompt_id: may be left out when the frame holds one prompt.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    chosen = pick(frame, value="gradient", prompt_id=prompt_id)
    rows: Any = chosen.rows if position is None else chosen.at(position)
    where = f"at {tokens(rows)[0].place}" if position is not None else "over all positions"
    writes = rows.loc[~rows["component"].astype(str).isin(["direct", "rounding"])]
    steps = components(writes)
    sizes = _by_depth(writes, steps)
    figure = go.Figure()
    _branches(figure, sizes, steps)
    _curve(figure, sizes["gradient"], steps, "total gradient", _TOTAL, dash="solid")
    _curve(figure, sizes["direct"], steps, "direct route, past every branch", _DIRECT, dash="dash")
    height = titled(
        figure,
        f"{visible(str(frame.attrs.get('metric') or 'The metric'))}: its gradient on the way back",
        prompt_line(chosen),
        f"Norm {where}, at every write, on the way from the reader (right) to the embedding. Triangles: what each "
        "branch hands back, up where it amplifies what passes it, down where it cancels.",
        _closes(frame, chosen),
    )
    curves = sizes[["gradient", "direct"]].to_numpy()
    log = bool(curves.min() > 0 and curves.max() > _LOG * curves.min())
    _lay_out(figure, steps, height, log=log, unit=str(frame.attrs.get("unit") or ""))
    return styled(figure, dark, summary=_summary(sizes, steps, rows, where))


def _by_depth(writes: pd.DataFrame, steps: list[str]) -> Any:
    """Norms over the positions, and the cosine of a branch's contribution and the rest, over them too."""
    label = writes["component"].astype(str)
    columns: Any = writes[["gradient", "direct", "contribution", "alignment"]].astype(float)
    squares = columns[["gradient", "direct", "contribution"]] ** 2
    # each position's cosine counts as much as what the branch hands back there
    squares["aligned"] = columns["alignment"].fillna(0) * squares["contribution"]
    sums: Any = squares.groupby(label).sum().reindex(steps)
    sizes = sums[["gradient", "direct", "contribution"]] ** 0.5
    sizes["alignment"] = sums["aligned"] / sums["contribution"].replace(0, np.nan)
    branch: Any = writes.groupby(label)["branch"].any()
    sizes["branch"] = branch.reindex(steps)
    return sizes


def _branches(figure: go.Figure, sizes: Any, steps: list[str]) -> None:
    adds, subtracts = theme.SIGN_COLOURS["RdBu"]
    for name, colour, sign in (("amplifies", adds, 1), ("cancels", subtracts, -1)):
        mine = [
            (n, label, size, cosine)
            for n, (label, size, cosine, branch) in enumerate(
                zip(steps, sizes["contribution"], sizes["alignment"], sizes["branch"], strict=True)
            )
            if branch and size > 0 and (cosine >= 0) == (sign > 0)
        ]
        figure.add_scatter(
            x=[n for n, _, _, _ in mine],
            y=[size for _, _, size, _ in mine],
            mode="markers",
            name=f"a branch that {name}",
            marker={"color": colour, "size": 8, "symbol": f"triangle-{'up' if sign > 0 else 'down'}"},
            customdata=[[plotly_escape(label), cosine] for _, label, _, cosine in mine],
            hovertemplate="%{customdata[0]} hands back %{y:.4~g}, mean cosine with the rest %{customdata[1]:.2f}"
            "<extra></extra>",
        )


def _curve(figure: go.Figure, norms: Any, steps: list[str], name: str, colour: str, *, dash: str) -> None:
    figure.add_scatter(
        x=list(range(len(steps))),
        y=[norm if norm > 0 else None for norm in norms],
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2, "dash": dash},
        marker={"size": 4, "color": colour},
        customdata=[[plotly_escape(label)] for label in steps],
        hovertemplate=f"{name} at %{{customdata[0]}}: %{{y:.4~g}}<extra></extra>",
    )


def _lay_out(figure: go.Figure, steps: list[str], title_px: int, *, log: bool, unit: str) -> None:
    figure.update_layout(
        height=title_px + _BODY,
        margin={"l": 64, "r": 16, "t": title_px + 8, "b": 48},
        legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top", "font": {"size": SMALL}},
        hovermode="closest",
        xaxis=step_axis(steps, title="gradient at this write"),
        yaxis={
            "title": axis_title(f"norm, {visible(unit)} per unit of the stream" + (" (log scale)" if log else "")),
            "type": "log" if log else "linear",
            "zeroline": False,
            "minor": {"showgrid": False},
        },
    )
    if log:
        figure.update_layout(yaxis_dtick="D2")  # 1, 2, 5
    else:
        figure.update_layout(yaxis_rangemode="tozero")


def _closes(frame: pd.DataFrame, chosen: Selection) -> str:
    size = frame.attrs.get("backward_closure")
    closes = "" if size is None else f"Direct route and branches sum to autograd's gradient within {size:.1e} of it"
    return " · ".join(part for part in (closes, visible(chosen.model)) if part)


def _summary(sizes: Any, steps: list[str], rows: pd.DataFrame, where: str) -> str:
    first, last = sizes.loc[steps[0]], sizes.loc[steps[-1]]
    branches = sizes.loc[sizes["branch"].astype(bool)]
    cancels = int((branches["alignment"] < 0).sum())
    direct = rows.loc[rows["component"].astype(str) == "direct", "share"].sum()
    return (
        f"The gradient's norm {where} goes from {last['gradient']:.3g} at {steps[-1]} to {first['gradient']:.3g} at "
        f"{steps[0]}; the direct route there is {first['direct']:.3g}. {cancels} of {len(branches)} branches cancel "
        f"some of what passes them; the direct route's share of the total is {signed(float(direct))}."
    )
