"""What a reader sees of every write at one token, beside what it would see of a random one.

1. One bar a write, in stream order from the bottom up: its visible share, or the reader's gain.
2. The value that a random vector would have is a line across the bars, with a step where it differs by write.
3. Bars beyond it are coloured, bars below it grey; the number at the end is the ratio to it.
"""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.axes import row_axis
from streamlens.plots.finish import SMALL, axis_title, label_margin, styled, titled
from streamlens.plots.selection import closing_line, pick, prompt_line, tokens

__all__ = ["times", "visibility"]

_ROW = 15  # px
_VALUES = {
    "visible_share": ("visible share of the write, |u_row|² / |u|²", "share of a random write"),
    "gain": ("response over that to a random vector as long", "random vector"),
}
_MODES = {
    "frozen": "the norm's scale held",
    "local": "the norm's Jacobian at this point",
    "finite": "the write really taken away from what is read",
}


@typed
def visibility(
    frame: pd.DataFrame,
    *,
    value: str = "visible_share",
    position: int | None = None,
    prompt_id: int | None = None,
    reader: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Bars of what a reader sees of every write at one token, the value of a random write drawn across them.

    A share says what the reader could see, not that it uses it; the change of its value is on hover.

    Args:
        frame: a frame of `streamlens.visibility(...).to_frame()`.
        value: ``visible_share``, or ``gain``, the reader's response over that to a random vector as long.
        position: the token; None is the last, a negative one counts from the end.
        prompt_id: may be left out when the frame holds one prompt.
        reader: may be left out when the frame holds one reader.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    if value not in _VALUES:
        raise InputError(f"value is one of {', '.join(_VALUES)}; got {value!r}.")
    chosen = pick(frame, value=value, prompt_id=prompt_id, reader=reader)
    rows: Any = chosen.at(position)
    labels = [str(label) for label in rows["component"]]
    sizes = rows[value].to_numpy(dtype="float64")
    chance = rows["chance"].to_numpy(dtype="float64") if value == "visible_share" else np.ones(len(rows))
    place, mode = tokens(rows)[0].place, str(rows["mode"].iloc[0])
    quantity, usual = _VALUES[value]
    random = f"{usual} {_plain(float(np.median(chance)))}"
    figure = go.Figure()
    change = [f"{size:+.4g} {visible(chosen.unit)}" for size in rows["change"]]
    for name, colour, side in (
        ("above it", theme.SIGN_COLOURS["RdBu"][0], sizes > chance),
        ("at or below it", theme.NEUTRAL, sizes <= chance),
    ):
        _bars(figure, name, colour, np.flatnonzero(side), sizes, chance, labels, change)
    _line(figure, chance, random)
    what = "gain" if value == "gain" else "visible share"
    held = f" Effective row space: {rows_said(frame)}." if not frame.attrs.get("exact", True) else ""
    height = titled(
        figure,
        f"{chosen.reads}{what} of every write at {place}",
        prompt_line(chosen),
        f"{mode}: {_MODES.get(mode, mode)}. The numbers are ratios to the line.{held}",
        closing_line(chosen),
    )
    _lay_out(figure, labels, float(np.nanmax([*sizes, *chance])), title_px=height, quantity=quantity)
    return styled(figure, dark, summary=_summary(labels, sizes, chance, place, f"{chosen.reads}{what}"))


def rows_said(frame: pd.DataFrame) -> str:
    """The energy of a row space that was cut down."""
    return f"{float(frame.attrs.get('energy', 1.0)):.0%} of the squared singular values"


def times(ratio: float) -> str:
    """A ratio as people say it: ``×1.4``, ``×0.06``, ``×12``."""
    if not np.isfinite(ratio):
        return ""
    return f"×{ratio:.0f}" if ratio >= 9.95 else f"×{ratio:.1f}" if ratio >= 0.95 else f"×{ratio:.2g}"


def _plain(size: float) -> str:
    return f"{size:.3g}"


def _bars(
    figure: go.Figure,
    name: str,
    colour: str,
    at: np.ndarray,
    sizes: np.ndarray,
    chance: np.ndarray,
    labels: list[str],
    change: list[str],
) -> None:
    if not len(at):
        return
    figure.add_bar(
        orientation="h",
        name=name,
        x=sizes[at].tolist(),
        y=at.tolist(),
        width=0.72,
        marker={"color": colour},
        text=[times(float(sizes[i] / chance[i])) for i in at],
        textposition="outside",
        cliponaxis=False,
        customdata=[[plotly_escape(labels[i]), change[i]] for i in at],
        hovertemplate="%{customdata[0]}: %{x:.4~g}, %{text} random<br>reader's change %{customdata[1]}<extra></extra>",
    )


def _line(figure: go.Figure, chance: np.ndarray, name: str) -> None:
    """One line through every row's own value, a step where it changes."""
    x = np.repeat(chance, 2).tolist()
    y = [edge for row in range(len(chance)) for edge in (row - 0.5, row + 0.5)]
    figure.add_scatter(mode="lines", x=x, y=y, name=name, line={"color": "#cf7a1f", "width": 1.5}, hoverinfo="skip")


def _lay_out(figure: go.Figure, labels: list[str], largest: float, *, title_px: int, quantity: str) -> None:
    top = title_px + 30
    figure.update_layout(
        barmode="overlay",
        height=top + _ROW * len(labels) + 48,
        margin={"l": label_margin(labels), "r": 16, "t": top, "b": 48},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "traceorder": "reversed",
            "itemclick": False,
            "itemdoubleclick": False,
        },
        xaxis={"title": axis_title(quantity), "range": [0, 1.15 * largest or 1.0], "zeroline": True},
        yaxis=row_axis(labels),
        uniformtext={"minsize": SMALL - 1, "mode": "show"},
    )


def _summary(labels: list[str], sizes: np.ndarray, chance: np.ndarray, place: str, what: str) -> str:
    ratio = np.nan_to_num(sizes / chance, nan=-1.0)
    order = np.argsort(-ratio, kind="stable")[:5]
    most = ", ".join(f"{labels[i]} {times(float(ratio[i]))}" for i in order)
    above = int((sizes > chance).sum())
    return f"{what} of {len(labels)} writes at {place}; {above} are above a random write's. Most: {most}."
