"""The proof of a capture: re-added in the model's order the writes are the stream, and so is their sum.

1. `in_order` repeats the model's own additions in its own dtype.
2. `require_closure` refuses a ledger whose order or whose sum does not give the stream.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from streamlens.carries import Renorm, is_plain, readded, walk
from streamlens.errors import ClosureError
from streamlens.hooks.forward import Batch
from streamlens.ledger import Ledger
from streamlens.models.wiring import Wiring

#: relative closing error above which the sum counts as wrong; roundings reach 3e-7 in float32 (measured)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def in_order(
    wiring: Wiring,
    added: Tensor,
    stream: Tensor,
    batch: Batch,
    *,
    states: Mapping[int, Tensor],
    arrivals: Mapping[int, Tensor],
) -> float:
    """The largest absolute difference between the re-added writes and the stream, at every norm and at the end.

    Args:
        wiring: Of the stream.
        added: The writes as they were added.
        stream: The stream at the end.
        batch: The run.
        states: The real output of each norm that the stream went through, by step.
        arrivals: What each of these norms read, by norm.
    """
    if is_plain(wiring.program):
        return _largest(readded(wiring.program, added) - stream, batch)
    differences = []
    end = added[0]
    for _, step, before, after in walk(wiring.program, added, states):
        if isinstance(step, Renorm) and before is not None:
            differences.append(_largest(before - arrivals[step.norm], batch))
        end = after
    differences.append(_largest(end - stream, batch))
    return max(differences)


def _largest(difference: Tensor, batch: Batch) -> float:
    """The largest absolute number at a real token."""
    return float((difference if batch.whole else difference[batch.mask]).abs().max())


def require_closure(ledger: Ledger, *, exact: bool) -> None:
    """Refuses a ledger that does not close.

    Raises:
        ClosureError: The writes do not sum to the stream, or not bit for bit where the wiring is `exact`.
    """
    tolerance = TOLERANCE.get(ledger.stream.dtype)
    worst = float(ledger.closure.max())
    closes = worst <= tolerance if tolerance is not None else not exact or ledger.in_order == 0.0
    if not closes or (exact and ledger.in_order != 0.0):
        raise ClosureError(
            f"The writes do not sum to the residual stream: relative error {worst:.1e}, largest difference when "
            f"re-added in order {ledger.in_order:.1e}.",
            hint="Something outside the wiring changes the stream: hooks of your own, or weights changed since load().",
        )
