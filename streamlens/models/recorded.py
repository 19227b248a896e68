"""Looking at recorded tensors: which are the same, in which shape, and what a wiring makes of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from streamlens.carries import Renorm, Step, walk
from streamlens.hooks.record import Event, Recording
from streamlens.models.wiring import Tap, Wiring


def distinct(calls: Sequence[Event], excluded: Sequence[Tensor], *, keep_inner: bool = False) -> list[Event]:
    """One call for each distinct output: the outermost module names it (for embeddings the innermost)."""
    kept: list[Event] = []
    for event in sorted(calls, key=lambda e: (-e.depth if keep_inner else e.depth, e.start)):
        assert event.output is not None
        value = event.output
        known = [*(k.output for k in kept), *excluded]
        if not any(t is not None and same(value, t) for t in known):
            kept.append(event)
    return sorted(kept, key=lambda e: e.end)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers up to rounding, whatever their shapes."""
    if a.numel() != b.numel():
        return False
    a, b = a.double().flatten(), b.double().flatten()
    return bool((a - b).norm() <= 1e-6 * b.norm())


def gives(event: Event, value: Tensor | None) -> bool:
    """Whether a call handed on these very numbers."""
    return event.output is not None and value is not None and same(event.output, value)


def shaped(value: Tensor | None, like: Tensor) -> Tensor:
    """A recorded tensor in the stream's shape: reshaped, or one prompt's row given to all."""
    assert value is not None
    return value.reshape(like.shape) if value.numel() == like.numel() else value.reshape(like[:1].shape).expand_as(like)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rerun:
    """A wiring's sum repeated on a recording."""

    model: nn.Module
    wiring: Wiring
    recording: Recording

    @cached_property
    def _events(self) -> dict[tuple[str, int], Event]:
        return {(event.module, event.call): event for event in self.recording.events}

    def at(self, tap: Tap) -> Tensor:
        """The tensor that was seen at a tap."""
        event = self._events[tap.module, tap.call]
        value = event.inputs[0] if tap.side == "input" else event.output
        assert value is not None
        return value

    @cached_property
    def stream(self) -> Tensor:
        """The stream at the end."""
        return self.at(self.wiring.final)

    @cached_property
    def writes(self) -> Tensor:
        """Every row as it is added, in the stream's shape."""
        rows = []
        for write in self.wiring.writes:
            value = self.model.get_parameter(write.constant).detach() if write.tap is None else self.at(write.tap)
            rows.append(self._as_stream(value) * write.scale)
        return torch.stack(rows)

    def norm_of(self, step: Step) -> Tap:
        """The call of a norm that the stream goes through."""
        assert isinstance(step, Renorm)
        return self.wiring.norms[step.norm].tap

    def steps(self) -> Iterator[tuple[int, Step, Tensor | None, Tensor]]:
        """The model's own additions, as `walk` gives them."""
        norms = {n: self.norm_of(s) for n, s in enumerate(self.wiring.program) if isinstance(s, Renorm)}
        states = {n: self.at(tap).reshape(self.stream.shape) for n, tap in norms.items()}
        return walk(self.wiring.program, self.writes, states)

    def _as_stream(self, value: Tensor) -> Tensor:
        if value.numel() == self.stream.numel():
            return value.reshape(self.stream.shape)
        return value.reshape(1, -1, self.stream.shape[-1]).expand_as(self.stream)
