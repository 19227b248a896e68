"""What many blocks do to a gradient: each multiplies it by 1 + f'(x).

1. Scalar branches f(x) = a x, depth times; the gradient of the end with respect to the start is (1 + a)^depth.
2. The same gradient as a sum: 1 by the direct route, the rest by the branches. At a = -1 the branches take back exactly
   what the direct route brings.
"""

import pandas as pd
import torch
from torch import Tensor

from streamlens import plots
from streamlens.lab.example import Check, Drawing, Example, closes, equal, relative
from streamlens.lab.network import Backward, backward, books, forward

DEPTH = 40
SLOPES = (-1.0, -0.2, 0.0, 0.05, 1.0)


def gradient(slope: float, *, depth: int = DEPTH, residual: bool = True) -> Backward:
    """The way back through `depth` branches f(x) = slope x, from gradient 1 at the end."""
    branches = [lambda x: slope * x] * depth
    states = forward(torch.ones(1, dtype=torch.float64), branches, residual=residual)
    return backward(states, branches, torch.ones(1, dtype=torch.float64), residual=residual)


def by_autograd(slope: float, *, depth: int = DEPTH) -> Tensor:
    """The same number from torch's own backward pass."""
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    end = forward(x, [lambda x: slope * x] * depth)[-1]
    return torch.autograd.grad(end.sum(), x)[0]


def example() -> Example:
    """The example with its numbers."""
    runs = {slope: gradient(slope) for slope in SLOPES}
    plain = {slope: gradient(slope, residual=False) for slope in SLOPES}
    frame = pd.DataFrame(
        [
            {"series": f"f(x) = {slope:g} x", "block": block, "gradient": float(value)}
            for slope, run in runs.items()
            for block, value in enumerate(run.gradients[:, 0])
        ]
    )
    table = pd.DataFrame(
        {
            "f(x)": [f"{slope:g} x" for slope in SLOPES],
            "factor of a block": [1 + slope for slope in SLOPES],
            "gradient at the start": [float(runs[slope].gradients[0]) for slope in SLOPES],
            "direct route": [float(runs[slope].direct) for slope in SLOPES],
            "through branches": [float(runs[slope].branch.sum()) for slope in SLOPES],
            "plain network": [float(plain[slope].gradients[0]) for slope in SLOPES],
        }
    )
    ledger = books(torch.ones(1, dtype=torch.float64), [lambda x: -0.2 * x] * DEPTH, name="gradient_factor")
    start = {slope: float(run.gradients[0]) for slope, run in runs.items()}
    return Example(
        name="gradient_factor",
        title="The factor of a block in the gradient",
        teaches=(
            "A skip connection adds 1 to every block's factor; it does not keep the product near 1. Branches that "
            "pull back a fifth leave 0.8^40 = 0.000133 of the gradient, branches that undo the stream leave 0, "
            "branches that double it make 2^40."
        ),
        table=table,
        drawings=(
            Drawing(
                caption="The gradient on its way back from block 40 (1) to the start, on a log axis.",
                draw=lambda dark: plots.curves(
                    frame,
                    x="block",
                    y="gradient",
                    series="series",
                    heading="Gradient of the end by depth",
                    says="40 scalar blocks x + f(x).",
                    x_title="after this block",
                    y_title="gradient (log scale)",
                    log_y=True,
                    dark=dark,
                ),
            ),
        ),
        checks=(
            equal("0.8^40 = 0.000133", start[-0.2], 0.000133, limit=5e-7),
            relative(
                "0.8^40 = exp(40 ln 0.8)", start[-0.2], torch.tensor(0.8, dtype=torch.float64).log().mul(40).exp()
            ),
            equal("f(x) = -x: the gradient is 0", start[-1.0], 0.0),
            equal("f(x) = x: 2^40 = 1 099 511 627 776", start[1.0], 1099511627776.0),
            equal(
                "f(x) = 0: 1, where the plain network has 0", [start[0.0], float(plain[0.0].gradients[0])], [1.0, 0.0]
            ),
            Check(
                says="direct route 1 + the branches = the gradient, for every slope",
                error=max(run.closure for run in runs.values()),
                limit=1e-11,  # 1 - 0.9998671 loses four of sixteen digits
            ),
            relative("torch.autograd gives the same", [float(by_autograd(s)) for s in SLOPES], list(start.values())),
            closes(ledger),
        ),
        ledger=ledger,
    )
