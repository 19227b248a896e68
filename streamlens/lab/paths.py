"""The paths view: L residual blocks are 2^L paths, one for each set of branches that a term went through.

1. At a fixed forward point the Jacobian of the network is the product of (I + J_s). Multiplied out it has 2^L terms.
2. `enumerate_paths` writes all of them out; `by_length` sums them by how many branches they pass, in one recursion with
   a vector per length: after each block, length k takes what length k - 1 sends through its branch.
3. A lesion takes a branch out and runs the rest again (Veit et al. 2016). Half of the paths are gone; what the other
   half makes of it is linear only as far as the branches are.
"""

import itertools
import math
from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamlens import plots
from streamlens.lab.example import Check, Drawing, Example, closes, equal, relative
from streamlens.lab.network import Branch, backward, books, forward, jacobian

DEPTH, WIDTH, SIZE, SEED = 10, 8, 0.5, 0


def network(
    *, depth: int = DEPTH, width: int = WIDTH, size: float = SIZE, seed: int = SEED
) -> tuple[Tensor, list[Branch]]:
    """A start and tanh branches with weights of standard deviation size / sqrt(width)."""
    made = torch.Generator().manual_seed(seed)

    def branch(weight: Tensor) -> Branch:
        return lambda x: torch.tanh(x @ weight.T)

    start = torch.randn(width, generator=made, dtype=torch.float64)
    shape = (width, width)
    return start, [
        branch(torch.randn(shape, generator=made, dtype=torch.float64) * size / width**0.5) for _ in range(depth)
    ]


def jacobians(start: Tensor, branches: Sequence[Branch]) -> Float[Tensor, "branch d_model d_model"]:
    """The Jacobian of each branch at the state it reads."""
    states = forward(start, branches)
    return torch.stack([jacobian(branch, x) for branch, x in zip(branches, states[:-1], strict=True)])


def enumerate_paths(
    steps: Float[Tensor, "branch d_model d_model"], gradient: Float[Tensor, " d_model"]
) -> dict[tuple[int, ...], Tensor]:
    """What each of the 2^L paths hands back to the start: for the branches s < t < u it takes, J_s^T J_t^T J_u^T g."""
    found = {}
    for length in range(len(steps) + 1):
        for taken in itertools.combinations(range(len(steps)), length):
            vector = gradient
            for branch in reversed(taken):
                vector = steps[branch].T @ vector
            found[taken] = vector
    return found


def by_length(
    steps: Float[Tensor, "branch d_model d_model"], gradient: Float[Tensor, " d_model"]
) -> Float[Tensor, "length d_model"]:
    """The same paths summed by the number of branches they take, 0 .. L. Cost: O(L^2) products, not 2^L."""
    sums = torch.zeros(len(steps) + 1, len(gradient), dtype=gradient.dtype)
    sums[0] = gradient
    for step in reversed(steps):
        sums[1:] += sums[:-1] @ step
    return sums


def lesions(start: Tensor, branches: Sequence[Branch]) -> pd.DataFrame:
    """Each branch taken out in turn: how far the end moves, and how far the frozen Jacobians say it would."""
    states, steps = forward(start, branches), jacobians(start, branches)
    eye = torch.eye(len(start), dtype=start.dtype)
    rows = []
    for number in range(len(branches)):
        rerun = forward(start, branches, on=[other != number for other in range(len(branches))])[-1] - states[-1]
        predicted = states[number] - states[number + 1]
        for step in steps[number + 1 :]:
            predicted = (eye + step) @ predicted
        rows.append((number, float(rerun.norm()), float(predicted.norm()), float((rerun - predicted).norm())))
    return pd.DataFrame(rows, columns=["branch", "rerun", "linear", "difference"])


