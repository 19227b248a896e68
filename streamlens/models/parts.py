"""What makes a write: the linear module whose input is split into heads or neurons. Found by measurement.

1. The write's tensor is followed inwards: through calls that hand on the same numbers, and through at most one
   norm (branch-output norms).
2. There a call must be `W z + b` with the module's own weight. Its input z is what is split, never its output:
   the output of an attention projection has as many numbers as heads times their width only by accident.
3. The number of heads is read from the attention module or the config; it must divide the width of z.
4. An MLP that is no linear module's output may be a mixture of experts: a call with hidden states, the chosen
   experts' numbers and their weights, whose output is a term of the write.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from streamlens.hooks.record import Event, Recording
from streamlens.models.ending import is_affine
from streamlens.models.explain import explain
from streamlens.models.norms import identify_norm
from streamlens.models.recorded import distinct, gives, same
from streamlens.models.wiring import Experts, Norm, Projection, Tap, Wiring, Write

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_q_heads", "decoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_k_heads")


def find_projections(model: nn.Module, wiring: Wiring, recording: Recording) -> dict[int, Projection | Experts | str]:
    """For each row that is a module's write: its projection, or one sentence why it cannot be split.

    Args:
        model: The model.
        wiring: Its wiring.
        recording: A probe of the model, as `find_wiring` makes one.
    """
    modules = dict(model.named_modules())
    events = {(e.module, e.call): e for e in recording.events}
    found: dict[int, Projection | Experts | str] = {}
    for row, write in enumerate(wiring.writes):
        if write.tap is not None and write.site.layer is not None:
            found[row] = _projection(model, modules, write, events[write.tap.module, write.tap.call], recording)
    return found


def _projection(
    model: nn.Module, modules: Mapping[str, nn.Module], write: Write, event: Event, recording: Recording
) -> Projection | Experts | str:
    linear, norm = _linear_behind(modules, event, recording.events)
    if linear is None and (experts := _experts(modules, event, recording.events)) is not None:
        return experts
    if linear is None:
        return f"{write.site} is the output neither of one linear module nor of routed experts: it has no parts."
    tap, width = Tap(module=linear.module, call=linear.call), linear.inputs[0].shape[-1]
    if write.site.kind not in ("attn", "cross_attn"):
        return Projection(tap=tap, norm=norm, width=width)
    heads = _count(model, modules, linear.module, _HEADS, width)
    if heads is None:
        return f"The number of heads of {write.site} is named neither by its module nor by the config."
    kv_heads = _count(model, modules, linear.module, _KV_HEADS, heads) or heads
    return Projection(tap=tap, norm=norm, width=width, heads=heads, kv_heads=kv_heads)


def _linear_behind(
    modules: Mapping[str, nn.Module], event: Event, events: Sequence[Event]
) -> tuple[Event | None, Norm | None]:
    """The call `W z + b` that made this output, and the norm between them."""
    made = _linear_giving(modules, event, events)
    if made is not None:
        return made, None
    for norm, source in _before_norm(modules, event, events):
        made = _linear_giving(modules, source, events)
        if made is not None:
            return made, norm
    return None, None


def _before_norm(
    modules: Mapping[str, nn.Module], event: Event, events: Sequence[Event]
) -> Iterator[tuple[Norm, Event]]:
    """Norms that made this output, each with the calls whose output it read."""
    for other in events:
        if other.output is None or other.end > event.end or not gives(other, event.output):
            continue
        if not other.inputs or other.inputs[0].shape != other.output.shape:
            continue
        tap = Tap(module=other.module, call=other.call)
        norm = identify_norm(modules[other.module], tap, other.inputs[0], other.output)
        if norm is not None:
            yield from ((norm, e) for e in events if e.end <= other.start and gives(e, other.inputs[0]))


def _experts(modules: Mapping[str, nn.Module], event: Event, events: Sequence[Event]) -> Experts | None:
    """The call of an experts module whose output is a term of this one."""
    for norm, made in [(None, event), *_before_norm(modules, event, events)]:
        assert made.output is not None
        size = made.output.numel()
        inside = [e for e in [*events, made] if e.output is not None and e.output.numel() == size]
        inside = [e for e in inside if e is made or e.within(made)]
        for call in inside:
            if len(call.inputs) != 2 or call.inputs[1].dim() != 2 or call.output.dim() != 2:
                continue
            tap = Tap(module=call.module, call=call.call)
            if same(call.output, made.output):
                return Experts(tap=tap, norm=norm, coefficient=1.0)
            others = distinct(inside, [call.output, made.output])
            values = [e.output.reshape(made.output.shape) for e in [call, *others]]
            found = explain(made.output, [], values, max_terms=2)
            terms = {} if found is None else dict(t for group in found.groups for t in group.terms)
            if 0 in terms:
                return Experts(tap=tap, norm=norm, coefficient=terms[0])
            if any(_gated(made.output - values[0], value) for value in values[1:]):
                return Experts(tap=tap, norm=norm, coefficient=1.0)
    return None


def _gated(rest: Tensor, value: Tensor) -> bool:
    """Whether `rest` is `value` times one number per token: a shared expert behind a gate (Qwen2-MoE)."""
    rest, value = rest.double(), value.double()
    gate = (rest * value).sum(-1, keepdim=True) / value.square().sum(-1, keepdim=True).clamp_min(1e-300)
    return bool((rest - gate * value).norm() < 1e-4 * rest.norm())


def _linear_giving(modules: Mapping[str, nn.Module], event: Event, events: Sequence[Event]) -> Event | None:
    for other in events:
        if other.end <= event.end and gives(other, event.output) and is_affine(modules[other.module], other):
            return other
    return None


def _count(
    model: nn.Module, modules: Mapping[str, nn.Module], module: str, names: Sequence[str], divides: int
) -> int | None:
    """The first of these attributes, on the modules around the projection and then on the config, that divides."""
    around = [modules[".".join(module.split(".")[:n])] for n in range(module.count("."), 0, -1)][:3]
    config: Any = model.config
    for holder in [*around, config.get_text_config(), config]:
        for name in names:
            try:
                value = getattr(holder, name, None)
            except Exception:  # configs whose layers differ refuse the question with errors of their own
                continue
            if isinstance(value, int) and value > 0 and divides % value == 0:
                return value
    return None
