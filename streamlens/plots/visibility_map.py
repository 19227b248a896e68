"""Who reads whom: writes down, the model's readers across, at one token.

1. Rows are writes in stream order from the bottom up, columns are readers in stream order, a line between two layers.
2. A cell is a ratio to what a random vector would give: the middle of the colours is a random write, on a scale of
   powers of two. Grey: the write comes after the reader.
3. Few columns are labelled one by one; many by their layer (every nth where layers are narrow), with the reader's name
   on hover. A selection of layers or of one kind of reader is drawn in the same way, and dragging zooms.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape
from streamlens.errors import InputError
from streamlens.plots.axes import CELLS
from streamlens.plots.finish import axis_title, label_margin, styled, text_px, titled
from streamlens.plots.heat import colour_axis, place_bar
from streamlens.plots.responses import FAINT
from streamlens.plots.selection import closing_line, need, pick, prompt_line, tokens
from streamlens.plots.visibility import times

__all__ = ["visibility_map"]

_ROW = 13  # px
_FEW = 130  # columns that are labelled one by one
_COLUMN = {True: 15, False: 5}  # px, of few and of many
_BAR = 56  # px, the colour bar with its title
_PERCENTILE = 99
_VALUES = {
    "lift": ("visible share over a random write's", "Lift: the visible share over that of a random write"),
    "gain": (
        "response over that to a random vector as long",
        "Gain: the response over that to a random vector as long",
    ),
}
_PARTS = {"q": "queries", "k": "keys", "v": "values", "in": "MLP inputs", "unembedding": "the unembedding"}


@typed
def visibility_map(
    frame: pd.DataFrame,
    *,
    value: str = "lift",
    part: str | None = None,
    layers: Sequence[int] | None = None,
    palette: str = "PuOr",
    dark: bool = False,
) -> go.Figure:
    """A heatmap of every write against every reader of the model; the middle of the colours is a random write.

    Args:
        frame: a frame of `streamlens.visibility_map(...).to_frame()`, of one token.
        value: ``lift`` or ``gain``.
        part: only one kind of reader: ``q``, ``k``, ``v``, ``in``, ``unembedding``, as the frame has them.
        layers: only readers of these layers.
        palette: ``PuOr`` (purple above a random write, orange below) or ``RdBu``.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice that the frame does not hold.
    """
    if value not in _VALUES:
        raise InputError(f"value is one of {', '.join(_VALUES)}; got {value!r}.")
    if palette not in theme.SIGN_COLOURS:
        raise InputError(f"palette is one of {', '.join(theme.SIGN_COLOURS)}; got {palette!r}.")
    chosen = pick(_some(frame, part, layers).drop(columns="reader").assign(_name=frame["reader"]), value=value)
    rows: Any = chosen.rows
    if rows["position"].nunique() > 1:
        raise InputError("a map is of one token; this frame holds several positions.")
    names = [str(name) for name in rows["_name"].cat.remove_unused_categories().cat.categories]
    writes = [str(label) for label in rows["component"].cat.categories]
    wide = rows.pivot(index="component", columns="_name", values=value).reindex(index=writes, columns=names)
    ratios = wide.to_numpy(dtype="float64")
    layer_of: Any = rows.drop_duplicates("_name").set_index("_name")["reader_layer"].reindex(names)
    groups = ["end" if pd.isna(layer) else f"L{layer}" for layer in layer_of]
    with np.errstate(divide="ignore"):
        cells = np.log2(ratios)
    limit = _limit(cells)
    quantity, heading = _VALUES[value]
    figure = go.Figure(_trace(np.clip(cells, -20, 20), ratios, writes, names, quantity))
    kinds = ", ".join(_PARTS.get(kind, kind) for kind in dict.fromkeys(map(str, rows["reader_part"])))
    height = titled(
        figure,
        f"{heading}, at {tokens(rows)[0].place}",
        prompt_line(chosen),
        f"{len(writes)} writes by {len(names)} readers ({kinds}). Grey: the write comes after the reader.",
        _clipped(cells, limit),
        closing_line(chosen),
    )
    width = _lay_out(figure, writes, names, groups, title_px=height)
    figure.update_layout(coloraxis=_colours(limit, quantity, palette))
    place_bar(figure, title_px=height)
    return styled(
        figure, dark, scale=palette, summary=_summary(ratios, writes, names), min_width=width, max_width=width
    )


def _some(frame: pd.DataFrame, part: str | None, layers: Sequence[int] | None) -> pd.DataFrame:
    need(frame, "reader_part", "reader_layer")
    held = [str(kind) for kind in frame["reader_part"].unique()]
    if part is not None and part not in held:
        raise InputError(f"part is one of {', '.join(held)}; got {part!r}.")
    kept = frame if part is None else frame.loc[frame["reader_part"].astype(str) == part]
    if layers is not None:
        kept = kept.loc[kept["reader_layer"].isin(list(layers))]
        if kept.empty:
            raise InputError(f"layers are among those of the frame; none of {list(layers)} is.")
    return kept


def _limit(cells: np.ndarray) -> float:
    """A percentile of size, at least a factor of two."""
    sizes = np.abs(cells[np.isfinite(cells)])
    return max(1.0, float(np.percentile(sizes, _PERCENTILE)) if sizes.size else 1.0)


def _trace(cells: np.ndarray, ratios: np.ndarray, writes: list[str], names: list[str], quantity: str) -> go.Heatmap:
    gap = 1 if len(names) <= _FEW else 0
    return go.Heatmap(
        z=np.round(cells, 3),
        x=list(range(len(names))),
        y=list(range(len(writes))),
        coloraxis="coloraxis",
        customdata=[[plotly_escape(name) for name in names]] * len(writes),
        text=np.round(ratios, 3),
        hovertemplate=f"%{{y}} seen by %{{customdata}}<br>×%{{text}} {plotly_escape(quantity)}<extra></extra>",
        hoverongaps=False,
        xgap=gap,
        ygap=gap,
    )


def _clipped(cells: np.ndarray, limit: float) -> str:
    beyond, known = int((np.abs(cells) > limit).sum()), int((~np.isnan(cells)).sum())
    bounds = f"{times(2**-limit)} or {times(2**limit)}"
    return (
        f"{beyond:,} of {known:,} cells clipped at {bounds} (true value on hover)." if beyond else "No cell is clipped."
    )


def _colours(limit: float, quantity: str, palette: str) -> dict:
    above, below = ("purple", "orange") if palette == "PuOr" else ("blue", "red")
    made = colour_axis(limit, quantity, signs=True, palette=palette)
    made["colorbar"] |= {
        "title": {
            "text": f"{plotly_escape(quantity)}: {above} above, {below} below",
            "side": "top",
            "font": {"size": 12},
        },
        "ticktext": [times(2**-limit), "random: ×1", times(2**limit)],
        "len": 340,
    }
    return made


def _lay_out(figure: go.Figure, writes: list[str], names: list[str], groups: list[str], *, title_px: int) -> int:
    """Lays the map out; its width in px."""
    few = len(names) <= _FEW
    edges = [i for i in range(1, len(groups)) if groups[i] != groups[i - 1]]
    starts, ends = [0, *edges], [*edges, len(groups)]
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    ticks, labels = list(range(len(names))), names
    if not few:
        ticks, labels = _apart(middles, [groups[start] for start in starts])
    labels_px = (text_px(labels) if few or len(labels) > 1 else 0) + 14
    left, top, bottom = label_margin(writes) + 20, title_px + _BAR + labels_px, labels_px + 30
    across = {
        **CELLS,
        "tickvals": ticks,
        "ticktext": [plotly_escape(label) for label in labels],
        "tickangle": -90 if few else 0,
        "range": [-0.5, len(names) - 0.5],
    }
    width = left + 16 + max(_COLUMN[few] * len(names), 440)
    figure.add_scatter(x=[None], y=[None], xaxis="x2", showlegend=False, hoverinfo="skip")  # axes need a trace
    figure.update_layout(
        height=top + _ROW * len(writes) + bottom,
        width=width,
        margin={"l": left, "r": 16, "t": top, "b": bottom},
        plot_bgcolor=FAINT,
        xaxis={**across, "title": axis_title("reader")},
        xaxis2={**across, "side": "top", "overlaying": "x", "matches": "x"},
        yaxis={
            **CELLS,
            "title": axis_title("write"),
            "tickvals": list(range(len(writes))),
            "ticktext": [plotly_escape(write) for write in writes],
            "range": [-0.5, len(writes) - 0.5],
        },
    )
    for edge in edges:
        ends_at = {"x0": edge - 0.5, "x1": edge - 0.5, "y0": 0, "y1": 1, "yref": "paper"}
        figure.add_shape(type="line", **ends_at, line={"color": theme.NEUTRAL, "width": 1})
    return width


def _apart(places: list[float], labels: list[str]) -> tuple[list[float], list[str]]:
    """Every nth label, so that none touches the next; the last one is always there."""
    need, last = (text_px(labels) + 6) / _COLUMN[False], len(labels) - 1
    closest = min((after - one for one, after in pairwise(places[:-1])), default=need)
    kept = list(range(0, last, math.ceil(need / closest)))
    while kept and places[last] - places[kept[-1]] < need:
        kept.pop()
    return [places[i] for i in (*kept, last)], [labels[i] for i in (*kept, last)]


def _summary(ratios: np.ndarray, writes: list[str], names: list[str]) -> str:
    head = f"{len(writes)} writes by {len(names)} readers; a random write is 1."
    if not np.isfinite(ratios).any():
        return f"{head} No reader comes after a write."
    middle = float(np.nanmedian(ratios))
    row, column = np.unravel_index(np.nanargmax(ratios), ratios.shape)
    most = f"{times(ratios[row, column])}, is {writes[row]} seen by {names[column]}"
    return f"{head} The median is {middle:.2f}; the largest, {most}."
