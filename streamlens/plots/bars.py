"""Contributions at one token as bars that sum.

1. Order the parts by size; keep the largest, add the others up into one bar.
2. Start each bar where the one above it ended (`bar` with `base`: a waterfall's own trace hides the sizes).
3. End with the total, drawn from zero: the last part must end where the total ends.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.finish import axis_title, label_margin, styled, titled
from streamlens.plots.selection import Selection, closing_line, pick, prompt_line, signed, tokens

__all__ = ["colours", "contributions", "largest", "lay_out_bars", "named_largest", "waterfall"]

_ROW = 22  # px
_LABEL = 12  # px


@typed
def contributions(
    frame: pd.DataFrame,
    *,
    top: int = 15,
    position: int | None = None,
    prompt_id: int | None = None,
    reader: str | None = None,
    palette: str = "RdBu",
    dark: bool = False,
) -> go.Figure:
    """Bars that sum: the largest parts by size, the others as one bar, and the total they reach.

    Each bar starts where the one above it ends, and the last ends at the total. The title says how
    close that is to the model's own value (``attrs["readout_closure"]``), or that parts were left out of
    the frame.

    Args:
        frame: a readout's frame; column ``contribution`` in the reader's unit, positive adds.
        top: how many parts get a bar of their own.
        position: the token that is read; None is the last, a negative one counts from the end.
        prompt_id: may be left out when the frame holds one prompt.
        reader: may be left out when the frame holds one reader.
        palette: ``RdBu`` (blue adds, red subtracts) or ``PuOr`` (purple adds, orange subtracts).
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    if top < 1:
        raise InputError(f"top is the number of parts with a bar of their own, at least 1; got {top}.")
    chosen = pick(frame, value="contribution", prompt_id=prompt_id, reader=reader)
    rows = chosen.at(position)
    values = rows["contribution"].to_numpy(dtype="float64")
    bars = largest([str(label) for label in rows["component"]], values, top)
    total = float(values.sum())
    place = tokens(rows)[0].place
    said = f"{signed(total)} {visible(chosen.unit)}".rstrip()
    rule = f"Largest {top} of {len(rows)} parts" if top < len(rows) else f"All {len(rows)} parts by size"
    figure = waterfall(bars, total, colours(palette))
    height = titled(
        figure,
        f"{chosen.reads}{said} at {place}",
        prompt_line(chosen),
        f"{rule}; the bars sum to {_what_they_sum_to(rows, chosen.sum_error)}.",
        closing_line(chosen),
    )
    lay_out_bars(figure, bars, title_px=height, unit=visible(chosen.unit))
    return styled(figure, dark, summary=_summary(bars, said, place, chosen))


def colours(palette: str) -> tuple[str, str]:
    """The colours of what adds and what subtracts.

    Raises:
        InputError: no such palette.
    """
    if palette not in theme.SIGN_COLOURS:
        raise InputError(f"palette is one of {', '.join(theme.SIGN_COLOURS)}; got {palette!r}.")
    return theme.SIGN_COLOURS[palette]


def _what_they_sum_to(rows: pd.DataFrame, sum_error: float | None) -> str:
    """Whether the total may be called the model's own value: it was compared, and every part is there."""
    parts: Any = rows["component"]
    missing = len(set(parts.cat.categories) - set(parts)) if isinstance(parts.dtype, pd.CategoricalDtype) else 0
    if missing:
        return f"the total; {missing} more parts are not in this frame"
    return "the total" if sum_error is None else f"the model's own value within {sum_error:.0e}"


def largest(labels: list[str], values: np.ndarray, top: int) -> list[tuple[str, float]]:
    """The `top` parts by size, largest first, and what is left as one ``other (n)``."""
    order = np.argsort(-np.abs(values), kind="stable")
    bars = [(labels[i], float(values[i])) for i in order[:top]]
    if len(order) > top:
        bars.append((f"other ({len(order) - top})", float(values[order[top:]].sum())))
    return bars


def _is_other(label: str) -> bool:
    return label.startswith("other (")