def example() -> Example:
    """The example with its numbers."""
    start, branches = network()
    steps = jacobians(start, branches)
    gradient = torch.eye(WIDTH, dtype=torch.float64)[0]
    every, sums = enumerate_paths(steps, gradient), by_length(steps, gradient)
    written_out = [torch.stack([v for taken, v in every.items() if len(taken) == k]).sum(0) for k in range(DEPTH + 1)]
    states = forward(start, branches)
    back = backward(states, branches, gradient)
    total = back.gradients[0]
    share = sums @ total / (total @ total)
    counts = [math.comb(DEPTH, k) for k in range(DEPTH + 1)]
    table = pd.DataFrame(
        {
            "branches taken": range(DEPTH + 1),
            "paths": counts,
            "share of the paths": [count / 2**DEPTH for count in counts],
            "share of the gradient": share.tolist(),
            "norm of their sum": sums.norm(dim=-1).tolist(),
        }
    )
    bars = pd.concat(
        [
            pd.DataFrame({"series": name, "length": table["branches taken"], "share": table[name]})
            for name in ("share of the paths", "share of the gradient")
        ],
        ignore_index=True,
    )
    lesioned = lesions(start, branches)
    without = {taken: v for taken, v in every.items() if 3 not in taken}
    shorter = torch.cat([steps[:3], steps[4:]])
    small = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)[:, None, None]
    ledger = books(start, branches, name="paths")
    return Example(
        name="paths",
        title="Two to the L paths",
        teaches=(
            f"{DEPTH} blocks are {2**DEPTH} paths, on average {DEPTH // 2} branches long. Each branch a path takes "
            "makes its part smaller here, so that the gradient comes by short ones. Taking one branch out removes "
            "half of the paths and moves the end by a fifth to a half of its length."
        ),
        table=table,
        drawings=(
            Drawing(
                caption="By how many branches a path takes: share of all paths, and signed share of the gradient.",
                draw=lambda dark: plots.grouped_bars(
                    bars,
                    label="length",
                    value="share",
                    series="series",
                    heading="Most paths are long, the gradient comes by short ones",
                    says="The shares of the gradient are <sum of the paths, gradient> / |gradient|^2 and sum to 1.",
                    x_title="branches taken",
                    y_title="share",
                    dark=dark,
                ),
            ),
            Drawing(
                caption="How far the end moves when one branch is taken out and the rest runs again.",
                draw=lambda dark: plots.grouped_bars(
                    lesioned.melt(id_vars="branch", var_name="series", value_name="distance"),
                    label="branch",
                    value="distance",
                    series="series",
                    heading="Lesions",
                    says=f"The end has norm {float(states[-1].norm()):.2f}.",
                    x_title="branch taken out",
                    y_title="distance of the end",
                    dark=dark,
                ),
            ),
        ),
        checks=(
            # (1 + 1)(1 + 2)(1 + 3) = 24 = 1 + (1 + 2 + 3) + (2 + 3 + 6) + 6
            equal("J = 1, 2, 3: 1 + 6 + 11 + 6 = 24 = 2 . 3 . 4", by_length(small, small[0, 0])[:, 0], [1, 6, 11, 6]),
            equal(f"2^{DEPTH} = {2**DEPTH} paths", float(len(every)), 2.0**DEPTH),
            relative("all of them sum to the product of (I + J)", torch.stack(list(every.values())).sum(0), total),
            relative("the recursion gives each length's sum", sums, torch.stack(written_out)),
            Check(says="direct route + branches = the gradient", error=back.closure, limit=1e-13),
            equal("the shares sum to 1", float(share.sum()), 1.0, limit=1e-13),
            equal("half of the paths avoid branch 3", float(len(without)), 2.0 ** (DEPTH - 1)),
            relative(
                "and sum to the product without it",
                torch.stack(list(without.values())).sum(0),
                by_length(shorter, gradient).sum(0),
            ),
            # nothing runs after the last branch, so taking it out is subtracting it
            equal("taking out the last branch is linear", lesioned["difference"].iloc[-1], 0.0, limit=1e-15),
            closes(ledger),
        ),
        ledger=ledger,
    )
