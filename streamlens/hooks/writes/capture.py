"""CAPTURE: from a prompt to a Ledger, in one forward.

1. Tokens are what the tokenizer makes; padding is moved out of sight (`forward.py`).
2. Every write the wiring names is copied, at the kept positions, into one tensor as it is made; the norms of
   a post-norm stream, the final norm's output and the final stream are kept beside them.
3. The writes are re-added in the model's order and dtype, and summed in float64. If either does not give the
   stream, `ClosureError`: a wrong sum is never returned.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from streamlens.arguments import typed
from streamlens.axes import TokenMask
from streamlens.carries import Renorm
from streamlens.errors import InputError, WiringError
from streamlens.hooks.forward import Batch, asked_logits
from streamlens.hooks.prompts import Positions, Prompt, batch_for
from streamlens.hooks.scope import HookScope, quiet_eval
from streamlens.hooks.taps import Listener, attach
from streamlens.hooks.writes import levels
from streamlens.hooks.writes.closing import in_order, require_closure
from streamlens.hooks.writes.patterns import Attended, behind, recorded_attention
from streamlens.hooks.writes.split import Parts, Split, experts, heads, neurons, sources
from streamlens.ledger import SINK_RATIO, Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import encode
from streamlens.models.wiring import Experts, Wiring


@runtime_checkable
class Along(Protocol):
    """A reader that can say which vector a write is multiplied with at each token."""

    @property
    def matrix(self) -> Tensor: ...
    def at(self, ledger: Ledger) -> Tensor: ...


@typed
def decompose(
    model: ModelHandle,
    prompt: Prompt,
    *,
    attention_mask: Tensor | None = None,
    prepend_bos: bool = False,
    positions: Positions = None,
    level: str = "sublayer",
    sites: Sequence[str] | None = None,
    top: int | None = None,
    along: Along | None = None,
    keep_logits: bool = True,
    stream: str | None = None,
    **forward_kwargs: Any,
) -> Ledger:
    """Takes the residual stream of a prompt apart into its writes.

    Args:
        model: From `streamlens.load`.
        prompt: A string, several strings, or token ids [batch, pos].
        attention_mask: For token ids: 0 at padding, on any side.
        prepend_bos: Put the tokenizer's BOS token in front. Nothing is added otherwise.
        positions: What to keep: token texts or positions within each prompt's own tokens (negative from its
            end); None for all.
        level: "sublayer" for whole writes; "head", "source" (head by source token) or "neuron" to split the
            attention or MLP writes further.
        sites: Which writes to split (`["L9.attn"]`), so that memory stays bounded; None for all of that kind.
        top: At neuron level, keep the `top` largest neurons of each MLP and sum the others into one row.
        along: A reader; at neuron level the `top` neurons are those that give it most, instead of the longest.
        keep_logits: Keep the model's own logits at the kept positions, [batch, pos, vocab] in the model's dtype.
        stream: For a model with two: "decoder" (the default) or "encoder".
        **forward_kwargs: Passed to the model's own forward (`token_type_ids`, ...). An encoder-decoder reads
            `prompt` with its encoder; its decoder gets `decoder_input_ids`, by default its start token alone.

    Returns:
        A Ledger whose writes and rounding sum to the final stream.

    Raises:
        InputError: A prompt, mask or position that does not fit.
        ClosureError: The writes do not sum to the stream, or the parts of one not to it.
        WiringError: A write cannot be split, with the reason.

    Cost: one forward, and for parts O(parts x positions x d_model) more. Memory: the writes, [write, batch, pos,
    d_model] in the model's dtype, and the logits.
    """
    encoded = encode(model.tokenizer, prompt, attention_mask=attention_mask, prepend_bos=prepend_bos)
    wiring = model.wiring_of(stream)
    splits = levels.plan(model, wiring, level, sites)
    batch = batch_for(model, wiring, encoded, positions, forward_kwargs)
    if along is not None and along.matrix.shape[-1] != wiring.d_model:
        raise InputError(
            f"A reader is as wide as the stream, {wiring.d_model}; along is {along.matrix.shape[-1]} wide."
        )
    levels.require_room(splits, level, batch, wiring, top=top)
    with recorded_attention(model.model) if level == "source" else nullcontext({}) as attended:
        ledger = capture(
            model,
            wiring,
            batch,
            prompts=encoded.prompts,
            keep_logits=keep_logits,
            provenance={**model.provenance, "bos": encoded.bos},
            splits=splits,
        )
    if not splits:
        return ledger
    vector = None if along is None else along.at(ledger)
    parts: dict[int, Parts] = {}
    with quiet_eval(model.model):
        for split in splits:
            if level == "source":
                parts[split.row] = sources(model, split, _call_of(split, attended), batch)
            elif level == "head":
                parts[split.row] = heads(model, split)
            elif isinstance(split.maker, Experts):
                parts[split.row] = experts(model, wiring, split, ledger.added[split.row], batch)
            else:
                parts[split.row] = neurons(model, split, top=top, along=vector)
        return levels.refine(ledger, parts, level=level)


def _call_of(split: Split, attended: Mapping[str, list[Attended]]) -> Attended:
    """The attention call behind a projection: the module around it that called transformers' attention."""
    tap = split.maker.tap
    for name in behind(tap.module, attended):
        if tap.call < len(attended[name]):
            return attended[name][tap.call]
    raise WiringError(
        f"The attention of {split.write.site} does not go through transformers' attention interface, so its "
        "pattern and values cannot be read.",
        hint='level="head" works without them.',
    )