def waterfall(bars: list[tuple[str, float]], total: float, signs: tuple[str, str]) -> go.Figure:
    """Bars of which each starts where the one above it ends, then the total from zero; `signs`: adds, subtracts."""
    figure = go.Figure()
    ends = list(accumulate(size for _, size in bars))
    for word, colour, adds in zip(("adds", "subtracts"), signs, (True, False), strict=True):
        at = [i for i, (_, size) in enumerate(bars) if (size >= 0) == adds]
        hatch = ["/" if _is_other(bars[i][0]) else "" for i in at]
        marker = {"color": colour, "pattern": {"shape": hatch, "fillmode": "replace", "size": 6}}
        if at:
            figure.add_bar(name=word, marker=marker, **_trace([bars[i] for i in at], at, [ends[i] for i in at]))
    end = {"color": theme.NEUTRAL}
    figure.add_bar(name="total", marker=end, **_trace([("total", total)], [len(bars)], [total]))
    for i, x in enumerate(ends):
        figure.add_shape(type="line", x0=x, x1=x, y0=i - 0.36, y1=i + 1.36, line={**end, "width": 1}, layer="below")
    return figure


def _trace(bars: list[tuple[str, float]], rows: Sequence[int], ends: Sequence[float]) -> dict:
    sizes = [size for _, size in bars]
    return {
        "orientation": "h",
        "x": sizes,
        "base": [end - size for end, size in zip(ends, sizes, strict=True)],
        "y": list(rows),
        "width": 0.72,  # else each trace takes its own from how far its rows lie apart
        "text": [signed(size) for size in sizes],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [[plotly_escape(label), signed(end)] for (label, _), end in zip(bars, ends, strict=True)],
        "hovertemplate": "%{customdata[0]}: %{text}<br>running sum %{customdata[1]}<extra></extra>",
    }


def lay_out_bars(figure: go.Figure, bars: list[tuple[str, float]], *, title_px: int, unit: str) -> None:
    """The axes of a `waterfall`: a row for each bar, and the running sum across."""
    labels = [label for label, _ in bars] + ["total"]
    top = title_px + 30
    figure.update_layout(
        barmode="overlay",
        height=top + _ROW * len(labels) + 48,
        margin={"l": label_margin(labels, _LABEL), "r": 12, "t": top, "b": 48},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "traceorder": "normal",
            "itemclick": False,  # a hidden bar would leave a sum that does not add up
            "itemdoubleclick": False,
        },
        xaxis={
            "title": axis_title(f"running sum, {unit}" if unit else "running sum"),
            "range": _range([size for _, size in bars]),
            "zeroline": True,
        },
        yaxis={
            "tickmode": "array",
            "tickvals": list(range(len(labels))),
            "ticktext": [plotly_escape(label) for label in labels[:-1]] + ["<b>total</b>"],
            "range": [len(labels) - 0.4, -0.6],
            "showgrid": False,
            "zeroline": False,
            "tickfont": {"family": theme.MONO, "size": _LABEL},
            "ticklabelstandoff": 4,
        },
    )


def _range(sizes: list[float]) -> list[float]:
    """From zero to the furthest bar, with room for the number at the end of each."""
    ends = list(accumulate(sizes))
    pad = 0.2 * (max(0.0, *ends) - min(0.0, *ends) or 1.0)
    numbers = [end + (pad if size >= 0 else -pad) for end, size in zip(ends, sizes, strict=True)]
    numbers.append(ends[-1] + (pad if ends[-1] >= 0 else -pad))
    return [min(0.0, *numbers), max(0.0, *numbers)]


def _summary(bars: list[tuple[str, float]], said: str, name: str, chosen: Selection) -> str:
    return f"{chosen.reads}at {name} the parts sum to {said}. The largest: {named_largest(bars)}."


def named_largest(bars: list[tuple[str, float]]) -> str:
    """The first few bars in words."""
    words = [
        f"{label} {signed(size)} ({'adds' if size >= 0 else 'subtracts'})"
        for label, size in bars[:5]
        if not _is_other(label)
    ]
    return ", ".join(words)
