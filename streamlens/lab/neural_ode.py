"""From depth to continuous time: as steps get shorter at a fixed rate, a residual network becomes an ODE.

1. x' = f(x) over a fixed time T, in L residual blocks of step h = T / L with the same weights. L grows, T stays.
2. The reference is an adaptive solver (scipy's `solve_ivp`, order 8); for a linear f it is the exact solution too.
3. Euler's error is proportional to h: doubling the depth halves it. At h = 1 per block, deeper is another function.
"""

import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamlens import plots
from streamlens.lab.example import Drawing, Example, closes, equal
from streamlens.lab.network import Branch, books, forward

#: a turn with a slow decay: x' = A x has the solution e^(-t/2) (cos 2t, sin 2t) from (1, 0)
TURN = ((-0.5, -2.0), (2.0, -0.5))
START = (1.0, 0.0)
TIME = 3.0
DEPTHS = (4, 8, 16, 32, 64, 128, 256, 512)


def linear(rows: Sequence[Sequence[float]] = TURN) -> Branch:
    """f(x) = A x."""
    weight = torch.tensor(rows, dtype=torch.float64)
    return lambda x: x @ weight.T


def bent(rows: Sequence[Sequence[float]] = TURN) -> Branch:
    """f(x) = tanh(A x)."""
    weight = torch.tensor(rows, dtype=torch.float64)
    return lambda x: torch.tanh(x @ weight.T)


def network(
    f: Branch, depth: int, *, time: float = TIME, start: Sequence[float] = START
) -> Float[Tensor, "depth d_model"]:
    """The states of `depth` residual blocks that share one branch, each of step time / depth."""
    begin = torch.tensor(start, dtype=torch.float64)
    return torch.stack(forward(begin, [f] * depth, h=time / depth))


def solver(
    f: Branch, times: Sequence[float], *, start: Sequence[float] = START, tolerance: float = 1e-11
) -> Float[Tensor, "time d_model"]:
    """The continuous solution at some times, by an adaptive Runge-Kutta method of order 8."""
    from scipy.integrate import solve_ivp

    found = solve_ivp(
        lambda _, x: f(torch.from_numpy(x)).numpy(),
        (0.0, max(times)),
        list(start),
        method="DOP853",
        t_eval=list(times),
        rtol=tolerance,
        atol=tolerance,
    )
    return torch.from_numpy(found.y.T.copy())


def exact(time: float) -> Float[Tensor, " d_model"]:
    """The solution of the linear turn from (1, 0)."""
    decay = math.exp(-time / 2)
    return torch.tensor([decay * math.cos(2 * time), decay * math.sin(2 * time)], dtype=torch.float64)


def example() -> Example:
    """The example with its numbers."""
    fields = {"f(x) = A x": linear(), "f(x) = tanh(A x)": bent()}
    ends = {name: solver(f, [TIME])[0] for name, f in fields.items()}
    errors = {
        name: [float((network(f, depth)[-1] - ends[name]).norm()) for depth in DEPTHS] for name, f in fields.items()
    }
    frame = pd.DataFrame(
        [(name, depth, error) for name, row in errors.items() for depth, error in zip(DEPTHS, row, strict=True)],
        columns=["series", "blocks", "error"],
    )
    walks = pd.concat([_path(f"{depth} blocks", network(bent(), depth)) for depth in (4, 16, 64)] + [_continuous()])
    ratios = {name: row[-2] / row[-1] for name, row in errors.items()}
    unscaled = [torch.stack(forward(torch.tensor(START, dtype=torch.float64), [linear()] * n))[-1] for n in (4, 8)]
    ledger = books(torch.tensor(START, dtype=torch.float64), [bent()] * 64, name="neural_ode", h=TIME / 64)
    return Example(
        name="neural_ode",
        title="From blocks to an ODE",
        teaches=(
            "With the step tied to the depth, h = T / L, more blocks are a finer solution of the same equation, and "
            "the end converges to what an adaptive solver gives. With h = 1 in every block more blocks are more time."
        ),
        table=pd.DataFrame(
            {"blocks": DEPTHS, "h": [TIME / depth for depth in DEPTHS]}
            | {f"error, {name}": row for name, row in errors.items()}
        ),
        drawings=(
            Drawing(
                caption="Distance of the end from the adaptive solver's, by depth at a fixed time of 3.",
                draw=lambda dark: plots.curves(
                    frame,
                    x="blocks",
                    y="error",
                    series="series",
                    heading="Deeper at a fixed rate converges to the ODE",
                    says="Twice the blocks, half the error.",
                    x_title="residual blocks (log scale)",
                    y_title="distance (log scale)",
                    log_x=True,
                    log_y=True,
                    dark=dark,
                ),
            ),
            Drawing(
                caption="The states of f(x) = tanh(A x) in the plane, at three depths and in continuous time.",
                draw=lambda dark: plots.curves(
                    walks,
                    x="x",
                    y="y",
                    series="series",
                    heading="The path of the state",
                    says="From (1, 0), for a time of 3.",
                    x_title="first coordinate",
                    y_title="second coordinate",
                    dashed=("adaptive solver",),
                    dark=dark,
                ).update_yaxes(scaleanchor="x"),
            ),
        ),
        checks=(
            equal(
                "the solver gives e^-1.5 (cos 6, sin 6) = (0.2142, -0.0623)",
                ends["f(x) = A x"],
                exact(TIME),
                limit=1e-9,
            ),
            equal("which is that by hand", exact(TIME), [0.214243, -0.062346], limit=5e-7),
            # one step of h = 3 from (1, 0): (1 - 1.5, 6)
            equal("one block of h = 3: (1, 0) + 3 (-0.5, 2) = (-0.5, 6)", network(linear(), 1)[-1], [-0.5, 6.0]),
            equal("the error halves when the depth doubles, f linear", ratios["f(x) = A x"], 2.0, limit=0.06),
            equal("and with tanh", ratios["f(x) = tanh(A x)"], 2.0, limit=0.06),
            # |1 - 0.5 + 2i| = sqrt(4.25) a block
            equal(
                "at h = 1 the norms are 4.25^2 and 4.25^4 after 4 and 8 blocks",
                torch.stack([end.norm() for end in unscaled]),
                [4.25**2, 4.25**4],
                limit=1e-9,
            ),
            closes(ledger),
        ),
        ledger=ledger,
    )


def _path(name: str, states: Tensor) -> pd.DataFrame:
    return pd.DataFrame({"series": name, "x": states[:, 0], "y": states[:, 1]})


def _continuous() -> pd.DataFrame:
    return _path("adaptive solver", solver(bent(), [TIME * i / 100 for i in range(101)]))
