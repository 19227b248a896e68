"""A residual block is an Euler step: x[n+1] = x[n] + h f(x[n]) for x' = f(x).

1. f(x) = -k x with x(0) = 1: every step multiplies by 1 - h k, the exact solution by exp(-h k).
2. With k = 2: 0 < h < 1 decays (below 1/2 without changing sign), h = 1/2 lands on 0 at once, h = 1 swings between 1
   and -1 for ever, longer steps grow.
3. For any k the bound is h < 2 / k.
"""

import math

import pandas as pd
import torch

from streamlens import plots
from streamlens.lab.example import Drawing, Example, closes, equal
from streamlens.lab.network import books, forward

RATE = 2.0
STEPS = 16
SIZES = (0.25, 0.5, 0.75, 1.0, 1.25)
RATES = (0.5, 1.0, 2.0, 8.0)


def states(h: float, *, rate: float = RATE, steps: int = STEPS, start: float = 1.0) -> list[float]:
    """The start and the state after each step.

    Args:
        h: The step size, what every write is multiplied by.
        rate: k in x' = -k x.
        steps: How many.
        start: x(0).
    """
    begin = torch.tensor([start], dtype=torch.float64)
    return [float(x) for x in forward(begin, [lambda x: -rate * x] * steps, h=h)]


def exact(h: float, *, rate: float = RATE, steps: int = STEPS, start: float = 1.0) -> list[float]:
    """The exact solution at the same times."""
    return [start * math.exp(-rate * h * step) for step in range(steps + 1)]


def behaviour(h: float, *, rate: float = RATE) -> str:
    """What the steps do in the long run, from the factor 1 - h k."""
    factor = 1.0 - h * rate
    if factor == 0.0:
        return "lands on 0 at once"
    if abs(factor) < 1.0:
        return "decays" if factor > 0.0 else "decays, changing sign"
    return "oscillates for ever" if factor == -1.0 else "stays" if factor == 1.0 else "grows"


def example() -> Example:
    """The example with its numbers."""
    runs = {h: states(h) for h in SIZES}
    frame = pd.DataFrame(
        [(f"h = {h:g}", step, x) for h, run in runs.items() for step, x in enumerate(run)]
        + [("exact, at h = 0.75", step, x) for step, x in enumerate(exact(0.75))],
        columns=["series", "step", "state"],
    )
    table = pd.DataFrame(
        {
            "h": SIZES,
            "factor 1 - 2h": [1 - RATE * h for h in SIZES],
            "step 1": [run[1] for run in runs.values()],
            "step 2": [run[2] for run in runs.values()],
            "step 3": [run[3] for run in runs.values()],
            "step 16": [run[16] for run in runs.values()],
            "exact at 16": [exact(h)[16] for h in SIZES],
            "behaviour": [behaviour(h) for h in SIZES],
        }
    )
    ledger = books(torch.ones(1, dtype=torch.float64), [lambda x: -RATE * x] * STEPS, name="euler", h=0.75)
    bounds = [[behaviour(2.0 / k * part, rate=k) for k in RATES] for part in (0.99, 1.0, 1.01)]
    wanted = [[said] * len(RATES) for said in ("decays, changing sign", "oscillates for ever", "grows")]
    return Example(
        name="euler",
        title="Depth as time: Euler steps of x' = -2x",
        teaches=(
            "The block x + h f(x) is one Euler step. How strong a write may be follows: for x' = -k x it decays as "
            "long as 0 < h < 2/k, although the exact solution decays for every h."
        ),
        table=table,
        drawings=(
            Drawing(
                caption="The state after each step, for five step sizes.",
                draw=lambda dark: plots.curves(
                    frame.query("step <= 8"),
                    x="step",
                    y="state",
                    series="series",
                    heading="Euler steps of x' = -2x from x = 1",
                    says="Eight steps. h = 1.25 has left the picture by a factor of 26 then.",
                    dashed=("exact, at h = 0.75",),
                    dark=dark,
                ).update_yaxes(range=[-3.0, 3.0]),
            ),
        ),
        checks=(
            equal("h = 0.75: 1, -0.5, 0.25, -0.125, 0.0625", runs[0.75][:5], [1.0, -0.5, 0.25, -0.125, 0.0625]),
            equal("h = 0.75: (-1/2)^16 = 1.53e-5 at step 16", runs[0.75][16], 1.53e-5, limit=5e-8),
            equal("h = 0.5 lands on 0 at once", runs[0.5][1:], [0.0] * 16),
            equal("h = 1: 1, -1, 1, -1, ...", runs[1.0], [(-1.0) ** n for n in range(17)]),
            equal("h = 1.25: 1.5^16 = 656.84", runs[1.25][16], 656.8408355712890625),
            equal("h = 0.25: 0.5, 0.25, 0.125, without changing sign", runs[0.25][1:4], [0.5, 0.25, 0.125]),
            equal("the bound is 2/k for k = 0.5, 1, 2, 8", float(bounds == wanted), 1.0),
            equal("exact: exp(-2 . 0.75 . 16) = exp(-24) = 3.775e-11", exact(0.75)[16], 3.775e-11, limit=5e-15),
            closes(ledger),
        ),
        ledger=ledger,
    )
