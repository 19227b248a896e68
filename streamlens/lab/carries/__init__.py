"""What can happen to the stream between two writes: thirteen carries, each with its direct Jacobian and a ledger.

1. `gates`, `norms` and `wide` hold the cases, each with numbers that can be checked by hand.
2. The direct Jacobian is computed three ways: by hand, by pushing unit vectors through the ledger's carries, and by
   autograd with branches, gates and scales held.
3. The ledger closes at the forward point: carried writes sum to the end.
"""

from collections.abc import Iterator

import pandas as pd
import torch

from streamlens import plots
from streamlens.lab.carries import gates, norms, wide
from streamlens.lab.carries.case import Case, carried
from streamlens.lab.example import Check, Drawing, Example, closes, equal

ROUNDING = 1e-14


def cases() -> dict[str, Case]:
    """All of them by name."""
    return {case.name: case for module in (gates, norms, wide) for case in module.cases()}


def checks(case: Case) -> Iterator[Check]:
    """What one case claims."""
    ledger = case.books()
    yield equal(f"{case.name}: the end, by hand", ledger.stream[0, 0], case.end, limit=ROUNDING)
    yield equal(f"{case.name}: carries of the ledger = direct Jacobian", carried(ledger), case.direct, limit=ROUNDING)
    held = case.jacobian(held=True)
    yield equal(f"{case.name}: autograd with the branch held gives it too", held, case.direct, limit=ROUNDING)
    yield closes(ledger, limit=ROUNDING, of=f"the end ({case.name})")


def example() -> Example:
    """All carries with their numbers."""
    rows, parts = [], []
    for case in cases().values():
        ledger = case.books()
        first, added = ledger.writes[0, 0, 0], ledger.writes[1:, 0, 0].sum(0)
        rows.append(
            {
                "carry": case.name,
                "step": case.step,
                "direct Jacobian": case.carry,
                "rank": int(torch.linalg.matrix_rank(case.direct)),
                "its norm": float(case.direct.norm()),
                "norm of all routes": float(case.jacobian(held=False).norm()),
            }
        )
        parts += [
            {"carry": case.name, "series": name, "norm": float(vector.norm())}
            for name, vector in (("left of the start", first), ("written", added), ("the end", ledger.stream[0, 0]))
        ]
    frame = pd.DataFrame(parts)
    return Example(
        name="carries",
        title="Thirteen carries",
        teaches=(
            "Every residual network is carry + write. The carry is 1 in a pre-norm network; elsewhere it is a gate, a "
            "mask, a norm or a matrix, and at the point of one pass it is linear, so that what is left of every write "
            "can be followed to the end and summed."
        ),
        table=pd.DataFrame(rows),
        drawings=(
            Drawing(
                caption="What the carries leave of the start, what is written, and the end that both sum to.",
                draw=lambda dark: plots.grouped_bars(
                    frame,
                    label="carry",
                    value="norm",
                    series="series",
                    heading="What is left of the start",
                    x_title="",
                    dark=dark,
                ),
            ),
        ),
        checks=tuple(check for case in cases().values() for check in checks(case)),
        ledger=norms.post_norm().books(),
    )