def capture(
    model: ModelHandle,
    wiring: Wiring,
    batch: Batch,
    *,
    prompts: tuple[str, ...],
    keep_logits: bool,
    provenance: Mapping[str, Any],
    splits: Sequence[Split] = (),
) -> Ledger:
    """One forward over a prepared batch, as a Ledger. See `decompose`."""
    seen = _Seen(wiring)
    keep_logits = keep_logits and wiring.head is not None
    asked = asked_logits(model.model, batch, wanted=keep_logits)
    only = {} if asked is None else {"logits_to_keep": asked}
    name = "decoder_input_ids" if wiring.stream == "decoder" else "input_ids"
    context = context_of(model, batch, name)
    with quiet_eval(model.model, model.modules.values()), HookScope() as scope:
        for split in splits:
            split.attach(scope, model.modules)
        listeners = [*seen.taps(), *(x for s in splits for x in s.listeners())]
        if not keep_logits:
            listeners.append(Listener(wiring.final_norm.tap if wiring.final_norm else wiring.final, _stop))
        attach(scope, model.modules, wiring, batch, listeners)
        try:
            output = model.model(**batch.inputs, **only)
        except _Seen.All:
            output = None
        stream = batch.keep(seen.stream)
        norms = tuple(model.frozen_norm(norm, seen.arrivals[n]) for n, norm in enumerate(wiring.norms))
        added = seen.added(model)
        logits = getattr(output, "logits", None)
        ledger = Ledger(
            sites=wiring.sites,
            added=added,
            program=wiring.program,
            norms=norms,
            states=seen.states,
            stream=stream,
            in_order=in_order(wiring, added, stream, batch, states=seen.states, arrivals=seen.arrivals),
            token_ids=batch.ids,
            tokens=_tokens(model, batch, context),
            special=torch.isin(batch.ids, model.special_ids) | ~batch.mask,
            mask=batch.mask,
            indices=batch.indices,
            sinks=_sinks(seen.stream, batch),
            final_norm=None if wiring.final_norm is None else model.frozen_norm(wiring.final_norm, stream),
            normed=seen.normed if wiring.final_norm else stream,
            logits=batch.keep_logits(logits, asked) if keep_logits and isinstance(logits, Tensor) else None,
            prompts=prompts,
            context=context,
            encoder_context=context_of(model, batch, "input_ids") if wiring.stream == "decoder" else (),
            provenance={**provenance, "stream": wiring.stream},
        )
        require_closure(ledger, exact=wiring.exact)
    return ledger


