"""Freezing: writes, or attention patterns, that keep their clean values while something else is edited.

1. A frozen write is set to what it was in the clean run, at every position of the run but those where it, or a part of
   it, is edited.
2. Frozen patterns: attention attends as it did in the clean run, to values that may move.

With everything frozen, an edit reaches the output only directly: path patching (Wang et al. 2022).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from streamlens.errors import InputError, WiringError
from streamlens.hooks.edits.action import Action
from streamlens.hooks.forward import Batch
from streamlens.hooks.scope import quiet_eval
from streamlens.hooks.writes.patterns import Attended, recorded_attention, watched_attention
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Wiring
from streamlens.sites import find


@dataclass(frozen=True, eq=False, kw_only=True)
class Freezer:
    """What keeps its clean value.

    Attributes:
        model: The model.
        wiring: The stream's wiring.
        clean: The clean run's ledger, at all positions of one prompt.
        rows: The frozen writes.
        attended: The clean run's attention, by module; empty unless patterns are frozen.
    """

    model: ModelHandle
    wiring: Wiring
    clean: Ledger
    rows: frozenset[int]
    attended: dict[str, list[Attended]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: ModelHandle, wiring: Wiring, batch: Batch, clean: Ledger, freeze: str | Sequence[str] | None
    ) -> "Freezer":
        """Looks up what `freeze=` names: labels, "all", "patterns" or None.

        Raises:
            InputError: No such write.
            WiringError: Patterns of a model whose attention does not go through transformers' interface.
        """
        names = [freeze] if isinstance(freeze, str) else freeze or []
        attended = _attention(model, batch) if "patterns" in names else {}
        return cls(model=model, wiring=wiring, clean=clean, rows=frozen_rows(wiring, freeze), attended=attended)

    def actions(self, variants: Sequence[Sequence[Action]], start: int) -> list[Action]:
        """Actions that hold the frozen writes in every variant, where it does not edit them, and in the control row."""
        length = self.clean.stream.shape[1] - start
        held = []
        for row in sorted(self.rows):
            free = torch.ones(len(variants) + 1, length, dtype=torch.bool)
            for number, actions in enumerate(variants):
                for action in actions:
                    if action.row == row:
                        free[number + 1, action.positions.cpu() - start] = False
            runs, places = free.nonzero(as_tuple=True)
            value = self.clean.added[row, 0, start + places]
            write = self.wiring.writes[row]
            assert write.tap is not None
            held.append(
                Action(
                    row=row,
                    tap=write.tap,
                    rows=runs,
                    positions=places,
                    scale=write.scale,
                    change=_Constant(value),
                )
            )
        return held

    def patterns(self, start: int) -> AbstractContextManager[None]:
        """Holds the attention patterns inside, if they are frozen."""
        if not self.attended:
            return nullcontext()

        def attend(name: str, call: int, seen: Attended, output: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            if name not in self.attended or call >= len(self.attended[name]):
                return output
            pattern = self.attended[name][call].pattern[:, :, start:].expand(len(output), -1, -1, -1)
            made = torch.einsum("bhts,bhsd->bthd", pattern, seen.values)
            return made.to(output.dtype).reshape(output.shape), pattern

        return watched_attention(self.model.model, attend)


def frozen_rows(wiring: Wiring, freeze: str | Sequence[str] | None) -> frozenset[int]:
    """The writes that `freeze=` names: labels, "all", "patterns" (which is no write) or None. Runs nothing.

    Raises:
        InputError: No such write.
    """
    tapped = {row for row, write in enumerate(wiring.writes) if write.tap is not None}
    rows: set[int] = set()
    for name in [freeze] if isinstance(freeze, str) else freeze or []:
        if name == "all":
            rows |= tapped
        elif name != "patterns":
            row = wiring.sites.index(find(name, wiring.sites))
            if row not in tapped:
                raise InputError(f"{name} is a constant of the model; it cannot move.")
            rows.add(row)
    return frozenset(rows)


@dataclass(frozen=True, eq=False)
class _Constant:
    """Sets what is there to a value."""

    value: Tensor

    def __call__(self, here: Tensor) -> Tensor:
        return self.value.to(here.dtype)


def _attention(model: ModelHandle, batch: Batch) -> dict[str, list[Attended]]:
    inputs = {k: v for k, v in batch.inputs.items() if k not in ("cache", "past_key_values")}
    with recorded_attention(model.model) as attended, quiet_eval(model.model):
        model.model(**inputs)
    if not attended:
        raise WiringError("This model's attention does not go through transformers' attention interface.")
    if not all(call.linear for calls in attended.values() for call in calls):
        raise WiringError("This model's attention is not pattern times values, so its patterns cannot be frozen.")
    return attended
