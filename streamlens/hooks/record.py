"""The probe: one forward in which every module's tensors are written down.

1. Every module gets a hook before and after it.
2. Each call becomes an `Event`: which module, which of its calls, when it began and ended, and copies of
   the floating tensors that went in and came out. Copies, because some models add in place.
3. The events, in the order in which the calls ended, are the `Recording`. Nothing here knows what a
   transformer is.

Cost: one forward and a copy of every activation, so it is meant for a handful of tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from streamlens.hooks.scope import HookScope, quiet_eval, stream_output


@dataclass(frozen=True, eq=False, kw_only=True)
class Event:
    """One call of one module.

    Attributes:
        module: Its dotted name in the model; "" is the model itself.
        call: 0 for the module's first call in this forward, 1 for the second, ...
        start: When the call began; `start` and `end` count the begins and ends of all calls.
        end: When it ended.
        inputs: Copies of the floating tensors it was called with, in the order of its arguments.
        output: A copy of the tensor it handed on (see `stream_output`); None if there is none.
    """

    module: str
    call: int
    start: int
    end: int
    inputs: tuple[Tensor, ...]
    output: Tensor | None

    @property
    def depth(self) -> int:
        """How deep the module lies in the tree; the model itself is 0."""
        return self.module.count(".") + 1 if self.module else 0

    def within(self, other: "Event") -> bool:
        """Whether this call happened inside `other`."""
        return other.start < self.start and self.end < other.end


@dataclass(frozen=True, eq=False, kw_only=True)
class Recording:
    """All calls of one forward, in the order in which they ended, and what the model returned."""

    events: tuple[Event, ...]
    output: Any


def record(model: nn.Module, forward_kwargs: Mapping[str, Any]) -> Recording:
    """Runs `model(**forward_kwargs)` once, in eval mode without autograd, and writes every call down."""
    names = {module: name for name, module in model.named_modules()}
    calls: dict[str, int] = {}
    clock = 0
    open_calls: list[tuple[int, tuple[Tensor, ...]]] = []
    events: list[Event] = []

    def tick() -> int:
        nonlocal clock
        clock += 1
        return clock

    def before(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        inputs = [*args, *kwargs.values()]
        open_calls.append((tick(), tuple(t.clone() for t in map(_floating, inputs) if t is not None)))

    def after(module: nn.Module, _args: tuple, _kwargs: dict[str, Any], output: Any) -> None:
        start, inputs = open_calls.pop()
        name = names[module]
        call = calls.get(name, 0)
        calls[name] = call + 1
        kept = _floating(stream_output(output))
        events.append(
            Event(
                module=name,
                call=call,
                start=start,
                end=tick(),
                inputs=inputs,
                output=None if kept is None else kept.clone(),
            )
        )

    with quiet_eval(model), HookScope() as scope:
        for module in names:
            scope.before(module, before)
            scope.after(module, after)
        output = model(**forward_kwargs)
    return Recording(events=tuple(events), output=output)


def _floating(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) and value.is_floating_point() else None
