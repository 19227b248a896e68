"""An Action: one change of a run, ready to be made. Edits are turned into these (`resolve.py`) before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from streamlens.models.wiring import Tap

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Action:
    """One change, ready to be made.

    Attributes:
        row: The write it belongs to.
        tap: Where it acts; the input side for heads and neurons.
        rows: The prompts of the run it acts on, one per position.
        positions: The run's positions it acts on.
        columns: For a head or neuron: which columns of the projection's input.
        scale: The write's multiplier: the change speaks of the write, not of the module's output.
        change: From what is there, [n, width], to what shall be there.
        source: For an attention edge: the source position at each place; then `change` acts on what the head takes
            from there.
        head: For an attention edge: the head.
        attention: For an attention edge: the attention module.
    """

    row: int
    tap: Tap
    rows: Tensor
    positions: Tensor
    columns: slice | None = None
    scale: float = 1.0
    change: Change
    source: Tensor | None = None
    head: int | None = None
    attention: str = ""

    def at(self, *, row: int, start: int) -> "Action":
        """The same action on another prompt of a batch whose run begins at position `start`."""
        return replace(self, rows=torch.full_like(self.rows, row), positions=self.positions - start)
