"""REPLAY: the rest of the model again, with some writes changed.

1. A clean run is kept once: its ledger, and its keys and values if the model's cache can be cut and repeated.
2. An edit at position p of a causal model changes nothing before p. So the variants run as one batch over positions
   p..T only, on the clean keys and values before p, repeated without being copied.
3. The first row of every batch is a variant without edits. It must equal the clean run; if it does not, this model's
   cache cannot be used this way, and the variants run in full: slower, the same numbers.
4. Every run is captured like any other and closes like any other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from streamlens.edits import Edit, as_edits
from streamlens.errors import ClosureError, InputError
from streamlens.hooks.capture import capture
from streamlens.hooks.edit import Action, attach_actions, changes_of
from streamlens.hooks.forward import Batch
from streamlens.hooks.freeze import Freezer
from streamlens.hooks.prefix import Prefix, prefix_of
from streamlens.hooks.prompts import Positions, Prompt, batch_for, kept_positions
from streamlens.hooks.resolve import resolve
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import Encoded, encode
from streamlens.models.wiring import Wiring

#: relative difference between the control row and the clean run above which a cache counts as unusable; batching
#: alone moves float32 writes by 1e-6 (measured)
CONTROL = {torch.float64: 1e-10, torch.float32: 1e-4}
#: tokens in one batch of variants: enough to fill the processor, little enough for memory
CHUNK = 1024


@dataclass(frozen=True, eq=False, kw_only=True)
class Clean:
    """A prompt's run without edits, kept so that variants can start from it.

    Attributes:
        model: The model.
        wiring: The stream's wiring.
        encoded: The prompts.
        batch: The run.
        ledger: Its ledger at all positions, without logits.
        prefix: Its keys and values; None if they cannot be reused.
        extra: Further arguments of the forward.
    """

    model: ModelHandle
    wiring: Wiring
    encoded: Encoded
    batch: Batch
    ledger: Ledger
    prefix: Prefix | None
    extra: dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Variants:
    """A batch of edited runs beside the clean one.

    Attributes:
        clean: The run without edits at the kept positions, one prompt.
        edited: The edited runs, one batch row per variant.
        changed: Which writes are edited where, [write, batch, pos].
        reused: Whether keys and values of the clean run were reused.
    """

    clean: Ledger
    edited: Ledger
    changed: Tensor
    reused: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Replay:
    """An edited run.

    Attributes:
        ledger: Its ledger, which closes like any other.
        edits: What was changed.
        clean: The run without edits it started from.
    """

    ledger: Ledger
    edits: tuple[Edit, ...]
    clean: Clean

    @property
    def logits(self) -> Tensor | None:
        """The edited run's logits, [batch, pos, vocab]; None if the model has no linear head."""
        return self.ledger.logits


def clean_run(
    model: ModelHandle,
    prompt: Prompt,
    *,
    attention_mask: Tensor | None = None,
    prepend_bos: bool = False,
    stream: str | None = None,
    **forward_kwargs: Any,
) -> Clean:
    """One run without edits, kept for variants. Arguments as for `decompose`."""
    encoded = encode(model.tokenizer, prompt, attention_mask=attention_mask, prepend_bos=prepend_bos)
    wiring = model.wiring_of(stream)
    batch = batch_for(model, wiring, encoded, None, forward_kwargs)
    keeper = prefix_of(model, wiring, batch)
    provenance = {**model.provenance, "bos": encoded.bos}
    ledger = capture(
        model,
        wiring,
        batch if keeper is None else keeper.batch,
        prompts=encoded.prompts,
        keep_logits=True,
        provenance=provenance,
    )
    prefix = None if keeper is None else keeper.prefix()
    return Clean(
        model=model, wiring=wiring, encoded=encoded, batch=batch, ledger=ledger, prefix=prefix, extra=forward_kwargs
    )


def replay(
    model: ModelHandle,
    prompt: "Prompt | Clean | Replay",
    edits: str | Edit | Sequence[str | Edit],
    **forward_kwargs: Any,
) -> Replay:
    """Runs a prompt with some writes changed.

    Args:
        model: From `streamlens.load`.
        prompt: A string, several strings, or token ids; or an earlier `Replay`, whose edits are kept and added to.
        edits: Edits, or their text form: `L9.attn`, `L9H2@bank`, `L12.mlp=0.5`.
        **forward_kwargs: As for `decompose`.

    Raises:
        InputError: An edit that does not fit the model or the prompt.

    Cost: one clean forward (none for an earlier Replay) and one edited one.
    """
    wanted = as_edits(edits)
    if isinstance(prompt, Replay):
        wanted = [*prompt.edits, *wanted]
        clean = prompt.clean
    else:
        clean = prompt if isinstance(prompt, Clean) else clean_run(model, prompt, **forward_kwargs)
    context = clean.ledger.context
    actions = resolve(model, clean.wiring, context, wanted)
    with attach_actions(model, clean.wiring, clean.batch, actions):
        ledger = capture(
            model,
            clean.wiring,
            clean.batch,
            prompts=clean.encoded.prompts,
            keep_logits=True,
            provenance={**clean.ledger.provenance, "edits": [edit.label for edit in wanted]},
        )
    return Replay(ledger=ledger, edits=tuple(wanted), clean=clean)