def context_of(model: ModelHandle, batch: Batch, name: str) -> tuple[tuple[str, ...], ...]:
    """The text of all tokens of each prompt, as the forward got them under this name."""
    ids = batch.inputs[name].cpu()
    mask = batch.inputs.get(name.replace("input_ids", "attention_mask"))
    lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(-1).tolist()
    return tuple(model.token_texts(row[:length]) for row, length in zip(ids.tolist(), lengths, strict=True))


def _tokens(model: ModelHandle, batch: Batch, context: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The text of the kept tokens; padding has a text of its own, which no prompt's context holds."""
    if batch.whole:
        return tuple(map(tuple, context))
    if not batch.mask.all():
        return tuple(model.token_texts(row) for row in batch.ids.tolist())
    places: list[list[int]] = batch.index.tolist()
    return tuple(tuple(texts[i] for i in row) for texts, row in zip(context, places, strict=True))


class _Seen:
    """What one forward showed: a buffer for the writes, and the few tensors that prove them."""

    class All(Exception):
        """The end of the stream has been seen, so the rest of the forward (the head) is left out."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.buffer: Tensor | None = None
        self.rows: tuple[Tensor, ...] = ()  # of the buffer
        self.stream: Tensor
        self.normed: Tensor | None = None
        self.states: dict[int, Tensor] = {}  # by step number
        self.arrivals: dict[int, Tensor] = {}  # by norm number

    def taps(self) -> Iterator[Listener]:
        for row, write in enumerate(self.wiring.writes):
            if write.tap is not None:
                yield Listener(write.tap, partial(self._keep_write, row, write.scale))
        for number, step in enumerate(self.wiring.program):
            if isinstance(step, Renorm):
                tap = self.wiring.norms[step.norm].tap
                yield Listener(tap, partial(_put, self.states, number))
                yield Listener(replace(tap, side="input"), partial(_put, self.arrivals, step.norm))
        yield Listener(self.wiring.final, partial(setattr, self, "stream"), all_positions=True)
        if self.wiring.final_norm is not None:
            yield Listener(self.wiring.final_norm.tap, partial(setattr, self, "normed"))

    def added(self, model: ModelHandle) -> Tensor:
        """All rows, the constants included."""
        assert self.buffer is not None
        for row, write in enumerate(self.wiring.writes):
            if write.constant:
                self.buffer[row] = model.parameter(write.constant) * write.scale
        return self.buffer

    def _take(self, buffer: Tensor) -> None:
        self.buffer, self.rows = buffer, buffer.unbind()

    def _keep_write(self, row: int, scale: float, tensor: Tensor) -> None:
        if self.buffer is None:
            self._take(tensor.new_empty((len(self.wiring.writes), *tensor.shape)))
        elif tensor.dtype != self.buffer.dtype:
            self._take(self.buffer.to(torch.promote_types(tensor.dtype, self.buffer.dtype)))  # wider than the first
        self.rows[row].copy_(tensor if scale == 1.0 else tensor * scale)


def _stop(_tensor: Tensor) -> None:
    raise _Seen.All


def _put(table: dict[int, Tensor], key: int, tensor: Tensor) -> None:
    table[key] = tensor.clone()


def _sinks(stream: Tensor, batch: Batch) -> TokenMask:
    """Which kept tokens have a norm far above their prompt's median, over all of its positions."""
    wide = torch.promote_types(stream.dtype, torch.float32)
    norms = torch.linalg.vector_norm(stream, dim=-1, dtype=wide).cpu()[:, : batch.run_mask.shape[1]]
    if not batch.whole:
        norms = norms.masked_fill(~batch.run_mask, float("nan"))
    limit = SINK_RATIO * norms.nanmedian(dim=-1, keepdim=True).values
    return batch.keep(norms > limit) & batch.mask
