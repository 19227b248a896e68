"""Before, update, after: a reader's value along the stream, a floating bar for each write.

1. One column a write, in stream order; the bar goes from the value before it to the value after it.
2. Bars start where the one before them ended; the line at zero is the reader's own: a probe's boundary.
3. The start and the last value are written out: what lies between is the sum of the bars.
"""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.finish import SMALL, axis_title, styled, text_px, titled
from streamlens.plots.selection import closing_line, pick, prompt_line, signed, tokens

__all__ = ["before_after"]

_BODY = 340  # px
_COLUMN = 15  # px a write


@typed
def before_after(
    frame: pd.DataFrame,
    *,
    position: int | None = None,
    reader: str | None = None,
    prompt_id: int | None = None,
    palette: str = "RdBu",
    dark: bool = False,
) -> go.Figure:
    """A reader's value before and after every write, in stream order.

    Args:
        frame: a frame of `before_after(...).to_frame()`.
        position: the token that is read; None is the last, a negative one counts from the end.
        reader: may be left out when the frame holds one reader.
        prompt_id: may be left out when the frame holds one prompt.
        palette: ``RdBu`` (blue adds, red subtracts) or ``PuOr`` (purple adds, orange subtracts).
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    if palette not in theme.SIGN_COLOURS:
        raise InputError(f"palette is one of {', '.join(theme.SIGN_COLOURS)}; got {palette!r}.")
    chosen = pick(frame, value="update", prompt_id=prompt_id, reader=reader)
    rows: Any = chosen.at(position)
    rows = rows.loc[rows["kind"].astype(str) != "rounding"]
    labels = [str(label) for label in rows["component"]]
    before, update, after = (rows[name].astype("float64").tolist() for name in ("before", "update", "after"))
    place, unit = tokens(rows)[0].place, visible(chosen.unit)
    figure = go.Figure()
    _bars(figure, labels, before, update, after, theme.SIGN_COLOURS[palette])
    line = {"color": theme.NEUTRAL, "width": 1.5, "dash": "dash"}
    figure.add_hline(y=0.0, line=line)
    height = titled(
        figure,
        f"{chosen.reads}{signed(before[0])} before, {signed(after[-1])} after, at {place}",
        prompt_line(chosen),
        "Each bar goes from the value before a write to the value after it. Dashed: 0.",
        _check_line(chosen.sum_error),
        closing_line(chosen),
    )
    _lay_out(figure, labels, [*before, *after], title_px=height, unit=unit)
    largest = sorted(range(len(labels)), key=lambda n: -abs(update[n]))[:5]
    summary = (
        f"{chosen.reads}{signed(before[0])} before the first write and {signed(after[-1])} after {labels[-1]}, at "
        f"{place}, in {unit}. The largest updates: {', '.join(f'{labels[n]} {signed(update[n])}' for n in largest)}."
    )
    width = 90 + _COLUMN * len(labels)
    return styled(figure, dark, summary=summary, min_width=width, max_width=max(560, 2 * width))


def _check_line(error: float | None) -> str:
    if error is None or error != error:
        return "The reader's value on the stream is not known."
    return f"The last value is the reader's own on the stream within {error:.1e}."


def _bars(
    figure: go.Figure,
    labels: list[str],
    before: list[float],
    update: list[float],
    after: list[float],
    colours: tuple[str, str],
) -> None:
    figure.add_bar(
        x=list(range(len(labels))),
        y=update,
        base=before,
        width=0.72,
        marker={"color": [colours[0] if size >= 0 else colours[1] for size in update]},
        customdata=[
            [plotly_escape(label), *map(signed, values)]
            for label, *values in zip(labels, before, update, after, strict=True)
        ],
        hovertemplate=(
            "%{customdata[0]}<br>before %{customdata[1]}<br>update %{customdata[2]}<br>after %{customdata[3]}"
            "<extra></extra>"
        ),
        showlegend=False,
    )
    # the level between two bars, so that the eye follows the value and not the bars
    figure.add_scatter(
        mode="lines",
        x=[edge for n in range(len(labels)) for edge in (n - 0.5, n + 0.5)],
        y=[level for a, b in zip(before, after, strict=True) for level in (a, b)],
        line={"color": theme.NEUTRAL, "width": 1, "shape": "hvh"},
        hoverinfo="skip",
        showlegend=False,
    )


def _lay_out(figure: go.Figure, labels: list[str], values: list[float], *, title_px: int, unit: str) -> None:
    low, high = min(0.0, *values), max(0.0, *values)
    pad = 0.06 * (high - low or 1.0)
    labels_px = text_px(labels) + 14
    figure.update_layout(
        height=title_px + _BODY + labels_px,
        margin={"l": 64, "r": 16, "t": title_px + 8, "b": labels_px + 12},
        xaxis={
            "tickmode": "array",
            "tickvals": list(range(len(labels))),
            "ticktext": [plotly_escape(label) for label in labels],
            "tickangle": -90,
            "range": [-0.6, len(labels) - 0.4],
            "tickfont": {"family": theme.MONO, "size": SMALL},
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={"title": axis_title(unit), "range": [low - pad, high + pad], "zeroline": False},
    )
