"""The lab's examples at whatever the page's switches and sliders say. Every number is one of `streamlens.lab`'s.

1. Two branches: a rerun for each setting of the switches, as arrows; what the second branch reads.
2. The image correction: input, correction, result, and one pixel of the three.
3. Euler steps: the states, the exact curve, the multiplier, and what it leads to.
4. The attention head: any weights, and what they leave at “ bank”.
5. A stack of blocks: what its product stretches by, and its paths by length.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor

from streamlens import plots, theme
from streamlens.lab import attention_by_hand, euler, image_correction, jacobian_products, paths, two_branches
from streamlens.lab.example import point

#: pictures to choose from: the three pixels by hand, and unseen images of the trained net
PICTURES = {"by hand": None, **{f"unseen image {number + 1}": number for number in range(4)}}
BRANCHES = ("branch one", "branch two")
_SWING = 8.0  # up to which an Euler step stays in the picture


@dataclass(frozen=True, eq=False, kw_only=True)
class Live:
    """One setting of an example: sentences and figures."""

    says: tuple[str, ...]
    figures: tuple[go.Figure, ...]


@cache
def _outcomes() -> dict[tuple[bool, bool], two_branches.Outcome]:
    return {found.on: found for found in two_branches.outcomes()}


def branches(one: bool, two: bool) -> Live:
    """The two branches with some switched off."""
    found = _outcomes()[one, two]
    writes = found.ledger.writes[:, 0, 0]
    points = torch.cat([torch.zeros_like(writes[:1]), writes.cumsum(0)])
    rows = [
        (name, step, float(x), float(y))
        for name, (before, after), on in zip(("start", *BRANCHES), pairwise(points), (True, one, two), strict=True)
        if on
        for step, (x, y) in (("from", before.tolist()), (name, after.tolist()))
    ]
    frame = pd.DataFrame(rows, columns=["series", "step", "x", "y"])
    figure = plots.arrows(frame, heading="The stream as a walk, an arrow for every write")
    colours = dict(zip(("start", *BRANCHES), (theme.NEUTRAL, *theme.SIGN_COLOURS["PuOr"]), strict=True))
    traces: Any = figure.data
    for trace in traces:
        trace.line = {"color": colours[trace.name], "width": 3, "dash": "dot" if trace.name == "start" else "solid"}
        trace.marker.update(color=colours[trace.name], size=[7, 14])
    # the walk starts where the axes cross; its label would lie under the first arrow
    figure.layout.annotations = [label for label in figure.layout.annotations if (label.x, label.y) != (0, 0)]
    figure.update_xaxes(range=[-2.2, 3.4]).update_yaxes(range=[-0.6, 3.8])
    reads = "reads" if two else "is off; it would read"
    says = [
        f"Branch two {reads} {point(points[2])}" + (f" and writes {point(writes[2])}." if two else "."),
        f"The stream ends at {point(found.end)}.",
    ]
    if not (one and two):
        said = "the same" if torch.equal(found.subtracted, found.end) else f"{point(found.subtracted)} instead"
        says.append(f"Subtracting what was switched off from the final stream gives {said}.")
    return Live(says=tuple(says), figures=(figure,))


@cache
def _trained() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    blurred, sharp = image_correction.images(2)
    run = image_correction.train(residual=True)
    return blurred, run.branch, run.predicted, sharp


def _picture(name: str) -> dict[str, Tensor]:
    number = PICTURES[name]
    if number is None:
        ledger = image_correction.correct()
        blurred, correction = ledger.writes[:, 0]
        return {"input": blurred, "signed correction": correction, "result": ledger.stream[0]}
    blurred, branch, predicted, _ = (images[number, 0] for images in _trained())
    return {"input": blurred, "signed correction": branch, "result": predicted}


def picture(name: str) -> Live:
    """Input, signed correction and result of one picture. Cost: the trained net's first takes seconds."""
    shown = _picture(name)
    frame = pd.concat(
        [
            pd.DataFrame(
                [
                    (title, row, column, value)
                    for row, line in enumerate(image.tolist())
                    for column, value in enumerate(line)
                ],
                columns=["image", "row", "column", "value"],
            )
            for title, image in shown.items()
        ],
        ignore_index=True,
    )
    figure = plots.pictures(frame, heading="Input + correction = result")
    figure.update_layout(meta={**figure.layout.meta, "min_width": 560})
    return Live(says=(pixel(name, 0, 0),), figures=(figure,))


def pixel(name: str, row: int, column: int) -> str:
    """One pixel of the three images, as a sum; the nearest where there is none."""
    shown = _picture(name)
    rows, columns = shown["input"].shape
    row, column = min(max(row, 0), rows - 1), min(max(column, 0), columns - 1)
    before, write, after = (float(image[row, column]) for image in shown.values())
    sign = "+" if write >= 0 else "−"
    return f"Row {row}, column {column}: {before:.3f} {sign} {abs(write):.3f} = {after:.3f}"


