"""The second probe: the wiring found on one set of tokens must give the stream on another.

A coefficient that depended on the data, or an addition that was absent the first time, shows here. So does a stream
whose positions are not the prompt's.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from streamlens.carries import Renorm
from streamlens.errors import WiringError
from streamlens.hooks.record import Recording, record
from streamlens.models.explain import LOOSE
from streamlens.models.probe import BATCH, probe_inputs
from streamlens.models.recorded import Rerun
from streamlens.models.wiring import Wiring


def confirm(model: nn.Module, wiring: Wiring, recording: Recording) -> None:
    """Repeats the wiring's sum on a recording it was not found on.

    Raises:
        WiringError: It does not give the final stream, or a norm's input on the way.
    """
    rerun = Rerun(model=model, wiring=wiring, recording=recording)
    end = rerun.stream
    for _, step, before, after in rerun.steps():
        if isinstance(step, Renorm) and before is not None:
            norm = rerun.norm_of(step)
            arrival = rerun.at(replace(norm, side="input"))
            _require(before, arrival.reshape(end.shape), f"the input of {norm}")
        end = after
    _require(end, rerun.stream, "the last block")


def require_own_positions(model: nn.Module, wiring: Wiring) -> None:
    """A stream longer than the prompt is only read right if what is added to it stands at the end (Longformer).

    One token is changed; the token embedding must change at that token's position.

    Raises:
        WiringError: The prompt's tokens are not the stream's first positions.
    """
    inputs = probe_inputs(model)
    name = "decoder_input_ids" if wiring.stream == "decoder" else "input_ids"
    length = inputs[name].shape[1]
    changed = {**inputs, name: inputs[name].clone()}
    changed[name][:, -1] = torch.where(
        inputs[name][:, -1] == inputs[name][0, 0], inputs[name][0, 1], inputs[name][0, 0]
    )
    tap = next((w.tap for w in wiring.writes if w.tap is not None), wiring.final)
    rows = []
    for given in (inputs, changed):
        recording = record(model, given)
        event = next(e for e in recording.events if (e.module, e.call) == (tap.module, tap.call))
        value = event.inputs[0] if tap.side == "input" else event.output
        assert value is not None
        value = value.transpose(0, 1) if wiring.time_major and value.dim() == 3 else value
        rows.append(value.reshape(BATCH, -1, wiring.d_model))
        if rows[-1].shape[1] == length:
            return
    moved = (rows[0] != rows[1]).any(-1).any(0).nonzero()[:, 0].tolist()
    if moved != [length - 1]:
        raise WiringError(
            f"The stream has {rows[0].shape[1]} positions for {length} tokens, and the last token is not at position "
            f"{length - 1} of it.",
            hint="streamlens reads streams with one position per token.",
        )


def _require(found: Tensor, seen: Tensor, where: str) -> None:
    wrong = float((found.double() - seen.double()).norm() / seen.double().norm())
    if not wrong < LOOSE[seen.dtype]:
        raise WiringError(
            f"The residual stream closes on one set of tokens and not on another, at {where} "
            f"(relative error {wrong:.1e}): what is added depends on the data."
        )
