"""A branch that writes nothing: the residual network hands its input on, the plain one forgets it.

1. A stack of blocks with f(x) = scale x, beside the same without skip connections.
2. At scale 0 the residual end is the start, the plain end is 0; the gradients are 1 and 0.
3. At other scales each block multiplies by 1 + scale, or by scale.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch

from streamlens import plots
from streamlens.lab.example import Drawing, Example, closes, equal
from streamlens.lab.network import backward, books, forward

START = (3.0, -1.0, 2.0, 0.5)
DEPTH = 5
SCALES = (0.0, 0.1, 0.5)


def stack(scale: float, *, start: Sequence[float] = START, depth: int = DEPTH, residual: bool = True) -> dict:
    """Runs the blocks forward and back.

    Args:
        scale: Each branch is f(x) = scale x.
        start: The input.
        depth: How many blocks.
        residual: False for x[s+1] = f(x[s]).

    Returns:
        `states`, [depth + 1, d_model], and `gradients` of the sum of the end, of the same shape.
    """
    x = torch.tensor(start, dtype=torch.float64)
    branches = [lambda x: scale * x] * depth
    states = forward(x, branches, residual=residual)
    back = backward(states, branches, torch.ones_like(x), residual=residual)
    return {"states": torch.stack(states), "gradients": back.gradients}


def example() -> Example:
    """The example with its numbers."""
    rows = []
    for scale in SCALES:
        for residual in (True, False):
            run = stack(scale, residual=residual)
            kind = "residual" if residual else "plain"
            for depth, (state, gradient) in enumerate(zip(run["states"], run["gradients"], strict=True)):
                rows.append(
                    {
                        "network": kind,
                        "branch": f"F(x) = {scale:g} x",
                        "series": f"{kind}, F(x) = {scale:g} x",
                        "block": depth,
                        "norm": float(state.norm()),
                        "gradient": float(gradient.norm()),
                    }
                )
    frame = pd.DataFrame(rows)
    kept, lost = stack(0.0), stack(0.0, residual=False)
    start = torch.tensor(START, dtype=torch.float64)
    ledger = books(start, [torch.zeros_like] * DEPTH, name="zero_branch")
    return Example(
        name="zero_branch",
        title="A branch that writes nothing",
        teaches=(
            "To do nothing a residual block only has to write 0, which small weights nearly do. A plain block has to "
            "learn the identity: with F = 0 its output is 0, and so is every gradient before it."
        ),
        table=_ends(frame),
        drawings=(
            Drawing(
                caption=f"Norm of the state after each of {DEPTH} blocks, from {float(start.norm()):.3f} at the start.",
                draw=lambda dark: plots.curves(
                    frame,
                    x="block",
                    y="norm",
                    series="series",
                    heading="The state through a stack of weak branches",
                    y_title="norm of the state",
                    dashed=[name for name in frame["series"] if name.startswith("plain")],
                    dark=dark,
                ),
            ),
        ),
        checks=(
            equal("F = 0: the residual end is the start", kept["states"][-1], start),
            equal("F = 0: the plain end is 0", lost["states"][-1], torch.zeros(4)),
            equal("F = 0: the residual gradient is 1 at the start", kept["gradients"][0], torch.ones(4)),
            equal("F = 0: the plain gradient is 0 at the start", lost["gradients"][0], torch.zeros(4)),
            equal("F(x) = x / 2: residual 1.5^5 = 7.59375 times the start", stack(0.5)["states"][-1], 7.59375 * start),
            equal("F(x) = x / 2: plain 1/32 of it", stack(0.5, residual=False)["states"][-1], start / 32),
            closes(ledger, limit=0.0),
        ),
        ledger=ledger,
    )


def _ends(frame: pd.DataFrame) -> pd.DataFrame:
    """What comes out at the end, and what gradient comes back to the start."""
    first, last = (frame.query(f"block == {block}").reset_index(drop=True) for block in (0, DEPTH))
    named: Any = last[["network", "branch"]]
    return named.assign(**{"norm at the end": last["norm"], "gradient norm at the start": first["gradient"]})
