"""The second probe: the wiring found on one set of tokens must give the stream on another.

A coefficient that depended on the data, or an addition that was absent the first time, shows here.
"""

import torch
from torch import Tensor, nn

from streamlens.carries import Renorm, walk
from streamlens.errors import WiringError
from streamlens.hooks.record import Recording
from streamlens.models.explain import LOOSE
from streamlens.models.wiring import Tap, Wiring


def confirm(model: nn.Module, wiring: Wiring, recording: Recording) -> None:
    """Repeats the wiring's sum on a recording it was not found on.

    Raises:
        WiringError: It does not give the final stream, or a norm's input on the way.
    """
    events = {(e.module, e.call): e for e in recording.events}

    def at(tap: Tap) -> Tensor:
        event = events[tap.module, tap.call]
        value = event.inputs[0] if tap.side == "input" else event.output
        assert value is not None
        return value

    stream = at(wiring.final)
    writes = [
        _like(model.get_parameter(w.constant).detach() if w.tap is None else at(w.tap), stream) * w.scale
        for w in wiring.writes
    ]
    norms = {n: wiring.norms[s.norm].tap for n, s in enumerate(wiring.program) if isinstance(s, Renorm)}
    states = {n: at(tap).reshape(stream.shape) for n, tap in norms.items()}
    end = stream
    for number, step, before, after in walk(wiring.program, torch.stack(writes), states):
        if isinstance(step, Renorm) and before is not None:
            arrival = at(Tap(module=norms[number].module, call=norms[number].call, side="input"))
            _require(before, arrival.reshape(stream.shape), f"the input of {norms[number]}")
        end = after
    _require(end, stream, "the last block")


def _require(found: Tensor, seen: Tensor, where: str) -> None:
    wrong = float((found.double() - seen.double()).norm() / seen.double().norm())
    if not wrong < LOOSE[seen.dtype]:
        raise WiringError(
            f"The residual stream closes on one set of tokens and not on another, at {where} "
            f"(relative error {wrong:.1e}): what is added depends on the data."
        )


def _like(value: Tensor, stream: Tensor) -> Tensor:
    if value.numel() == stream.numel():
        return value.reshape(stream.shape)
    return value.reshape(1, -1, stream.shape[-1]).expand_as(stream)
