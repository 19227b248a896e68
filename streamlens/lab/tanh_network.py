"""Forty tanh layers of width 64: what comes back to layer 0 of a gradient, with and without skip connections.

1. Weights of standard deviation 0.8 / sqrt(64), one seed; the plain and the residual network share them and the input.
2. The metric is one fixed direction at the end. Its gradient at every layer is taken back branch by branch.
3. Plain, each layer multiplies by tanh'(.) W, which shrinks a vector to at most about 0.8 of its size. Residual, the
   direct route alone keeps it, and the branches' terms are added to that: the sum over rows closes on the total.
"""

import pandas as pd
import torch
from torch import Tensor

from streamlens import plots
from streamlens.lab.example import Check, Drawing, Example, below, closes, relative
from streamlens.lab.network import Backward, Branch, backward, books, forward

DEPTH, WIDTH, SIZE, SEED = 40, 64, 0.8, 0


def network(
    *, depth: int = DEPTH, width: int = WIDTH, size: float = SIZE, seed: int = SEED
) -> tuple[Tensor, list[Branch], Tensor]:
    """The input, the layers, and the direction that is read at the end (norm 1).

    Args:
        depth: How many layers.
        width: Coordinates.
        size: Weights have standard deviation size / sqrt(width).
        seed: Of all three.
    """
    made = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    def layer(weight: Tensor) -> Branch:
        return lambda x: torch.tanh(x @ weight.T)

    start, reader = normal(width), normal(width)
    layers = [layer(normal(width, width) * size / width**0.5) for _ in range(depth)]
    return start, layers, reader / reader.norm()


def way_back(
    *, residual: bool, depth: int = DEPTH, size: float = SIZE, seed: int = SEED
) -> tuple[list[Tensor], Backward]:
    """The states of one of the two networks and the gradient at each."""
    start, layers, reader = network(depth=depth, size=size, seed=seed)
    states = forward(start, layers, residual=residual)
    return states, backward(states, layers, reader, residual=residual)


def by_autograd(*, residual: bool) -> Tensor:
    """The gradient at the input from torch's own backward pass."""
    start, layers, reader = network()
    start = start.clone().requires_grad_()
    return torch.autograd.grad(forward(start, layers, residual=residual)[-1] @ reader, start)[0]


def example() -> Example:
    """The example with its numbers."""
    runs = {kind: way_back(residual=kind == "residual") for kind in ("residual", "plain")}
    frame = pd.DataFrame(
        [
            (kind, layer, float(gradient.norm()), float(state.norm()))
            for kind, (states, back) in runs.items()
            for layer, (gradient, state) in enumerate(zip(back.gradients, states, strict=True))
        ],
        columns=["series", "layer", "gradient", "state"],
    )
    residual, plain = (runs[kind][1] for kind in ("residual", "plain"))
    direct = pd.DataFrame({"series": "direct route alone", "layer": range(DEPTH + 1), "gradient": 1.0})
    start, layers, _ = network()
    ledger = books(start, layers, name="tanh_network")
    rows = frame.pivot_table(index="layer", columns="series", values=["gradient", "state"])
    table = pd.DataFrame(
        {
            "layer": range(DEPTH + 1),
            "gradient, residual": rows["gradient", "residual"],
            "gradient, plain": rows["gradient", "plain"],
            "state, residual": rows["state", "residual"],
            "state, plain": rows["state", "plain"],
        }
    )
    shrunk = [
        float(after.norm() / before.norm()) for after, before in zip(plain.gradients, plain.gradients[1:], strict=False)
    ]
    return Example(
        name="tanh_network",
        title="Forty tanh layers",
        teaches=(
            "Without skip connections the gradient shrinks by about a fifth at every layer and next to nothing "
            "reaches the input. With them it is the direct route plus what each branch adds, and it grows instead."
        ),
        table=table.query("layer % 5 == 0").reset_index(drop=True),
        drawings=(
            Drawing(
                caption="Norm of the gradient of one direction (norm 1) at the end, by the layer it has come back to.",
                draw=lambda dark: plots.curves(
                    pd.concat([frame, direct], ignore_index=True),
                    x="layer",
                    y="gradient",
                    series="series",
                    heading="Gradient norm by layer",
                    says=f"Width {WIDTH}, weights {SIZE:g} / sqrt({WIDTH}), same seed, weights and input.",
                    y_title="gradient norm (log scale)",
                    log_y=True,
                    dashed=("direct route alone",),
                    dark=dark,
                ),
            ),
        ),
        checks=(
            Check(says="direct route + 40 branches = the gradient at the input", error=residual.closure, limit=1e-13),
            relative("torch.autograd gives the same, residual", residual.gradients[0], by_autograd(residual=True)),
            relative("and plain", plain.gradients[0], by_autograd(residual=False)),
            # E |W^T v|^2 = 0.64 |v|^2; tanh' <= 1 shrinks further. 0.8 +- 0.8 / sqrt(2 . 64) = 0.07 a layer
            below("plain: a layer keeps at most 0.8 of the gradient, plus 3 standard deviations", max(shrunk), 1.01),
            below("plain: less than 0.8^40 . 3 = 0.0004 reaches the input", float(plain.gradients[0].norm()), 0.0004),
            below("residual: at least the direct route's 1 reaches it", 1.0, float(residual.gradients[0].norm())),
            closes(ledger),
        ),
        ledger=ledger,
    )
