"""Axes that several figures share: one of the steps of the stream, one of named rows.

Axes count in integers with text at the ticks, so that equal names stay apart and every row is labelled.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from streamlens import theme
from streamlens.display import plotly_escape
from streamlens.plots.finish import SMALL, axis_title

__all__ = ["CELLS", "layer_ticks", "row_axis", "step_axis"]

#: what the axes of a map of cells have in common
CELLS: dict[str, Any] = {
    "showgrid": False,
    "zeroline": False,
    "tickmode": "array",
    "tickfont": {"family": theme.MONO, "size": SMALL},
    "ticklabelstandoff": 4,
    "ticks": "",
}
#: labels that fit below a figure
_TICKS = 14


def step_axis(steps: Sequence[str], *, title: str = "") -> dict[str, Any]:
    """The axis of the stream's steps, labelled where there is room; `title` is plain text."""
    places = layer_ticks(steps)
    return {
        **({"title": axis_title(title)} if title else {}),
        "tickmode": "array",
        "tickvals": [i for i, _ in places],
        "ticktext": [plotly_escape(text) for _, text in places],
        "range": [-0.6, len(steps) - 0.4],
        "zeroline": False,
        "ticklabelstandoff": 7,  # below half of a label of the other axis that stands at its very end
    }


def layer_ticks(steps: Sequence[str]) -> list[tuple[int, str]]:
    """Every step where they fit, else the first step of every nth layer."""
    if len(steps) <= _TICKS:
        return list(enumerate(steps))
    starts: dict[str, int] = {}
    for i, label in enumerate(steps):
        starts.setdefault(label.partition(".")[0], i)
    layers = [(i, layer) for layer, i in starts.items() if layer[:1] == "L" and layer[1:].isdigit()]
    layers = layers or [(i, label) for label, i in starts.items()]
    return layers[:: -(-len(layers) // _TICKS)]


def row_axis(labels: Iterable[str], *, down: bool = False, size: int = SMALL) -> dict[str, Any]:
    """The axis of named rows, every one labelled; from the bottom up, as the stream goes, or down."""
    texts = [plotly_escape(label) for label in labels]
    ends = [-0.6, len(texts) - 0.4]
    return {
        "tickmode": "array",
        "tickvals": list(range(len(texts))),
        "ticktext": texts,
        "range": ends[::-1] if down else ends,
        "showgrid": False,
        "zeroline": False,
        "tickfont": {"family": theme.MONO, "size": size},
        "ticklabelstandoff": 4,
    }
