"""What every figure is finished with: its title, its margins, its theme.

1. `titled()` makes a title of plain text and says how tall it is, so that nothing below it has to guess. The plain
   text goes with the figure too, for a page that sets titles itself.
2. `label_margin()` makes room for axis labels of a known length (a fixed margin, since a page lays a copy
   of the row labels over it while the figure scrolls).
3. `styled()` puts on the theme's template and colour scale.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.display import cells, plotly_escape
from streamlens.errors import InputError

__all__ = ["SMALL", "axis_title", "label_margin", "require_columns", "styled", "text_px", "titled"]

LINE = 80  # characters of a 12 px line that fit a figure 600 px wide
SMALL = 11  # px, axis labels
_MONO_ADVANCE = 0.61  # width of a monospaced character over its size


def titled(figure: go.Figure, heading: str, *lines: str) -> int:
    """Give the figure a title of plain text, a bold heading and smaller lines; its height in px."""
    heads = _wrap(heading, LINE - 12)
    rest = [part for line in lines if line for part in _wrap(line, LINE)]
    text = "<br>".join(f"<b>{plotly_escape(part)}</b>" for part in heads)
    for part in rest:
        text += f'<br><span style="font-size:12px">{plotly_escape(part)}</span>'
    figure.update_layout(
        title={
            "text": text,
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": 10, "t": 20},
            "font": {"size": 14},
            "automargin": False,
        }
    )
    height = 18 + 20 * (len(heads) + len(rest))
    layout: Any = figure.layout
    layout.meta = {"title": [heading, *filter(None, lines)], "title_px": height}
    return height


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at spaces, or within a word that is longer than a line."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cells(joined) <= width:
            lines[-1] = joined
            continue
        lines.append("")
        for char in word:
            if cells(lines[-1] + char) > width:
                lines.append("")
            lines[-1] += char
    return [line for line in lines if line]


def axis_title(text: str) -> dict:
    """An axis title of plain text, close to its axis."""
    return {"text": plotly_escape(text), "font": {"size": 12}, "standoff": 8}


def text_px(labels: Iterable[str], size: int = SMALL) -> int:
    """The width of the widest of some plain labels, set in the monospaced font."""
    return round(max((len(label) for label in labels), default=0) * size * _MONO_ADVANCE)


def label_margin(labels: Iterable[str], size: int = SMALL) -> int:
    """The margin that row labels need."""
    return max(40, text_px(labels, size) + 16)


def require_columns(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Refuses a frame that lacks a column of what is drawn: "A walk has".

    Raises:
        InputError: the frame lacks a column.
    """
    wanted = list(columns)
    if lacking := [name for name in wanted if name not in frame.columns]:
        raise InputError(f"{what} the columns {', '.join(wanted)}; the frame lacks {', '.join(lacking)}.")


@lru_cache
def _template(dark: bool) -> go.layout.Template:
    return go.layout.Template(theme.template(dark=dark))


def styled(figure: go.Figure, dark: bool, *, scale: str | None = None, **meta: object) -> go.Figure:
    """Put on the theme; `scale` is the colour axis' scale by name, `meta` goes with the figure."""
    layout: Any = figure.layout
    layout.template = _template(dark)  # set, not updated: plotly's own would be merged into it, unlike on a page
    if scale is not None:
        figure.update_layout(coloraxis={"colorscale": theme.scale(scale, dark=dark)})
        meta["scale"] = scale
    layout.meta = {**(layout.meta or {}), **meta}
    return figure