def steps(h: float) -> Live:
    """Sixteen Euler steps of x' = -2x."""
    states = euler.states(h)
    exact = euler.exact(h / 8, steps=8 * euler.STEPS)
    frame = pd.DataFrame(
        [("Euler steps", h * n, x) for n, x in enumerate(states)]
        + [("exact, exp(-2t)", h / 8 * n, x) for n, x in enumerate(exact)],
        columns=["series", "time", "state"],
    )
    figure = plots.curves(
        frame,
        x="time",
        y="state",
        series="series",
        heading=f"x' = -2x in steps of h = {h:g}",
        says=f"State at step 16: {small(states[16])}; exact {small(exact[-1])}.",
        dashed=("exact, exp(-2t)",),
    )
    swing = min(_SWING, 1.1 * max(1.0, *map(abs, states)))
    figure.update_yaxes(range=[-swing, swing])
    return Live(
        says=(
            f"Every step multiplies by 1 − 2h = {small(1 - euler.RATE * h)}.",
            f"It {euler.behaviour(h)}.",
            "Steps 0 to 4: " + ", ".join(small(x) for x in states[:5]) + f". Step 16: {small(states[16])}.",
        ),
        figures=(figure,),
    )


Matrix = Sequence[Sequence[float]]


def attention(w_q: Matrix, w_k: Matrix, w_v: Matrix) -> tuple[Live, pd.DataFrame]:
    """The head under other weights, and its numbers at “ bank”."""
    x = torch.tensor(attention_by_hand.VECTORS, dtype=torch.float64)
    found = attention_by_hand.head(x, w_q=w_q, w_k=w_k, w_v=w_v)
    names = [token.strip() for token in attention_by_hand.TOKENS]
    table = pd.DataFrame(
        {
            "reads": names,
            "score": found.scores[-1].tolist(),
            "weight": found.weights[-1].tolist(),
            "value": [point(row) for row in found.values],
            "writes": [point(row) for row in found.writes[-1]],
        }
    )
    ends = torch.cat([x[-1:], found.writes[-1]]).cumsum(0)
    walk = pd.DataFrame(
        {
            "series": "“ bank”",
            "step": ["embedding", *(f"from {name}" for name in names)],
            "x": ends[:, 0],
            "y": ends[:, 1],
        }
    )
    write = found.writes[-1].sum(0)
    said = f"The head writes {point(write)} at “ bank”: {point(x[-1])} becomes {point(x[-1] + write)}."
    figure = plots.arrows(walk, heading="“ bank” and what it takes from each token")
    return Live(says=(said,), figures=(figure,)), table


def stack(*, depth: int, diagonal: float, corner: float, alternating: bool) -> Live:
    """Blocks A = [[diagonal, corner], [0, diagonal]], every one the same or A and its transpose in turn."""
    made = jacobian_products.blocks(alternating=alternating, depth=depth, rows=((diagonal, corner), (0.0, diagonal)))
    found = jacobian_products.products(made)
    lines = {
        "eigenvalues": "largest |eigenvalues| of the blocks, multiplied",
        "singular": "largest singular value of the product",
        "bound": "largest singular values of the blocks, multiplied",
    }
    frame = pd.concat(
        [pd.DataFrame({"series": name, "block": found["block"], "value": found[key]}) for key, name in lines.items()],
        ignore_index=True,
    )
    stretch = plots.curves(
        frame,
        x="block",
        y="value",
        series="series",
        heading="What the product of the blocks can stretch by",
        y_title="factor (log scale)",
        log_y=True,
        dashed=(lines["eigenvalues"], lines["bound"]),
    )
    last: Any = found.iloc[-1]
    says = (
        f"{depth} blocks stretch by up to {small(float(last['singular']))}; "
        f"their eigenvalues alone would say {small(float(last['eigenvalues']))}.",
    )
    return Live(says=says, figures=(stretch, _lengths(made)))


def _lengths(made: Sequence[Tensor]) -> go.Figure:
    """The gradient of the first coordinate by path length, beside how many paths there are."""
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    sums = paths.by_length(torch.stack([block - torch.eye(2, dtype=torch.float64) for block in made]), start)
    total = sums.sum(0)
    size = float(total @ total)
    share = (sums @ total / size).tolist() if size else [0.0] * len(sums)
    depth = len(made)
    counts = [math.comb(depth, length) / 2**depth for length in range(depth + 1)]
    bars = pd.concat(
        [
            pd.DataFrame({"series": name, "length": range(depth + 1), "share": values})
            for name, values in (("share of the paths", counts), ("share of the gradient", share))
        ],
        ignore_index=True,
    )
    return plots.grouped_bars(
        bars,
        label="length",
        value="share",
        series="series",
        heading=f"2^{depth} paths by how many branches they take",
        says="The shares of the gradient of the first coordinate are signed and sum to 1.",
        x_title="branches taken",
    )


def small(value: float) -> str:
    """Three digits, with a plain exponent: `1.53e-5`."""
    text = re.sub(r"e([+-])0*(\d)", lambda found: f"e{found[1].replace('+', '')}{found[2]}", f"{value:.3g}")
    return f"−{text[1:]}" if text.startswith("-") else text
