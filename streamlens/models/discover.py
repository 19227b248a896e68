"""Finding the wiring by measurement.

1. `record` runs one probe of random tokens and writes every module call down.
2. `blocks.py` finds the module list whose items are called with the stream.
3. The stream's start is explained by the embedding calls, each block's output by its input and the calls
   inside it, each block's input by the output of the one before. `_state` does one such step: a sum first, and
   where no sum fits, a norm of a sum (post-norm), and so on inwards.
4. `label.py` names what was found; `ending.py` finds the final norm and the head and rebuilds the logits.
5. `confirm.py` repeats the sum on a second probe with other tokens.
6. What cannot be explained is refused: `WiringError` names the first step that does not close.

No architecture is known by name here. Cost: two forwards of 14 tokens, and small linear algebra.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from streamlens.carries import Add, Rescale
from streamlens.errors import WiringError
from streamlens.hooks.record import Event, Recording, record
from streamlens.models.blocks import Stack, find_stacks, parallel_streams
from streamlens.models.confirm import confirm, require_own_positions
from streamlens.models.ending import find_final_norm, find_head
from streamlens.models.explain import explain
from streamlens.models.label import Labels
from streamlens.models.norms import identify_norm
from streamlens.models.probe import known_numbers, probe_inputs
from streamlens.models.recorded import distinct, gives, same, shaped
from streamlens.models.steps import Steps
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
    _require_numbers(recording)
    stacks = find_stacks(model, recording)
    name = "only" if not getattr(model.config, "is_encoder_decoder", False) else stream or "decoder"
    stack = _choose(model, stacks, name, recording)
    wiring = _Discovery(model=model, recording=recording, stacks=stacks, stack=stack, stream=name).run()
    confirm(model, wiring, record(model, probe_inputs(model, seed=1)))
    require_own_positions(model, wiring)
    return wiring


def _require_numbers(recording: Recording) -> None:
    """Refuses a model that gives no numbers: no sum of NaNs can be told from another."""
    for event in recording.events:  # a call ends before the one around it, so the innermost is named
        if event.output is not None and event.output.isnan().any():
            broken = f"A forward of a few tokens gives numbers; the output of {event.module or 'the model'} holds NaN."
            raise WiringError(broken, hint="Its weights are broken, or do not belong to this architecture.")


def _choose(model: nn.Module, stacks: Sequence[Stack], stream: str, recording: Recording) -> Stack:
    """The stack that carries the stream: the first for an encoder, else the last."""
    hint = "streamlens explains models whose blocks hand one residual stream on."
    if shape := parallel_streams(model, recording):
        raise WiringError(f"The blocks hand on several parallel streams, {shape}, not one.", hint=hint)
    if not stacks:
        raise WiringError("No list of blocks is called with one stream of shape [batch, pos, d_model].", hint=hint)
    if stream == "only" and len(stacks) > 1:
        names = " and ".join(stack.name for stack in stacks)
        raise WiringError(f"The stream runs through several lists of blocks, {names}, not one.", hint=hint)
    return stacks[0] if stream == "encoder" else stacks[-1]


@dataclass
class _Discovery:
    """One walk along the stream, from the embeddings to the last block."""

    model: nn.Module
    recording: Recording
    stacks: Sequence[Stack]
    stack: Stack
    stream: str

    def __post_init__(self) -> None:
        self.numbers = known_numbers(self.model)
        self.modules = dict(self.model.named_modules())
        first = self.stack.blocks[0].event.module
        self.steps = Steps(Labels(self.modules, self.recording.events, first))

    def run(self) -> Wiring:
        blocks = self.stack.blocks
        last = blocks[-1]
        self._start()
        for layer, block in enumerate(blocks):
            if layer:
                between = self._calls(blocks[layer - 1].event.end, block.event.start, block.stream)
                self._step(f"the input of block {layer}", block.stream, blocks[layer - 1].output, between, layer)
            inside = [e for e in self._calls(block.event.start, block.event.end, block.output) if e.within(block.event)]
            self._step(f"block {layer}", block.output, block.stream, inside, layer)
        final = Tap(module=last.event.module, call=last.event.call)
        after = [e for e in self.recording.events if e.start > last.event.end]
        factor, final_norm, normed = find_final_norm(self.modules, after, last.output)
        if factor != 1.0:
            assert final_norm is not None
            self.steps.program.append(Rescale(factor))
            final = replace(final_norm.tap, side="input")
        head, no_head = find_head(self.model, self.recording, after, normed, self.numbers)
        return Wiring(
            stream=self.stream,
            blocks=self.stack.name,
            n_layers=len(blocks),
            d_model=last.output.shape[-1],
            writes=tuple(self.steps.writes),
            program=tuple(self.steps.program),
            norms=tuple(self.steps.norms),
            final=final,
            final_norm=final_norm,
            head=head,
            no_head=no_head,
            time_major=self.stack.time_major,
            exact=self.steps.exact,
            residual=self.steps.residual,
        )

    def _start(self) -> None:
        """What the stream is before block 0: embedding terms, through a norm if there are several."""
        block = self.stack.blocks[0]
        target = block.stream
        before = self._calls(-1, block.event.start, target, broadcast=True)
        # dropout hands its input on: it would hide the sum it was given
        before = [e for e in before if not any(gives(e, t) for t in e.inputs)]
        leaves = [e for e in before if not any(self.modules[e.module].children())]
        for calls in (leaves, before):
            calls = distinct(calls, [], keep_inner=True)
            calls.sort(key=lambda e: not self.steps.labels.is_token_embedding(e))
            found = explain(target, [], [shaped(e.output, target) for e in calls], numbers=self.numbers)
            norm = self._norm_giving(target, before)
            if norm is not None:
                event, measured = norm
                z = shaped(event.inputs[0], target)
                earlier = [e for e in calls if e.end < event.start]
                parts = explain(z, [], [shaped(e.output, z) for e in earlier], numbers=self.numbers)
                # a norm of one term is that term's own scale; of several, it is a carry
                if parts is not None and sum(len(group.terms) for group in parts.groups) > 1:
                    self.steps.add(parts, earlier, layer=None)
                    self.steps.renorm(measured)
                    return
            if found is not None:
                self.steps.add(found, calls, layer=None)
                return
        if any(part.isdigit() for e in self._between_stacks(block.event) for part in e.module.split(".")):
            raise WiringError(
                f"What block 0 of {self.stack.name} reads is no sum of embeddings: it comes out of other blocks."
            )
        # positions that are no module (CTRL) cannot be told from the tokens: both enter as one write
        site = self.steps.labels.site(None, layer=None)
        self.steps.writes.append(
            Write(site=site, tap=Tap(module=block.event.module, call=block.event.call, side="input"))
        )
        self.steps.program.append(Add((len(self.steps.writes) - 1,)))

    def _between_stacks(self, first: Event) -> list[Event]:
        """The calls before a block, an encoder's left out."""
        start = max((s.blocks[-1].event.end for s in self.stacks if s.blocks[-1].event.end < first.start), default=-1)
        return [e for e in self.recording.events if start < e.start < first.start]

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
        outputs = distinct(calls, [base, target])
        values = [shaped(e.output, target) for e in outputs]
        found = explain(target, [base], values, numbers=self.numbers)
        if found is not None:
            self.steps.add(found, outputs, layer=layer)
            return True
        if depth > 8:
            return False
        norms = [(e, n) for e in calls if (n := self._as_norm(e)) is not None]
        # post-norm: the target is the norm of a sum, or a sum that starts from a norm's output
        for event, norm in norms:
            if same(shaped(event.output, target), target):
                z = shaped(event.inputs[0], target)
                earlier = [e for e in calls if e.end <= event.start]
                if self._sum_from(z, base, earlier, [n for n in norms if n[0].end <= event.start], layer, depth):
                    self.steps.renorm(norm)
                    return True
        if self._sum_from(target, base, calls, norms, layer, depth, direct=False):
            return True
        return self._with_constants(target, base, outputs, layer) or self._by_way_of(target, base, calls, layer, depth)

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
        starts += [(shaped(e.output, target), e) for e, _ in reversed(norms)]
        values = [value for value, _ in starts]
        outputs = distinct(calls, [*values, target])
        if not starts:
            return False
        found = explain(target, values, [shaped(e.output, target) for e in outputs], numbers=self.numbers)
        if found is None or found.base is None:
            return False
        start, event = starts[found.base]
        if event is not None:
            inner = [e for e in calls if e.end <= event.end]
            if not self._state(start, base, inner, layer, depth=depth + 1):
                return False
        self.steps.add(found, outputs, layer=layer)
        return True

    def _with_constants(self, target: Tensor, base: Tensor, outputs: list[Event], layer: int) -> bool:
        """A sum in which the block also adds one of its own parameters (GPT-NeoX Japanese: attention's bias)."""
        block = self.stack.blocks[layer].event.module
        names = [
            f"{block}.{name}" for name, p in self.modules[block].named_parameters() if tuple(p.shape) == base.shape[-1:]
        ]
        parameters = dict(self.model.named_parameters())
        constants = [parameters[name].detach().expand_as(target).clone() for name in names]
        values = [*(shaped(e.output, target) for e in outputs), *constants]
        found = explain(target, [base], values, numbers=self.numbers, max_terms=3)
        if found is None:
            return False
        self.steps.add(found, [*outputs, *names], layer=layer)
        return True

    def _by_way_of(self, target: Tensor, base: Tensor, calls: list[Event], layer: int, depth: int) -> bool:
        """In two steps, by way of a state that some call inside the block reads."""
        seen: list[Tensor] = [base, target]
        for event in sorted(calls, key=lambda e: e.start):
            fits = [t for t in event.inputs if t.numel() == base.numel() and t.shape[-1] == base.shape[-1]]
            state = shaped(fits[0], base) if fits else None
            if state is None or any(same(state, other) for other in seen):
                continue
            seen.append(state)
            outputs = distinct([e for e in calls if e.end <= event.start], [base, state])
            values = [shaped(e.output, state) for e in outputs]
            found = explain(state, [base], values, numbers=self.numbers, max_terms=2)
            if found is None or not found.exact:
                continue
            before = self.steps.mark()
            self.steps.add(found, outputs, layer=layer)
            if self._state(target, state, calls, layer, depth=depth + 1):
                return True
            self.steps.return_to(before)
        return False

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

    def _norm_giving(self, target: Tensor, calls: Sequence[Event]) -> tuple[Event, Norm] | None:
        for event in calls:
            if same(shaped(event.output, target), target) and (norm := self._as_norm(event)) is not None:
                return event, norm
        return None

    def _as_norm(self, event: Event) -> Norm | None:
        module = self.modules[event.module]
        if not event.inputs or event.output is None or event.inputs[0].shape != event.output.shape:
            return None
        return identify_norm(module, Tap(module=event.module, call=event.call), event.inputs[0], event.output)
