"""The change of every write after an edit: the change, not the hole.

1. Writes that were edited are hatched and set no limit; writes that stand as they were say "unchanged", in grey.
2. One position: a bar a write, in stream order from the bottom up. Several: write by position, like `heatmap`.
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import display_token, visible
from streamlens.errors import InputError
from streamlens.plots.axes import row_axis
from streamlens.plots.finish import SMALL, axis_title, label_margin, styled, titled
from streamlens.plots.heat import (
    cell_trace,
    clipped_line,
    colour_axis,
    grid,
    lay_out_grid,
    mark_sinks,
    place_bar,
    robust_limit,
)
from streamlens.plots.responses import FAINT, hatched
from streamlens.plots.selection import Selection, closing_line, need, pick, prompt_line, signed, tokens

__all__ = ["downstream"]

_ROW = 16  # px
_PREFIX = "delta: "


@typed
def downstream(
    frame: pd.DataFrame,
    *,
    reader: str | None = None,
    variant: str | None = None,
    position: int | None = None,
    palette: str = "RdBu",
    dark: bool = False,
) -> go.Figure:
    """How every write changed: what that gives the reader, or without one the norm of the change.

    Args:
        frame: an ablation frame, of `ablate(...).to_frame()`.
        reader: may be left out when the frame holds at most one.
        variant: may be left out when the frame holds one.
        position: draw this one alone (a negative one counts from the end); None draws all that were kept.
        palette: ``RdBu`` (blue adds, red subtracts) or ``PuOr``.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    if palette not in theme.SIGN_COLOURS:
        raise InputError(f"palette is one of {', '.join(theme.SIGN_COLOURS)}; got {palette!r}.")
    name = _one("reader", [str(c).removeprefix(_PREFIX) for c in frame.columns if str(c).startswith(_PREFIX)], reader)
    need(frame, "variant")
    edit = _one("variant", [str(v) for v in frame["variant"].unique()], variant)
    value = f"{_PREFIX}{name}" if name else "delta_norm"
    chosen = pick(frame.loc[frame["variant"].astype(str) == edit], value=value)
    rows: Any = chosen.rows if position is None else chosen.at(position)
    quantity = f"change of {display_token(name)}" if name else "norm of the change"
    draw = _bars if rows["position"].nunique() == 1 else _grid
    return draw(rows, value, quantity, edit or "", chosen, palette, dark)


def _one(what: str, held: list[str], wanted: str | None) -> str | None:
    """The one that is wanted, or the only one; None where there is none."""
    if wanted is None and len(held) < 2:
        return held[0] if held else None
    if wanted not in held:
        got = "none was named" if wanted is None else f"got {wanted!r}"
        raise InputError(
            f"a figure shows one {what}; this frame holds {', '.join(map(repr, held[:8])) or 'none'}, and {got}.",
            hint=f"Pass {what}= one of those." if held else "",
        )
    return wanted


def _titled(figure: go.Figure, rows: Any, quantity: str, edit: str, chosen: Selection, line: str) -> int:
    places = tokens(rows)
    where = f" at {places[0].place}" if len(places) == 1 else ""
    still = int((rows["status"] == "unchanged").sum())
    return titled(
        figure,
        f"{visible(edit)} edited: {quantity}{where}",
        prompt_line(chosen),
        f"Ablated − clean. Hatched: edited. Grey: unchanged ({still} of {len(rows)}).",
        line,
        closing_line(chosen),
    )


def _bars(
    rows: pd.DataFrame, value: str, quantity: str, edit: str, chosen: Selection, palette: str, dark: bool
) -> go.Figure:
    labels = [str(label) for label in rows["component"]]
    sizes = rows[value].to_numpy(dtype="float64")
    status = rows["status"].astype(str).to_numpy()
    responds = status == "response"
    limit = float(np.abs(sizes[responds]).max(initial=0.0)) or float(np.abs(sizes).max(initial=0.0)) or 1.0
    adds, subtracts = theme.SIGN_COLOURS[palette]
    figure = go.Figure()
    said = _said(sizes, value)
    sides = [("adds", adds, sizes >= 0), ("subtracts", subtracts, sizes < 0)]
    if value == "delta_norm":
        sides = [("response", theme.SIGN_COLOURS[palette][0], sizes >= 0)]
    for word, colour, side in sides:
        _add(figure, word, {"color": colour}, np.flatnonzero(responds & side), sizes, said)
    pattern = {"shape": "/", "size": 5, "fgcolor": theme.NEUTRAL, "bgcolor": FAINT, "fillmode": "replace"}
    look = {"color": theme.NEUTRAL, "pattern": pattern, "line": {"width": 1, "color": theme.NEUTRAL}}
    _add(figure, "edited", look, np.flatnonzero(status == "edit"), np.clip(sizes, -limit, limit), said)
    still = np.flatnonzero(status == "unchanged").tolist()
    figure.add_scatter(
        mode="text",
        x=[0] * len(still),
        y=still,
        text="\u00a0unchanged",
        textposition="middle right",
        textfont={"size": SMALL, "color": theme.NEUTRAL},
        showlegend=False,
        hoverinfo="skip",
    )
    height = _titled(figure, rows, quantity, edit, chosen, _sums(sizes, status, value))
    _lay_out_bars(figure, labels, limit, title_px=height, quantity=quantity, signs=value != "delta_norm")
    return styled(figure, dark, summary=_summary(labels, sizes, said, status, edit, quantity))