def run_variants(
    clean: Clean,
    variants: Sequence[Sequence[Edit]],
    *,
    positions: Positions = None,
    keep_logits: bool = True,
    freeze: str | Sequence[str] | None = None,
) -> Iterator[Variants]:
    """Runs one prompt once for each set of edits, as few batches as memory allows.

    Args:
        clean: The run without edits, of one prompt.
        variants: One set of edits each.
        positions: What to keep of every run; None for all positions.
        keep_logits: Keep the logits at the kept positions.
        freeze: What keeps its clean value; see `streamlens.hooks.freeze`.

    Yields:
        One entry per batch, the variants in their order.

    Raises:
        InputError: More than one prompt, or an edit that does not fit.

    Cost: about one forward over the edited positions per variant, batched.
    """
    if len(clean.ledger.context) != 1:
        raise InputError(f"Variants are runs of one prompt; got {len(clean.ledger.context)}.")
    model, wiring, context = clean.model, clean.wiring, clean.ledger.context
    resolved = [resolve(model, wiring, context, edits) for edits in variants]
    length = len(context[0])
    kept = kept_positions(context, positions)
    kept = list(range(length)) if kept is None else kept[0]
    frozen = freezer(clean, freeze)
    order = 0
    while order < len(resolved):
        first = min(_first(actions) for actions in resolved[order:])
        start = min(first, min(kept)) if clean.prefix is not None else 0
        size = max(1, CHUNK // (length - start))
        chunk = resolved[order : order + size]
        yield _run_chunk(clean, chunk, kept, start, keep_logits=keep_logits, frozen=frozen)
        order += len(chunk)


def freezer(clean: Clean, freeze: str | Sequence[str] | None) -> Freezer:
    """What `freeze=` asks for, looked up before anything runs."""
    return Freezer.of(clean.model, clean.wiring, clean.batch, clean.ledger, freeze)


def _first(actions: Sequence[Action]) -> int:
    return min(int(action.positions.min()) for action in actions)


def _run_chunk(
    clean: Clean,
    chunk: Sequence[Sequence[Action]],
    kept: list[int],
    start: int,
    *,
    keep_logits: bool,
    frozen: Freezer,
) -> Variants:
    """One batch: the control row, then the variants."""
    prefix = clean.prefix if start > 0 else None
    batch = _batch(clean, len(chunk) + 1, kept, start)
    actions = [a.at(row=n + 1, start=start) for n, group in enumerate(chunk) for a in group]
    held = frozen.actions([{a.row for a in group} for group in chunk], start)
    with attach_actions(clean.model, clean.wiring, batch, [*held, *actions]), frozen.patterns(start):
        ledger = capture(
            clean.model,
            clean.wiring,
            batch,
            prompts=clean.encoded.prompts * (len(chunk) + 1),
            keep_logits=keep_logits,
            provenance=clean.ledger.provenance,
        )
    if not _is_clean(clean, ledger, kept):
        if prefix is None:
            raise ClosureError(
                "The model gives other numbers in a batch of variants than alone, without any edit.",
                hint="Run the edits one by one with replay().",
            )
        return _run_chunk(replace(clean, prefix=None), chunk, kept, 0, keep_logits=keep_logits, frozen=frozen)
    ledger = replace(ledger, sinks=clean.ledger.sinks[:, kept].expand(len(chunk) + 1, -1))
    changed = changes_of(actions, ledger.added.shape[:3], batch.index)
    return Variants(
        clean=ledger.prompt(slice(0, 1)),
        edited=ledger.prompt(slice(1, None)),
        changed=changed[:, 1:],
        reused=prefix is not None,
    )


def _batch(clean: Clean, rows: int, kept: list[int], start: int) -> Batch:
    """The prompt from position `start` on, `rows` times."""
    name = "decoder_input_ids" if clean.wiring.stream == "decoder" else "input_ids"
    inputs: dict[str, Any] = {}
    for key, value in clean.batch.inputs.items():
        repeated = isinstance(value, Tensor) and value.dim() > 0 and len(value) == 1
        inputs[key] = value.expand(rows, *value.shape[1:]) if repeated else value
    ids = clean.batch.inputs[name]
    inputs[name] = ids[:, start:].expand(rows, -1)
    if clean.prefix is not None and start > 0:
        inputs |= clean.prefix.inputs(rows, start)
    index = torch.tensor([kept] * rows)
    return Batch(
        inputs=inputs,
        index=index - start,
        indices=index,
        mask=torch.ones_like(index, dtype=torch.bool),
        ids=ids.cpu()[:, kept].expand(rows, -1),
        whole=False,
        run_mask=torch.ones(rows, ids.shape[1] - start, dtype=torch.bool),
    )


def _is_clean(clean: Clean, ledger: Ledger, kept: list[int]) -> bool:
    """Whether the control row, run through the cache, is the clean run."""
    tolerance = CONTROL.get(ledger.stream.dtype, 5e-2)
    before = clean.ledger.stream[0, kept].double()
    return bool((ledger.stream[0].double() - before).norm() <= tolerance * before.norm())
