"""Finding the wiring by measurement.

1. `record` runs one probe of random tokens and writes every module call down.
2. `blocks.py` finds the module list whose items are called with the stream.
3. The stream's start is explained by the embedding calls, each block's output by its input and the calls
   inside it, each block's input by the output of the one before. `explain_state` does one such step: a sum
   first, and where no sum fits, a norm of a sum (post-norm), and so on inwards.
4. `label.py` names what was found; `ending.py` finds the final norm and the head and rebuilds the logits.
5. What cannot be explained is refused: `WiringError` names the first step that does not close.

No architecture is known by name here. Cost: about one forward of 14 tokens, and small linear algebra.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from streamlens.carries import Add, Renorm, Rescale, Step
from streamlens.errors import WiringError
from streamlens.hooks.record import Event, Recording, record
from streamlens.models.blocks import Stack, find_stacks
from streamlens.models.ending import find_final_norm, find_head
from streamlens.models.explain import Explanation, explain
from streamlens.models.label import Labels
from streamlens.models.norms import identify_norm
from streamlens.models.probe import known_numbers, probe_inputs
from streamlens.models.wiring import Norm, Tap, Wiring, Write


def find_wiring(model: nn.Module, *, stream: str | None = None) -> Wiring:
    """Measures what `model` adds to its residual stream.

    Args:
        model: A Hugging Face model; it is run once and not changed.
        stream: "decoder" or "encoder" for a model with two stacks; None for the decoder, or the only one.

    Raises:
        WiringError: A step does not close; the message names the first one.
    """
    recording = record(model, probe_inputs(model))
    stacks = find_stacks(model, recording)
    name = "only" if not getattr(model.config, "is_encoder_decoder", False) else stream or "decoder"
    return _Discovery(model=model, recording=recording, stack=_choose(stacks, name), stream=name).run()


def _choose(stacks: Sequence[Stack], stream: str) -> Stack:
    """The stack that carries the stream: the first for an encoder, else the last."""
    if not stacks:
        raise WiringError(
            "No list of blocks is called with one stream of shape [batch, pos, d_model].",
            hint="streamlens explains models whose blocks hand one residual stream on.",
        )
    return stacks[0] if stream == "encoder" else stacks[-1]


@dataclass
class _Discovery:
    """One walk along the stream; collects writes, steps and norms as it goes."""

    model: nn.Module
    recording: Recording
    stack: Stack
    stream: str
    writes: list[Write] = field(default_factory=list)
    program: list[Step] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    exact: bool = True
    residual: float = 0.0

    def __post_init__(self) -> None:
        self.numbers = known_numbers(self.model)
        self.modules = dict(self.model.named_modules())
        self.labels = Labels(self.modules, self.recording.events)

    def run(self) -> Wiring:
        blocks = self.stack.blocks
        last = blocks[-1]
        self._start()
        for layer, block in enumerate(blocks):
            if layer:
                between = self._calls(blocks[layer - 1].event.end, block.event.start, block.stream)
                self._step(
                    f"the input of block {layer}", block.stream, blocks[layer - 1].output, between, layer
                )
            inside = [
                e
                for e in self._calls(block.event.start, block.event.end, block.output)
                if e.within(block.event)
            ]
            self._step(f"block {layer}", block.output, block.stream, inside, layer)
        final = Tap(module=last.event.module, call=last.event.call)
        after = [e for e in self.recording.events if e.start > last.event.end]
        final_norm, normed = find_final_norm(self.modules, after, last.output)
        head, no_head = find_head(self.model, self.recording, after, normed, self.numbers)
        return Wiring(
            stream=self.stream,
            blocks=self.stack.name,
            n_layers=len(blocks),
            d_model=last.output.shape[-1],
            writes=tuple(self.writes),
            program=tuple(self.program),
            norms=tuple(self.norms),
            final=final,
            final_norm=final_norm,
            head=head,
            no_head=no_head,
            time_major=self.stack.time_major,
            exact=self.exact,
            residual=self.residual,
        )

    def _start(self) -> None:
        """What the stream is before block 0: embedding terms, through a norm if there are several."""
        block = self.stack.blocks[0]
        target = block.stream
        before = self._calls(-1, block.event.start, target, broadcast=True)
        # dropout hands its input on: it would hide the sum it was given
        before = [e for e in before if not any(_same(t, e.output) for t in e.inputs)]
        leaves = [e for e in before if not any(self.modules[e.module].children())]
        for calls in (leaves, before):
            calls = _distinct(calls, [], keep_inner=True)
            calls.sort(key=lambda e: not self.labels.is_token_embedding(e))
            found = explain(target, [], [_shaped(e.output, target) for e in calls], numbers=self.numbers)
            norm = self._norm_giving(target, before)
            if norm is not None:
                event, measured = norm
                z = _shaped(event.inputs[0], target)
                earlier = [e for e in calls if e.end < event.start]
                parts = explain(z, [], [_shaped(e.output, z) for e in earlier], numbers=self.numbers)
                # a norm of one term is that term's own scale; of several, it is a carry
                if parts is not None and sum(map(len, parts.groups)) > 1:
                    self._add(parts, earlier, layer=None)
                    self._renorm(measured)
                    return
            if found is not None:
                self._add(found, calls, layer=None)
                return
        site = self.labels.site(None, layer=None)
        self.writes.append(
            Write(site=site, tap=Tap(module=block.event.module, call=block.event.call, side="input"))
        )
        self.program.append(Add((len(self.writes) - 1,)))

    def _step(self, what: str, target: Tensor, base: Tensor, calls: list[Event], layer: int) -> None:
        if torch.equal(target, base):
            return
        if not self._state(target, base, calls, layer, depth=0):
            raise WiringError(
                f"The residual stream does not close at {what} ({self.stack.name}): its output is not its input "
                "plus constant multiples of the outputs of modules inside it.",
                hint=f"Calls looked at: {', '.join(dict.fromkeys(e.module for e in calls)) or 'none'}.",
            )

    def _state(self, target: Tensor, base: Tensor, calls: list[Event], layer: int, *, depth: int) -> bool:
        """Explains one stream state and appends its steps; False (and nothing appended) if it cannot."""
        if torch.equal(target, base):
            return True
        norms = [(e, n) for e in calls if (n := self._as_norm(e)) is not None] if depth < 8 else []
        outputs = _distinct(calls, [base, target])
        values = [_shaped(e.output, target) for e in outputs]
        found = explain(target, [base], values, numbers=self.numbers)
        if found is not None:
            self._add(found, outputs, layer=layer)
            return True
        # post-norm: the target is the norm of a sum, or a sum that starts from a norm's output
        for event, norm in norms:
            if _same(_shaped(event.output, target), target):
                z = _shaped(event.inputs[0], target)
                earlier = [e for e in calls if e.end <= event.start]
                if self._sum_from(
                    z, base, earlier, [n for n in norms if n[0].end <= event.start], layer, depth
                ):
                    self._renorm(norm)
                    return True
        return self._sum_from(target, base, calls, norms, layer, depth, direct=False)

    def _sum_from(
        self,
        target: Tensor,
        base: Tensor,
        calls: list[Event],
        norms: list[tuple[Event, Norm]],
        layer: int,
        depth: int,
        *,
        direct: bool = True,
    ) -> bool:
        """A sum that starts from the base, or else from the output of a norm that the stream went through."""
        if direct and torch.equal(target, base):
            return True
        starts: list[tuple[Tensor, Event | None]] = [(base, None)] if direct else []
        starts += [(_shaped(e.output, target), e) for e, _ in reversed(norms)]
        values = [value for value, _ in starts]
        outputs = _distinct(calls, [*values, target])
        if not starts:
            return False
        found = explain(target, values, [_shaped(e.output, target) for e in outputs], numbers=self.numbers)
        if found is None or found.base is None:
            return False
        start, event = starts[found.base]
        if event is not None:
            inner = [e for e in calls if e.end <= event.end]
            if not self._state(start, base, inner, layer, depth=depth + 1):
                return False
        self._add(found, outputs, layer=layer)
        return True

    def _add(self, found: Explanation, calls: Sequence[Event], *, layer: int | None) -> None:
        scale = Rescale(found.factor)
        if found.factor != 1.0 and found.factor_first:
            self.program.append(scale)
        for group in found.groups:
            rows = []
            for number, coefficient in group:
                event = calls[number]
                site = self.labels.site(event, layer=layer)
                tap = Tap(module=event.module, call=event.call)
                self.writes.append(Write(site=site, tap=tap, scale=coefficient))
                rows.append(len(self.writes) - 1)
            self.program.append(Add(tuple(rows)))
        if found.factor != 1.0 and not found.factor_first:
            self.program.append(scale)
        self.exact &= found.exact
        self.residual = max(self.residual, found.residual)

    def _renorm(self, norm: Norm) -> None:
        self.norms.append(norm)
        number, row = len(self.norms) - 1, None
        if norm.bias:
            site = self.labels.norm_bias(self.writes[-1].site)
            self.writes.append(Write(site=site, tap=None, norm=number))
            row = len(self.writes) - 1
        self.program.append(Renorm(number, row))

    def _calls(self, start: int, end: int, like: Tensor, *, broadcast: bool = False) -> list[Event]:
        """The calls between two moments that hand on a tensor of the stream's size.

        With `broadcast` also those that hand on one row for all prompts, as position embeddings do.
        """
        sizes = {like.numel(), like[0].numel() if broadcast and not self.stack.time_major else like.numel()}
        return [
            e
            for e in self.recording.events
            if start < e.start
            and e.end < end
            and e.output is not None
            and e.output.numel() in sizes
            and e.output.shape[-1] == like.shape[-1]
        ]

    def _as_norm(self, event: Event) -> Norm | None:
        module = self.modules[event.module]
        if not event.inputs or event.output is None or event.inputs[0].shape != event.output.shape:
            return None
        return identify_norm(module, Tap(module=event.module, call=event.call), event.inputs[0], event.output)

    def _norm_giving(self, target: Tensor, calls: Sequence[Event]) -> tuple[Event, Norm] | None:
        for event in calls:
            if _same(_shaped(event.output, target), target) and (norm := self._as_norm(event)) is not None:
                return event, norm
        return None


def _distinct(calls: Sequence[Event], excluded: Sequence[Tensor], *, keep_inner: bool = False) -> list[Event]:
    """One call for each distinct output: the outermost module names it (for embeddings the innermost)."""
    kept: list[Event] = []
    for event in sorted(calls, key=lambda e: (-e.depth if keep_inner else e.depth, e.start)):
        assert event.output is not None
        value = event.output
        known = [*(k.output for k in kept), *excluded]
        if not any(t is not None and _same(value, t) for t in known):
            kept.append(event)
    return sorted(kept, key=lambda e: e.end)


def _same(a: Tensor, b: Tensor) -> bool:
    if a.numel() != b.numel():
        return False
    a, b = a.double().flatten(), b.double().flatten()
    return bool((a - b).norm() <= 1e-6 * b.norm())


def _shaped(value: Tensor | None, like: Tensor) -> Tensor:
    assert value is not None
    return (
        value.reshape(like.shape)
        if value.numel() == like.numel()
        else value.reshape(like[:1].shape).expand_as(like)
    )
