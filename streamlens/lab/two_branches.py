"""Two branches on two coordinates: switching one off is not subtracting what it wrote.

1. Branch one reads (u, v) and adds (0, u); branch two adds (-v, 0). They run as a model of their own through
   `streamlens.load`, so that the books, the switches and the effects are the product's.
2. Each pair of switches is one rerun; subtraction is the clean sum without a row.
3. On the way back the gradient of the first coordinate is a sum over the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from streamlens import plots
from streamlens.experiments.ablate import ablate
from streamlens.experiments.backward import backward as backward_ledger
from streamlens.hooks.runs.replay import replay
from streamlens.hooks.writes.capture import decompose
from streamlens.lab.example import Drawing, Example, closes, equal, point
from streamlens.lab.network import Backward, TokenNetwork, backward, forward
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.load import load
from streamlens.readouts.readers.reader import Reader

START = (2.0, 1.0)
ONE = ((0.0, 0.0), (1.0, 0.0))
TWO = ((0.0, -1.0), (0.0, 0.0))
#: further tokens, so that the probe that measures the wiring has something to tell apart
OTHERS = ((1.0, 0.0), (0.5, -3.0))
PROMPT = [[0]]
LABELS = ("L0.branch", "L1.branch")


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """One setting of the two switches.

    Attributes:
        on: Whether branch one and branch two ran.
        ledger: The books of that run.
        subtracted: What the clean sum without the rows switched off would have given, [d_model].
    """

    on: tuple[bool, bool]
    ledger: Ledger
    subtracted: Tensor

    @property
    def end(self) -> Tensor:
        """The stream at the end, [d_model]."""
        return self.ledger.stream[0, 0]


def network(
    start: Sequence[float] = START, one: Sequence[Sequence[float]] = ONE, two: Sequence[Sequence[float]] = TWO
) -> ModelHandle:
    """The two branches as a loaded model; its prompt is `PROMPT`, a token whose vector is `start`.

    Args:
        start: The vector before the branches.
        one: The matrix of branch one; it adds `one @ x`.
        two: The matrix of branch two.

    Raises:
        WiringError: The branches write nothing that could be told apart (a matrix of zeros).
    """
    vectors = torch.tensor([start, *OTHERS], dtype=torch.float64)
    return load(TokenNetwork(vectors, [torch.tensor(rows, dtype=torch.float64) for rows in (one, two)]))


def outcomes(model: ModelHandle | None = None) -> list[Outcome]:
    """The four settings of the switches, both on first, of a `network`; by default the example's own."""
    model = network() if model is None else model
    clean = decompose(model, PROMPT)
    found = []
    for on in ((True, True), (True, False), (False, True), (False, False)):
        off = [label for label, runs in zip(LABELS, on, strict=True) if not runs]
        ledger = replay(model, PROMPT, off).ledger if off else clean
        kept = [row for row, label in enumerate(clean.labels) if label not in off]
        found.append(Outcome(on=on, ledger=ledger, subtracted=clean.writes[kept, 0, 0].sum(0)))
    return found


def way_back(start: Sequence[float] = START, *, coordinate: int = 0) -> Backward:
    """The gradient of one coordinate of the end, row by row."""
    branches = [torch.tensor(rows, dtype=torch.float64) for rows in (ONE, TWO)]
    functions = [lambda x, m=matrix: x @ m.T for matrix in branches]
    states = forward(torch.tensor(start, dtype=torch.float64), functions)
    return backward(states, functions, torch.eye(2, dtype=torch.float64)[coordinate])


def example() -> Example:
    """The example with its numbers."""
    model, first_coordinate = network(), Reader.direction([1.0, 0.0], name="first coordinate")
    both, first, second, neither = outcomes(model)
    effect = ablate(model, PROMPT, LABELS[0], readers=first_coordinate).effect_of(first_coordinate)
    back, product = way_back(), backward_ledger(model, PROMPT, first_coordinate)
    names = ("both", "branch one only", "branch two only", "neither")
    cases = list(zip(names, (both, first, second, neither), strict=True))
    table = pd.DataFrame(
        {
            "switched on": [name for name, _ in cases],
            "writes": [_points(case.ledger.writes[1:, 0, 0]) for _, case in cases],
            "rerun": [point(case.end) for _, case in cases],
            "subtracted": [point(case.subtracted) for _, case in cases],
        }
    )
    walks = pd.concat([_walk(name, case) for name, case in cases[:3]], ignore_index=True)
    return Example(
        name="two_branches",
        title="Two branches, and switching them off",
        teaches=(
            "Each branch adds to what the ones before it left. Switch branch one off and branch two reads another "
            "stream: the rerun ends at (1, 1). Subtracting what branch one wrote from the final sum gives (-1, 1)."
        ),
        table=table,
        drawings=(
            Drawing(
                caption="The stream as a walk: every arrow is a write. Without branch one, branch two's is shorter.",
                draw=lambda dark: plots.arrows(walks, heading="Where the stream goes, by switches", dark=dark),
            ),
        ),
        checks=(
            equal("(2, 1) + (0, 2) = (2, 3), the first branch alone", first.end, [2.0, 3.0]),
            equal("(2, 3) + (-3, 0) = (-1, 3), both", both.end, [-1.0, 3.0]),
            equal("without branch one: (2, 1) + (-1, 0) = (1, 1)", second.end, [1.0, 1.0]),
            equal("without either: (2, 1)", neither.end, [2.0, 1.0]),
            equal("subtracting branch one: (-1, 3) - (0, 2) = (-1, 1), not (1, 1)", second.subtracted, [-1.0, 1.0]),
            equal("nothing reads branch two: subtracting it is rerunning", first.subtracted, first.end),
            equal(
                "gradient of the first coordinate: (1, 0) direct + (-1, 0) by one + (0, -1) by two = (0, -1)",
                torch.stack([back.direct, *back.branch, back.gradients[0]]),
                [[1.0, 0.0], [-1.0, 0.0], [0.0, -1.0], [0.0, -1.0]],
            ),
            equal("`backward` gives the same rows", product.contributions[1:, 0, 0], back.branch),
            equal(
                "`ablate` of branch one, first coordinate: direct 0, response of branch two +2, in total +2",
                torch.stack([effect.direct, effect.indirect, effect.total]).flatten(),
                [0.0, 2.0, 2.0],
            ),
            closes(both.ledger, limit=0.0),
        ),
        ledger=both.ledger,
    )


def _walk(name: str, case: Outcome) -> pd.DataFrame:
    points = case.ledger.writes[:, 0, 0].cumsum(0)
    steps = ["start", *(f"after {label}" for label in case.ledger.labels[1:])]
    return pd.DataFrame({"series": name, "step": steps, "x": points[:, 0], "y": points[:, 1]})


def _points(rows: Tensor) -> str:
    return " ".join(point(row) for row in rows)