def _add(figure: go.Figure, word: str, look: dict, at: np.ndarray, drawn: np.ndarray, said: list[str]) -> None:
    if not len(at):
        return
    figure.add_bar(
        orientation="h",
        name=word,
        x=drawn[at].tolist(),
        y=at.tolist(),
        width=0.72,
        marker=look,
        text=[said[i] for i in at],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )


def _sums(sizes: np.ndarray, status: np.ndarray, value: str) -> str:
    """What the bars come to; norms come to nothing."""
    if value == "delta_norm":
        return ""
    direct, indirect = (float(sizes[status == name].sum()) for name in ("edit", "response"))
    return f"The edited sum to {signed(direct)} (direct), the responses to {signed(indirect)} (indirect)."


def _lay_out_bars(
    figure: go.Figure, labels: list[str], limit: float, *, title_px: int, quantity: str, signs: bool
) -> None:
    top = title_px + 30
    figure.update_layout(
        barmode="overlay",
        height=top + _ROW * len(labels) + 48,
        margin={"l": label_margin(labels), "r": 16, "t": top, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "itemclick": False, "itemdoubleclick": False},
        xaxis={"title": axis_title(quantity), "range": [-1.25 * limit if signs else 0, 1.25 * limit], "zeroline": True},
        yaxis=row_axis(labels),
        uniformtext={"minsize": SMALL - 1, "mode": "show"},
    )


def _grid(
    rows: pd.DataFrame, value: str, quantity: str, edit: str, chosen: Selection, palette: str, dark: bool
) -> go.Figure:
    parts, columns, values = grid(rows, value)
    _, _, edited = grid(rows.assign(_is=(rows["status"] == "edit").astype(float)), "_is")
    _, _, moved = grid(rows.assign(_is=(rows["status"] == "response").astype(float)), "_is")
    cells = np.where(moved == 1, values, np.nan)
    sinks, signs = np.array([token.sink for token in columns]), value != "delta_norm"
    limit = robust_limit(cells, sinks)
    figure = go.Figure(cell_trace(cells, columns, quantity))
    at: Any = np.nonzero(edited == 1)
    hatched(figure, at[0].tolist(), at[1].tolist(), values[at].tolist(), parts)
    line = clipped_line(cells, limit, signs=signs, sinks=bool(sinks.any()))
    height = _titled(figure, rows, quantity, edit, chosen, line)
    lay_out_grid(figure, parts, columns, title_px=height)
    figure.update_layout(plot_bgcolor=FAINT, bargap=0)
    mark_sinks(figure, sinks)
    figure.update_layout(coloraxis=colour_axis(limit, quantity, signs=signs, palette=palette))
    place_bar(figure, title_px=height)
    flat, status = rows[value].to_numpy(dtype="float64"), rows["status"].astype(str).to_numpy()
    names = [
        f"{component} at position {place}" for component, place in zip(rows["component"], rows["position"], strict=True)
    ]
    scale = palette if signs else "sequential"
    return styled(figure, dark, scale=scale, summary=_summary(names, flat, _said(flat, value), status, edit, quantity))


def _said(sizes: np.ndarray, value: str) -> list[str]:
    """Numbers with their sign; a norm has none."""
    return [f"{size:,.1f}" if value == "delta_norm" else signed(float(size)) for size in sizes]


def _summary(
    labels: list[str], sizes: np.ndarray, said: list[str], status: np.ndarray, edit: str, quantity: str
) -> str:
    moved = np.flatnonzero(status == "response")
    order = moved[np.argsort(-np.abs(sizes[moved]), kind="stable")][:5]
    largest = ", ".join(f"{labels[i]} {said[i]}" for i in order) or "none"
    still = int((status == "unchanged").sum())
    return f"{edit} edited; {quantity}, ablated minus clean. Largest responses: {largest}. {still} cells are unchanged."
