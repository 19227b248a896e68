"""Runs in which every write of some layers is scaled, or a layer is applied several times in smaller steps.

1. A write is scaled at the output that makes it, by the same actions an edit is made of; the carry is left alone.
2. A layer applied n times is its block called again on its own output: x + f(x) / n, then the same from there, as
   Euler's method does with a step of 1 / n. Only where the carry is the identity is that a smaller step.
3. Layers, factor and number of calls are checked before anything runs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens.carries import Add
from streamlens.errors import InputError, WiringError
from streamlens.hooks.edits.action import Action
from streamlens.hooks.edits.edit import attach_actions
from streamlens.hooks.scope import HookScope, quiet_eval, stream_output
from streamlens.hooks.taps import first_floating
from streamlens.hooks.writes.clean import Clean
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Wiring


def scaled_logits(
    clean: Clean, layers: Sequence[int], factor: float, *, calls: int = 1
) -> Float[Tensor, "batch pos vocab"]:
    """The logits when every write of some layers is multiplied, each layer in so many calls. Cost: one forward.

    Args:
        clean: The prompt.
        layers: Which layers.
        factor: What their writes are multiplied by; shared out over the calls.
        calls: How often each of these layers is applied, one call after another.
    """
    model, wiring = clean.model, clean.wiring
    with ExitStack() as stack:
        stack.enter_context(quiet_eval(model.model))
        actions = list(_scaling(clean, set(layers), factor / calls, calls))
        stack.enter_context(attach_actions(model, wiring, clean.batch, actions))
        if calls > 1:
            scope = stack.enter_context(HookScope())
            for layer in layers:
                scope.after(model.modules[f"{wiring.blocks}.{layer}"], _again(calls - 1))
        return model.model(**clean.batch.inputs).logits


def _scaling(clean: Clean, layers: set[int], factor: float, calls: int) -> Iterator[Action]:
    """At every position, in every call; on the module's own output, so that 1 changes no bit."""
    rows, length = clean.batch.run_mask.shape
    for row, write in enumerate(clean.wiring.writes):
        if write.tap is None or write.site.layer not in layers:
            continue
        for call in range(calls):
            yield Action(
                row=row,
                tap=replace(write.tap, call=write.tap.call + call),
                rows=torch.arange(rows).repeat_interleave(length),
                positions=torch.arange(length).repeat(rows),
                change=lambda x: x * factor,
            )


def _again(times: int) -> Callable:
    """A hook that calls a block again on its own output. Its inner modules' hooks see each call."""

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        for _ in range(times):
            before, stream = first_floating(args, kwargs), stream_output(output)
            if before is None or stream is None or before.shape != stream.shape:
                raise WiringError("A block of this model cannot be called on its own output.")
            args = tuple(stream if value is before else value for value in args)
            kwargs = {name: stream if value is before else value for name, value in kwargs.items()}
            output = module.forward(*args, **kwargs)
        return output

    return hook


def chosen_layers(model: ModelHandle, layers: int | Sequence[int] | None) -> tuple[int, ...]:
    """The layers that are named, in order; None for all.

    Raises:
        InputError: No layer, or one that is not there.
    """
    count = model.wiring.n_layers
    if layers is None:
        return tuple(range(count))
    named = [layers] if isinstance(layers, int) else list(layers)
    if not named or any(not 0 <= layer < count for layer in named):
        raise InputError(f"The layers are 0 to {count - 1}; got {named}.")
    return tuple(sorted(set(named)))


def require_repeatable(model: ModelHandle, wiring: Wiring) -> None:
    """Refuses models whose blocks cannot be applied in smaller steps.

    Raises:
        WiringError: A carry that is not the identity, or blocks that are not called once each.
    """
    if any(not isinstance(step, Add) for step in wiring.program):
        raise WiringError(
            f"The stream of {model.name} goes through norms or factors, so a block applied twice at half "
            "strength is no smaller step.",
            hint="Scale its writes in one call each.",
        )
    blocks = model.modules.get(wiring.blocks)
    inside = [w for w in wiring.writes if w.tap is not None and w.site.layer is not None]
    own = all(w.tap is not None and w.tap.module.startswith(f"{wiring.blocks}.{w.site.layer}.") for w in inside)
    once = all(w.tap is not None and w.tap.call == 0 for w in inside)
    if not isinstance(blocks, nn.ModuleList) or len(blocks) != wiring.n_layers or not own or not once:
        raise WiringError(f"The blocks of {model.name} are not called once each, so none can be called twice.")
