"""Degradation: a deeper plain network fits its own training data worse, a residual one does not (He et al. 2015).

1. Two spiral arms of 64 points each, to be told apart; nothing is held out, since this is about fitting.
2. Plain x[s+1] = tanh(W x[s] + b) and residual x[s+1] = x[s] + tanh(W x[s] + b), with the same starting weights
   0.8 / sqrt(width), the same optimiser and the same number of steps.
3. Several seeds are trained at once, as one batch of networks; what is compared is the mean of their last losses.

The deeper network contains the shallower one (further layers only have to hand their input on), so whatever it loses it
loses to training.
"""

import math
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamlens import plots
from streamlens.lab.book import Book
from streamlens.lab.example import Drawing, Example, below, closes
from streamlens.ledger import Ledger
from streamlens.sites import Site

DEPTHS = (4, 12, 24)
SEEDS, WIDTH, STEPS, POINTS, RATE = 4, 16, 200, 128, 3e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """A batch of networks after training, one a seed.

    Attributes:
        losses: Binary cross-entropy before each step, in nats, [step, seed].
        weights: `enter` [seed, 2, width], `blocks` [depth, seed, width, width], `biases` [depth, seed, 1, width],
            `leave` [seed, width, 1].
    """

    losses: Float[Tensor, "step seed"]
    weights: dict[str, Tensor]


def spirals(points: int = POINTS) -> tuple[Tensor, Tensor]:
    """The points, [points, 2], and which arm each belongs to, [points, 1]."""
    arm = torch.arange(points) % 2
    along = torch.arange(points) / points
    angle = 7.5 * along + math.pi * arm
    radius = 0.2 + 0.8 * along
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1), arm[:, None].float()


def states(weights: dict[str, Tensor], x: Tensor, *, residual: bool) -> list[Tensor]:
    """The state before the first block and after each, [seed, points, width]."""
    found = [x @ weights["enter"]]
    for w, b in zip(weights["blocks"], weights["biases"], strict=True):
        write = torch.tanh(found[-1] @ w + b)
        found.append(found[-1] + write if residual else write)
    return found


def train(depth: int, *, residual: bool, seeds: int = SEEDS, steps: int = STEPS, width: int = WIDTH) -> Trained:
    """Trains networks of one depth with Adam on all points at once."""
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int, size: float) -> Tensor:
        return (torch.randn(*shape, generator=made) * size).requires_grad_()

    weights = {
        "enter": normal(seeds, 2, width, size=2**-0.5),
        "leave": normal(seeds, width, 1, size=width**-0.5),
        "blocks": normal(depth, seeds, width, width, size=0.8 * width**-0.5),
        "biases": torch.zeros(depth, seeds, 1, width, requires_grad=True),
    }
    x, arm = spirals()
    optimiser = torch.optim.Adam(weights.values(), lr=RATE)
    losses = []
    with torch.enable_grad():
        for _ in range(steps):
            logits = states(weights, x, residual=residual)[-1] @ weights["leave"]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, arm.expand_as(logits), reduction="none"
            ).mean((1, 2))
            losses.append(loss.detach())
            optimiser.zero_grad()
            loss.sum().backward()
            optimiser.step()
    return Trained(losses=torch.stack(losses), weights={name: w.detach() for name, w in weights.items()})


def books(trained: Trained) -> Ledger:
    """The books of the first seed's residual network over all points: a point is a token."""
    weights = {name: w[:, :1] if name in ("blocks", "biases") else w[:1] for name, w in trained.weights.items()}
    found = states(weights, spirals()[0], residual=True)
    book = Book()
    book.add("embed", found[0])
    for number, (before, w, b) in enumerate(zip(found[:-1], weights["blocks"], weights["biases"], strict=True)):
        book.add(Site(kind="branch", layer=number), torch.tanh(before @ w + b))
    return book.close(found[-1], name="degradation", tokens=[[str(n) for n in range(POINTS)]])


def example() -> Example:
    """The example with its numbers."""
    runs = {
        (kind, depth): train(depth, residual=kind == "residual") for kind in ("plain", "residual") for depth in DEPTHS
    }
    frame = pd.DataFrame(
        [
            (f"{kind}, {depth} blocks", step, float(loss.mean()))
            for (kind, depth), run in runs.items()
            for step, loss in enumerate(run.losses)
        ],
        columns=["series", "step", "loss"],
    )
    last = {key: float(run.losses[-1].mean()) for key, run in runs.items()}
    table = pd.DataFrame(
        [
            {
                "network": kind,
                "blocks": depth,
                "mean loss": last[kind, depth],
                "best seed": float(run.losses[-1].min()),
                "worst seed": float(run.losses[-1].max()),
            }
            for (kind, depth), run in runs.items()
        ]
    )
    shallow, deep = DEPTHS[0], DEPTHS[-1]
    ledger = books(runs["residual", deep])
    drop = last["plain", deep] / last["plain", shallow]
    return Example(
        name="degradation",
        title="Degradation",
        teaches=(
            "Twenty-four plain layers could do what four do, but trained the same way they fit their own training "
            "data worse. With skip connections the deeper network fits better."
        ),
        table=table,
        drawings=(
            Drawing(
                caption=f"Training loss of two spiral arms, mean of {SEEDS} seeds; plain networks dashed.",
                draw=lambda dark: plots.curves(
                    frame,
                    x="step",
                    y="loss",
                    series="series",
                    heading="Deeper, plain and residual",
                    says=f"Width {WIDTH}, tanh, Adam, same starting weights.",
                    y_title="training loss (nats, log scale)",
                    log_y=True,
                    dashed=[name for name in frame["series"] if name.startswith("plain")],
                    dark=dark,
                ),
            ),
        ),
        checks=(
            below(f"plain: {deep} blocks fit at least twice as badly as {shallow}", 2.0, drop),
            below(
                f"residual: {deep} blocks fit better than {shallow}", last["residual", deep], last["residual", shallow]
            ),
            below(f"{deep} blocks: residual below plain", last["residual", deep], last["plain", deep]),
            closes(ledger, limit=1e-5),
        ),
        ledger=ledger,
    )
