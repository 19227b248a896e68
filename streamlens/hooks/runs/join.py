"""JOINING: a variant runs only from the block of its first edit on.

1. Up to that block a variant is the clean run. So a batch of variants starts as its first row, which is edited
   nowhere, and before each block the variants that this block edits join as copies of that row.
2. What a block is called with beside the stream (masks, positions) is cut to the rows that are there.
3. Rows that have not joined yet are shown to whoever listens as what they are: the first row.

A variant that joins too early only costs time, so any order of variants is right; sorted by depth is fastest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from streamlens.hooks.edits.action import Action
from streamlens.hooks.forward import Batch
from streamlens.hooks.scope import HookScope
from streamlens.hooks.taps import first_floating
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Wiring


class CannotJoin(Exception):
    """The blocks of this model are called in a way that does not let rows join."""


@dataclass(eq=False, kw_only=True)
class Joining:
    """How many rows of a batch run in each block, and how many are running now.

    Attributes:
        rows: Of the whole batch.
        by_block: For each block, how many of the first rows run in it; never fewer than in the block before.
        now: How many run at this moment of the forward.
    """

    rows: int
    by_block: tuple[int, ...]
    now: int = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.rows

    def attach(self, scope: HookScope, model: ModelHandle, wiring: Wiring) -> None:
        """Lets rows join before each block of every forward inside the scope."""
        for number, rows in enumerate(self.by_block):
            scope.before(model.modules[f"{wiring.blocks}.{number}"], self._before(number, rows))

    def _before(self, number: int, rows: int) -> Any:
        def hook(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
            before = self.rows if number == 0 else self.now
            self.now = rows
            if before == rows == self.rows:
                return None
            stream = first_floating(args, kwargs)
            if stream is None or len(stream) != before:
                raise CannotJoin
            joined = stream[:rows] if rows <= before else _grown(stream, rows)

            def cut(value: Any) -> Any:
                return joined if value is stream else _cut(value, rows, self.rows)

            return tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}

        return hook


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinedBatch(Batch):
    """A batch whose rows join on the way."""

    joining: Joining

    @property
    def running(self) -> int:
        return self.joining.now

    def all_rows(self, tensor: Tensor) -> Tensor:
        return tensor if len(tensor) == self.joining.rows else _grown(tensor, self.joining.rows)


def joining_of(model: ModelHandle, wiring: Wiring, variants: Sequence[Sequence[Action]]) -> Joining | None:
    """Where each variant joins; None if the blocks are not called one after another, or nothing is saved."""
    blocks = model.modules.get(wiring.blocks)
    if not isinstance(blocks, nn.ModuleList) or len(blocks) != wiring.n_layers or wiring.time_major:
        return None
    firsts = [min(_block_of(wiring, action) for action in actions) for actions in variants]
    by_block = tuple(
        1 + max((row for row, first in enumerate(firsts, start=1) if first <= block), default=0)
        for block in range(wiring.n_layers)
    )
    if by_block[0] == len(variants) + 1:
        return None
    return Joining(rows=len(variants) + 1, by_block=by_block)


def _block_of(wiring: Wiring, action: Action) -> int:
    layer = wiring.sites[action.row].layer
    inside = layer is not None and action.tap.module.startswith(f"{wiring.blocks}.{layer}.")
    return layer if inside and layer is not None else 0


def _grown(tensor: Tensor, rows: int) -> Tensor:
    return torch.cat([tensor, tensor[:1].expand(rows - len(tensor), *tensor.shape[1:])])


def _cut(value: Any, rows: int, full: int) -> Any:
    """The first rows of every tensor with a row per prompt; a vector (positions) has none."""
    if isinstance(value, Tensor):
        return value[:rows] if value.dim() > 1 and len(value) == full else value
    if type(value) in (tuple, list):
        return type(value)(_cut(v, rows, full) for v in value)
    if type(value) is dict:
        return {name: _cut(v, rows, full) for name, v in value.items()}
    return value
