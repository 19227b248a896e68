"""What edits did to what is read: one bar a variant, split into parts that sum.

1. Take the variants with the largest totals by size.
2. Stack the parts of each from zero, those that add to the right and those that subtract to the left.
3. Mark the total, which is their sum; the title says how close that is to the model's own change.
4. Where nothing was read, the bars are how far the output moved: KL(clean || ablated), in nats.
"""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import display_token, plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.axes import row_axis
from streamlens.plots.finish import axis_title, label_margin, styled, titled
from streamlens.plots.selection import Selection, closing_line, pick, prompt_line, signed, tokens

__all__ = ["effects"]

#: part -> (what it is, its colour on both backgrounds); a side, not a colour, is its sign
PARTS = {
    "direct": ("the edited write itself", "#3b82c4"),
    "indirect": ("how the others responded", "#cf7a1f"),
    "rescale": ("the final norm", theme.NEUTRAL),
    "carry": ("the norms along the stream", "#8d6fc0"),
    "softcap": ("what a softcap makes of it", "#2f9488"),
}
_ALWAYS = ("direct", "indirect", "rescale")
_ROW = 22  # px
_LABEL = 12  # px


@typed
def effects(
    frame: pd.DataFrame,
    *,
    top: int = 20,
    position: int | None = None,
    reader: str | None = None,
    prompt_id: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """The largest effects as stacked bars: direct, indirect and rescale, with the total marked. Ablated − clean.

    Without a reader the bars are the divergence of the output, KL(clean || ablated), in nats.

    Args:
        frame: an effects frame, of `ablate(...).effects()` or `sweep(...).effects()`.
        top: how many variants are drawn.
        position: where it was read; None is the last, a negative one counts from the end.
        reader: may be left out when the frame holds one reader.
        prompt_id: may be left out when the frame holds one prompt.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a choice is missing, or names what the frame does not hold.
    """
    if top < 1:
        raise InputError(f"top is the number of variants that are drawn, at least 1; got {top}.")
    numbered = frame.assign(order=range(len(frame)))
    chosen = pick(numbered, value="total", prompt_id=prompt_id, reader=reader)
    rows: Any = chosen.at(position)
    place, unit = tokens(rows)[0].place, visible(chosen.unit)
    size = "total" if chosen.reader else "kl"
    shown: Any = rows.loc[rows[size].abs().sort_values(ascending=False, kind="stable").index[:top]]
    labels = [str(label) for label in shown["variant"]]
    rule = f"Largest {top} of {len(rows)} edits" if top < len(rows) else f"All {len(rows)} edits"
    rule = "" if len(rows) == 1 else f" {rule}, by size of the {'total' if chosen.reader else 'divergence'}."
    if not chosen.reader:
        return _divergences(shown, labels, place, rule, chosen, dark)
    figure = _stacked(shown, labels)
    clean = float(rows["clean"].iloc[0])
    height = titled(
        figure,
        f"{chosen.reads}effects at {place}",
        prompt_line(chosen),
        f"Ablated − clean, in {unit}; clean value {signed(clean)}.{rule}",
        "; ".join(f"{part}: {PARTS[part][0]}" for part in _parts(shown)).capitalize() + ".",
        _check_line(rows, unit),
        closing_line(chosen),
    )
    said = _said(labels, [signed(float(total)) for total in shown["total"]])
    _lay_out(figure, said, title_px=height, quantity=f"change, {unit} (left subtracts, right adds)")
    return styled(figure, dark, summary=_summary(shown, labels, place, chosen.reads, unit))


def _divergences(rows: Any, labels: list[str], place: str, rule: str, chosen: Selection, dark: bool) -> go.Figure:
    """How far each edit moves the output."""
    sizes = [float(size) for size in rows["kl"]]
    before, after = ([display_token(str(text)) for text in rows[f"top_{side}"]] for side in ("before", "after"))
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        name="KL",
        showlegend=False,
        x=sizes,
        y=list(range(len(sizes))),
        width=0.66,
        marker={"color": PARTS["indirect"][1]},
        customdata=[[plotly_escape(visible(text)) for text in row] for row in zip(labels, before, after, strict=True)],
        hovertemplate=(
            "%{customdata[0]}<br>KL %{x:.3~g} nats<br>"
            "likeliest token: %{customdata[1]}, ablated %{customdata[2]}<extra></extra>"
        ),
    )
    turned = sum(one != other for one, other in zip(before, after, strict=True))
    height = titled(
        figure,
        f"The output: effects at {place}",
        prompt_line(chosen),
        f"KL(clean, ablated) of the next token, in nats.{rule}",
        f"{turned} of the {len(rows)} shown change the likeliest next token."
        if len(rows) > 1
        else f"The likeliest next token {'changes' if turned else 'stays'}.",
        closing_line(chosen),
    )
    _lay_out(figure, _said(labels, [f"{size:.3f}" for size in sizes]), title_px=height, quantity="KL, nats")
    largest = ", ".join(f"{label} {size:.3f}" for label, size in zip(labels[:5], sizes, strict=False))
    return styled(figure, dark, summary=f"Divergence of the output at {place}, clean to ablated, in nats: {largest}.")


