"""Which calls of linear modules read the stream: `W (scale * norm(x)) + b`. Found by measurement.

1. The wiring is walked over a recording: that gives the stream as it stands between any two additions.
2. In each block, a norm of such a state is a norm call with the state as its input.
3. A call `W z + b` reads the stream if z is a state, or what such a norm made of it, times a number.
4. It serves one of the writes that follow in its block: of several, the one whose modules lie nearest to it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor, nn

from streamlens.carries import Add
from streamlens.hooks.record import Event, Recording
from streamlens.models.ending import is_affine, ratio
from streamlens.models.explain import LOOSE, snap
from streamlens.models.norms import identify_norm
from streamlens.models.probe import known_numbers
from streamlens.models.recorded import Rerun
from streamlens.models.wiring import Experts, Norm, Projection, Read, Tap, Wiring
from streamlens.sites import Site


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear:
    """One call of a linear module that reads the stream.

    Attributes:
        event: The call.
        site: The write it serves.
        after: The last write in the stream it reads.
        norm: The norm in front of it; None if it reads the stream itself.
        scale: What the (normed) stream was multiplied by.
        output: What it made, [batch, pos, row], in float64.
    """

    event: Event
    site: Site
    after: Site
    norm: Norm | None
    scale: float
    output: Tensor

    @property
    def tap(self) -> Tap:
        """Which call of which module it is."""
        return Tap(module=self.event.module, call=self.event.call)

    def read(self, part: str, rows: tuple[tuple[int, ...], ...], **more: Any) -> Read:
        """Some of its outputs, as frozen data."""
        where = {"site": self.site, "after": self.after, "tap": self.tap, "norm": self.norm, "scale": self.scale}
        return Read(part=part, rows=rows, **where, **more)


@dataclass(frozen=True, eq=False, kw_only=True)
class Layer:
    """One block call: the calls inside it, by their start, and those that read the stream."""

    inside: tuple[Event, ...]
    linears: tuple[Linear, ...]
    rows: tuple[int, ...]  # the wiring's rows that modules write here


@dataclass(frozen=True, eq=False, kw_only=True)
class _State:
    """The stream at one point, the last write in it, and the wiring's row that is added next."""

    after: Site
    value: Tensor
    row: int


#: a state, the norm it went through, and what came of it
_Source: TypeAlias = tuple[_State, Norm | None, Tensor]


def find_layers(
    model: nn.Module, wiring: Wiring, recording: Recording, projections: Mapping[int, Projection | Experts | str]
) -> list[Layer]:
    """The linear readers of every block, in the order of the blocks.

    Args:
        model: The model.
        wiring: One of its streams.
        recording: A probe of it.
        projections: What makes each write, by row: where a branch ends tells which calls are its own.
    """
    modules = dict(model.named_modules())
    numbers = known_numbers(model)
    states = _states(model, wiring, recording)
    layers = []
    for layer, block in enumerate(_blocks(wiring, recording)):
        inside = tuple(sorted((e for e in recording.events if e.within(block)), key=lambda e: e.start))
        rows = tuple(r for r, w in enumerate(wiring.writes) if w.site.layer == layer and w.tap is not None)
        ends = {row: _ends(wiring, row, projections) for row in rows}
        here = [state for state in states if rows and rows[0] <= state.row <= rows[-1]]
        sources = list(_sources(modules, here, inside))
        linears = []
        for event in inside:
            found = _source(modules, event, sources)
            if found is None:
                continue
            scale, (state, norm, value) = found
            # the nearest of the writes still to come, the earliest of equally near ones
            serves = max((r for r in rows if r >= state.row), key=lambda r: (_shared(event.module, ends[r]), -r))
            assert event.output is not None
            output = laid_out(event.output, value).double()
            linears.append(
                Linear(
                    event=event,
                    site=wiring.writes[serves].site,
                    after=state.after,
                    norm=norm,
                    scale=snap(scale, numbers, LOOSE[value.dtype])[0],
                    output=output.transpose(0, 1) if wiring.time_major else output,
                )
            )
        layers.append(Layer(inside=inside, linears=tuple(linears), rows=rows))
    return layers


