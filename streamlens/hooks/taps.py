"""Reading tensors where the wiring says they are.

1. Each tap names a module, one of its calls, and a side. A module is hooked once; its calls are counted.
2. A tensor is brought to [batch, pos, d_model], whatever the module's own layout, and cut to the kept positions.
3. It is handed to its listener at once, which copies it: a model may add to it in place afterwards, and
   nothing that nobody reads is kept alive.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from streamlens.hooks.forward import Batch
from streamlens.hooks.scope import HookScope, stream_output
from streamlens.models.wiring import Tap, Wiring


class Listener(NamedTuple):
    """Who gets the tensor at a tap: at the kept positions, or at all positions of the run."""

    tap: Tap
    receive: Callable[[Tensor], None]
    all_positions: bool = False


def attach(
    scope: HookScope,
    modules: Mapping[str, nn.Module],
    wiring: Wiring,
    batch: Batch,
    listeners: Iterable[Listener],
) -> None:
    """Hooks every tapped module once; listeners get [batch, pos, d_model]."""
    outputs: dict[str, dict[int, list[Listener]]] = {}
    inputs: dict[str, dict[int, list[Listener]]] = {}
    for listener in listeners:
        tap = listener.tap
        calls_of = (inputs if tap.side == "input" else outputs).setdefault(tap.module, {})
        calls_of.setdefault(tap.call, []).append(listener)

    def counted(calls_of: Mapping[int, list[Listener]], find: Callable[..., Tensor | None]) -> Callable:
        calls = 0

        def hook(_module: nn.Module, *seen: Any) -> None:
            nonlocal calls
            wanted = calls_of.get(calls)
            calls += 1
            if wanted is None or (tensor := find(*seen)) is None:
                return
            tensor = as_stream(tensor, wiring, batch)
            kept = batch.keep(tensor)
            for _, receive, all_positions in wanted:
                receive(batch.all_rows(tensor) if all_positions else kept)

        return hook

    for name, calls_of in outputs.items():
        scope.after(modules[name], counted(calls_of, _handed_on))
    for name, calls_of in inputs.items():
        scope.before(modules[name], counted(calls_of, first_floating))


def _handed_on(_args: tuple, _kwargs: Mapping[str, Any], output: Any) -> Tensor | None:
    return output if isinstance(output, Tensor) else stream_output(output)


def as_stream(tensor: Tensor, wiring: Wiring, batch: Batch) -> Tensor:
    """A module's tensor as [batch, pos, d_model]: flattened, time-major and broadcast ones included."""
    n_batch = batch.running
    if tensor.dim() == 3:
        if wiring.time_major:
            return tensor.transpose(0, 1)
        if len(tensor) == n_batch:
            return tensor
    n_pos = batch.run_mask.shape[1]
    if tensor.dim() == 2 and len(tensor) == n_batch * n_pos:
        return tensor.reshape(n_batch, n_pos, -1)
    return tensor.reshape(1, -1, tensor.shape[-1]).expand(n_batch, -1, -1)


def first_floating(args: tuple, kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first floating tensor among a call's arguments."""
    tensors = (t for t in [*args, *kwargs.values()] if isinstance(t, Tensor) and t.is_floating_point())
    return next(tensors, None)