def _said(labels: list[str], sizes: list[str]) -> list[str]:
    """Row labels, each with its size."""
    return [f"{visible(label)}  {size}" for label, size in zip(labels, sizes, strict=True)]


def _parts(rows: Any) -> list[str]:
    """The parts that are drawn: those of every model, and what moves in this one."""
    return [part for part in PARTS if part in _ALWAYS or bool((rows[part] != 0).any())]


def _check_line(rows: Any, unit: str) -> str:
    worst = float(rows["closure"].max())
    if worst != worst:
        return "The model's own change is not known."
    of_all = f" of all {len(rows)}" if len(rows) > 1 else ""
    return f"The parts{of_all} sum to the model's own change within {worst:.1e} {unit}."


def _stacked(rows: Any, labels: list[str]) -> go.Figure:
    figure = go.Figure()
    y = list(range(len(rows)))
    names = [plotly_escape(visible(label)) for label in labels]
    for part in _parts(rows):
        sizes = [float(size) for size in rows[part]]
        figure.add_bar(
            orientation="h",
            name=part,
            x=sizes,
            y=y,
            width=0.66,
            marker={"color": PARTS[part][1]},
            customdata=[[name, signed(size)] for name, size in zip(names, sizes, strict=True)],
            hovertemplate=f"%{{customdata[0]}}<br>{part} %{{customdata[1]}}<extra></extra>",
        )
    totals, own = [float(v) for v in rows["total"]], [float(v) for v in rows["observed"]]
    figure.add_scatter(
        mode="markers",
        name="total",
        x=totals,
        y=y,
        marker={"symbol": "diamond", "size": 9, "color": "#ffffff", "line": {"color": "#1b1f24", "width": 1.5}},
        customdata=[[name, signed(t), signed(o)] for name, t, o in zip(names, totals, own, strict=True)],
        hovertemplate=(
            "%{customdata[0]}<br>total %{customdata[1]}<br>the model's own change %{customdata[2]}<extra></extra>"
        ),
    )
    return figure


def _lay_out(figure: go.Figure, said: list[str], *, title_px: int, quantity: str) -> None:
    top = title_px + 30
    figure.update_layout(
        barmode="relative",
        height=top + _ROW * len(said) + 48,
        margin={"l": label_margin(said, _LABEL), "r": 16, "t": top, "b": 48},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "traceorder": "normal",
            "itemclick": False,  # a hidden part would leave a total that is no sum
            "itemdoubleclick": False,
        },
        xaxis={"title": axis_title(quantity), "zeroline": True},
        yaxis=row_axis(said, down=True, size=_LABEL),
    )


def _summary(rows: Any, labels: list[str], place: str, reads: str, unit: str) -> str:
    said = [
        f"{label} {signed(float(row['total']))} (direct {signed(float(row['direct']))}, "
        f"indirect {signed(float(row['indirect']))})"
        for label, (_, row) in zip(labels[:5], rows.iterrows(), strict=False)
    ]
    return f"{reads}changes at {place}, ablated minus clean, in {unit}. The largest: {', '.join(said)}."