def _source(modules: Mapping[str, nn.Module], event: Event, sources: Sequence[_Source]) -> tuple[float, _Source] | None:
    """What a linear call reads, and times which number; None if it is no such call, or reads something else."""
    if not event.inputs or event.output is None:
        return None
    nearest = _nearest(event.inputs[0], [value for _, _, value in sources])
    if nearest is None or not is_affine(modules[event.module], event):
        return None
    scale, number = nearest
    return scale, sources[number]


def _sources(modules: Mapping[str, nn.Module], states: Sequence[_State], inside: Sequence[Event]) -> Iterator[_Source]:
    """All that a linear map of the stream can have as input: the states, and what norms made of them."""
    yield from ((state, None, state.value) for state in states)
    for event in inside:
        if event.output is None or not event.inputs or event.inputs[0].shape != event.output.shape:
            continue
        nearest = _nearest(event.inputs[0], [state.value for state in states])
        if nearest is None or nearest[0] < 0:
            continue
        tap, state = Tap(module=event.module, call=event.call), states[nearest[1]]
        norm = identify_norm(modules[event.module], tap, event.inputs[0], event.output)
        if norm is not None:
            # a multiple of the stream is normed as the stream is, with another eps
            (multiple, *_) = snap(nearest[0], (), LOOSE[event.output.dtype])
            yield state, replace(norm, eps=norm.eps / multiple**2), laid_out(event.output, state.value)


def _nearest(value: Tensor, known: Sequence[Tensor]) -> tuple[float, int] | None:
    """Which of these tensors this is a multiple of, as (multiple, number); None if none.

    Of several the nearest: in bfloat16 a stream with a huge token is near to itself one write later.
    """
    best: tuple[float, float, int] | None = None
    for number, other in enumerate(known):
        laid = laid_out(value, other)
        if (scale := ratio(laid, other)) is not None:
            error = float((laid.double() - scale * other.double()).norm())
            best = min(best or (error, scale, number), (error, scale, number))
    return None if best is None else best[1:]


def _states(model: nn.Module, wiring: Wiring, recording: Recording) -> list[_State]:
    """The stream before each addition but the first: there branches read it."""
    states, last = [], None
    for _, step, before, _after in Rerun(model=model, wiring=wiring, recording=recording).steps():
        if isinstance(step, Add):
            if last is not None and before is not None:
                states.append(_State(after=wiring.writes[last].site, value=before, row=step.writes[0]))
            last = step.writes[-1]
    return states


def _blocks(wiring: Wiring, recording: Recording) -> list[Event]:
    """The block calls, in order."""
    item = re.compile(rf"{re.escape(wiring.blocks)}\.[^.]+")
    return sorted((e for e in recording.events if item.fullmatch(e.module)), key=lambda e: e.start)


def _ends(wiring: Wiring, row: int, projections: Mapping[int, Projection | Experts | str]) -> list[str]:
    """The modules in which a branch is known to end."""
    tap, maker = wiring.writes[row].tap, projections.get(row)
    return [t.module for t in (tap, None if isinstance(maker, str | None) else maker.tap) if t is not None]


def _shared(module: str, ends: Sequence[str]) -> int:
    """How many names a module's path has in common with the nearest of these."""
    paths = [(module.split("."), end.split(".")) for end in ends]
    return max(next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(b)) for a, b in paths)


def laid_out(value: Tensor, like: Tensor) -> Tensor:
    """A tensor of one row per token, in the order of tokens of the stream `like`: flattened or transposed ones too."""
    if value.dim() == 3 and value.shape[:2] == like.transpose(0, 1).shape[:2]:
        return value.transpose(0, 1)
    tokens = like.shape[0] * like.shape[1]
    return value.reshape(*like.shape[:2], -1) if value.numel() % tokens == 0 else value
