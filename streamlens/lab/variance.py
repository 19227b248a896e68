"""How the variance of a stream grows: Var(x + f) = Var x + Var f + 2 Cov(x, f).

1. Four numbers and four branches, by hand: uncorrelated, opposite, equal, and half of x.
2. With depth: branches that read a normed stream write a constant variance each, so that it grows like 1 + depth;
   branches that read the stream as it is write as much as is there, and it doubles at every block.
"""

import itertools
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from streamlens import plots
from streamlens.lab.example import Check, Drawing, Example, closes, equal
from streamlens.lab.network import Branch, books, forward

X = (1.0, -1.0, 2.0, -2.0)
BRANCHES = {
    "uncorrelated": (1.0, 1.0, -1.0, -1.0),
    "f = -x": (-1.0, 1.0, -2.0, 2.0),
    "f = x": (1.0, -1.0, 2.0, -2.0),
    "f = x / 2": (0.5, -0.5, 1.0, -1.0),
}
WIDTH, DEPTH, SEED = 512, 24, 0


def split(x: Tensor, f: Tensor) -> dict[str, float]:
    """Var(x + f) and the parts it is the sum of, over the last axis, with the mean taken off."""
    a, b = x - x.mean(-1, keepdim=True), f - f.mean(-1, keepdim=True)
    return {
        "var x": float(a.square().mean()),
        "var f": float(b.square().mean()),
        "2 cov": float(2 * (a * b).mean()),
        "var x+f": float((a + b).square().mean()),
    }


def stack(*, normed: bool, width: int = WIDTH, depth: int = DEPTH, seed: int = SEED) -> list[Branch]:
    """Random linear branches whose output is as large as what they read.

    Args:
        normed: Whether a branch reads the stream at variance 1 (pre-norm), or as it is.
        width: Coordinates of the stream.
        depth: How many branches.
        seed: Of the weights.
    """
    made = torch.Generator().manual_seed(seed)

    def branch(weight: Tensor) -> Branch:
        if not normed:
            return lambda x: x @ weight.T
        return lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0) @ weight.T

    shape = (width, width)
    return [branch(torch.randn(shape, generator=made, dtype=torch.float64) / width**0.5) for _ in range(depth)]


def growth(*, normed: bool, width: int = WIDTH, depth: int = DEPTH, seed: int = SEED) -> list[Tensor]:
    """The states of such a network from a random start of variance 1; arguments as in `stack`."""
    start = torch.randn(width, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    start = (start - start.mean()) / start.std(correction=0)
    return forward(start, stack(normed=normed, width=width, depth=depth, seed=seed))


def example() -> Example:
    """The example with its numbers."""
    x = torch.tensor(X, dtype=torch.float64)
    cases = {name: split(x, torch.tensor(f, dtype=torch.float64)) for name, f in BRANCHES.items()}
    runs = {"pre-norm, measured": growth(normed=True), "not normed, measured": growth(normed=False)}
    frame = pd.DataFrame(
        [(name, depth, float(state.var(correction=0))) for name, run in runs.items() for depth, state in enumerate(run)]
        + [("1 + depth", depth, 1.0 + depth) for depth in range(DEPTH + 1)]
        + [("2^depth", depth, 2.0**depth) for depth in range(DEPTH + 1)],
        columns=["series", "block", "variance"],
    )
    ends = {name: float(run[-1].var(correction=0)) for name, run in runs.items()}
    pairs = [pair for run in runs.values() for pair in _pairs(run)]
    ledger = books(runs["pre-norm, measured"][0], stack(normed=True), name="variance")
    return Example(
        name="variance",
        title="The variance of a growing stream",
        teaches=(
            "Variances add only where branch and stream are uncorrelated: f = -x leaves none, f = x four times as "
            "much. In a pre-norm network every branch writes the same size, so that the stream grows like 1 + depth "
            "and a later write is a smaller share of it; without norms it doubles at every block."
        ),
        table=pd.DataFrame([{"branch": name, **parts} for name, parts in cases.items()]),
        drawings=(
            Drawing(
                caption=f"Variance of the stream through {DEPTH} random linear branches, width {WIDTH}.",
                draw=lambda dark: plots.curves(
                    frame,
                    x="block",
                    y="variance",
                    series="series",
                    heading="Variance of the stream by depth",
                    y_title="variance (log scale)",
                    log_y=True,
                    dashed=("1 + depth", "2^depth"),
                    dark=dark,
                ),
            ),
        ),
        checks=(
            equal("uncorrelated: 2.5 + 1 + 0 = 3.5", list(cases["uncorrelated"].values()), [2.5, 1.0, 0.0, 3.5]),
            equal("f = -x: 2.5 + 2.5 - 5 = 0", list(cases["f = -x"].values()), [2.5, 2.5, -5.0, 0.0]),
            equal("f = x: 2.5 + 2.5 + 5 = 10", list(cases["f = x"].values()), [2.5, 2.5, 5.0, 10.0]),
            equal("f = x / 2: 2.5 + 0.625 + 2.5 = 5.625", list(cases["f = x / 2"].values()), [2.5, 0.625, 2.5, 5.625]),
            Check(says="the three parts sum at every block of both networks", error=_worst(pairs), limit=1e-12),
            equal("pre-norm: 1 + 24 within a fifth", ends["pre-norm, measured"] / 25.0, 1.0, limit=0.2),
            # 2 Cov is 2 / sqrt(512) = 9 % of Var x and of either sign: sqrt(24) times 0.06 doublings
            equal("not normed: 24 doublings within 1.5", _log2(ends["not normed, measured"]), 24.0, limit=1.5),
            closes(ledger),
        ),
        ledger=ledger,
    )


def _log2(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64).log2()


def _pairs(run: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each state with what was added to it."""
    return [(before, after - before) for before, after in itertools.pairwise(run)]


def _worst(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The largest relative error of Var(x + f) as the sum of its parts."""
    parts = [split(x, f) for x, f in pairs]
    return max(abs(p["var x"] + p["var f"] + p["2 cov"] - p["var x+f"]) / p["var x+f"] for p in parts)
