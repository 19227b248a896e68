"""How much worse a model predicts under lesions: the loss of each beside the loss of the model as it is.

1. Drops: a bar a lesion, from the loss of the model as it is (a dashed line) to the loss under the lesion.
2. Shuffles: a point each, over the share of pairs of blocks that stand the other way round.
"""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.arguments import typed
from streamlens.display import plotly_escape, visible
from streamlens.errors import InputError
from streamlens.plots.finish import SMALL, axis_title, styled, text_px, titled
from streamlens.plots.selection import signed

__all__ = ["lesion"]

WORSE, BETTER = theme.SIGN_COLOURS["PuOr"][1], theme.SIGN_COLOURS["PuOr"][0]
_BODY = 340  # px
_COLUMN = 15  # px a bar
_NARROW = 560  # px
_LABEL = 28  # characters of a tick


@typed
def lesion(frame: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """The loss under each lesion, and as a dashed line that of the model as it is. Lesioned − as it is.

    Args:
        frame: a lesion frame, of `lesion(...).to_frame()`: its first row is the model as it is.
        dark: the theme of the figure by itself; a page follows its reader's.

    Raises:
        InputError: a frame without a lesion.
    """
    if len(frame) < 2:
        raise InputError(f"a figure of lesions has the model as it is and at least one lesion; got {len(frame)} rows.")
    own, made = float(frame["loss"].iloc[0]), frame.iloc[1:]
    names = [str(name) for name in made["lesion"]]
    losses, deltas = (made[column].to_numpy(dtype="float64") for column in ("loss", "delta"))
    shuffled = bool((made["n_dropped"] == 0).all())
    figure = go.Figure()
    place = made["kendall_tau"].tolist() if shuffled else [float(n) for n in range(len(made))]
    (_points if shuffled else _bars)(figure, place, names, losses, deltas, own)
    worst = int(np.argmax(losses))
    texts, tokens = frame.attrs.get("texts"), int(frame["tokens"].iloc[0])
    over = f"{tokens:,} tokens" + (f" of {texts} texts" if texts else "")
    height = titled(
        figure,
        _heading(made, str(frame.attrs.get("over") or "layers"), shuffled=shuffled),
        f"Cross entropy of the next token, nats per token, over {over}. Dashed: the model as it is, {own:.3f}.",
        f"Worst: {visible(names[worst])}, {losses[worst]:.3f} ({signed(float(deltas[worst]))}).",
        visible(str(frame.attrs.get("model") or "")),
    )
    line = {"color": theme.NEUTRAL, "width": 1.5, "dash": "dash"}
    figure.add_hline(y=own, line=line)
    _lay_out(figure, names, losses, own, title_px=height, shuffled=shuffled)
    summary = (
        f"{len(made)} lesions; the loss of the model as it is, {own:.3f} nats per token. The worst: "
        + ", ".join(f"{names[i]} {losses[i]:.3f}" for i in np.argsort(-losses, kind="stable")[:5])
        + "."
    )
    width = 90 + _COLUMN * len(made)
    return styled(figure, dark, summary=summary, min_width=width, max_width=max(_NARROW, 2 * width))


def _heading(made: pd.DataFrame, over: str, *, shuffled: bool) -> str:
    if shuffled:
        return "Loss with blocks in another order"
    if len(made) == 1:
        return f"Loss without {visible(str(made['lesion'].iloc[0]).rpartition(': ')[2])}"
    counts = {int(count) for count in made["n_dropped"]}
    if counts == {1}:
        return f"Loss without each {over.removesuffix('s')}"
    several = f"{counts.pop()} " if len(counts) == 1 else ""
    return f"Loss without {several}{over} at once"


def _hover(names: list[str], losses: np.ndarray, deltas: np.ndarray) -> dict:
    return {
        "customdata": [
            [plotly_escape(visible(name)), f"{loss:.3f}", signed(float(delta))]
            for name, loss, delta in zip(names, losses, deltas, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} nats per token (%{customdata[2]})<extra></extra>",
        "showlegend": False,
    }


def _bars(
    figure: go.Figure, place: list[float], names: list[str], losses: np.ndarray, deltas: np.ndarray, own: float
) -> None:
    figure.add_bar(
        x=place,
        y=deltas.tolist(),
        base=own,
        width=0.72,
        marker={"color": [WORSE if delta >= 0 else BETTER for delta in deltas]},
        **_hover(names, losses, deltas),
    )


def _points(
    figure: go.Figure, place: list[float], names: list[str], losses: np.ndarray, deltas: np.ndarray, own: float
) -> None:
    figure.add_scatter(
        mode="markers",
        x=place,
        y=losses.tolist(),
        marker={"size": 8, "color": WORSE},
        **_hover(names, losses, deltas),
    )


def _lay_out(
    figure: go.Figure, names: list[str], losses: np.ndarray, own: float, *, title_px: int, shuffled: bool
) -> None:
    ticks = [visible(name) for name in names]
    if max(map(len, ticks)) > _LABEL:  # a random set is called by its number; its members are on hover
        ticks = [tick.partition(": ")[0][:_LABEL] for tick in ticks]
    labels_px = 20 if shuffled else text_px(ticks) + 14
    across: dict = {"title": axis_title("share of pairs of blocks in inverted order (Kendall's tau distance)")}
    if not shuffled:
        across = {
            "tickmode": "array",
            "tickvals": list(range(len(ticks))),
            "ticktext": [plotly_escape(tick) for tick in ticks],
            "tickangle": -90,
            "range": [-0.6, len(ticks) - 0.4],
            "tickfont": {"family": theme.MONO, "size": SMALL},
            "showgrid": False,
        }
    low, high = min(own, float(losses.min())), max(own, float(losses.max()))
    pad = 0.06 * (high - low or 1.0)
    figure.update_layout(
        height=title_px + _BODY + labels_px,
        margin={"l": 64, "r": 16, "t": title_px + 8, "b": labels_px + 28},
        xaxis={"zeroline": False, **across},
        yaxis={
            "title": axis_title("loss, nats per token"),
            "range": [low - pad, high + pad],
            "zeroline": False,
        },
    )
