"""Looking at recorded tensors: which are the same, which are distinct, in which shape."""

from collections.abc import Sequence

from torch import Tensor

from streamlens.hooks.record import Event


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
