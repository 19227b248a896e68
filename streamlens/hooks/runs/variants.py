"""VARIANTS: many edited runs of one prompt, as few batches as memory allows.

1. An edit at position p of a causal model changes nothing before p, and nothing below its block. So the variants run
   as one batch over positions p..T only, on the clean keys and values before p, repeated without being copied
   (`prefix.py`), and each joins the batch at the block of its first edit (`join.py`).
2. The first row of every batch is a variant without edits. It must equal the clean run; if it does not, or if the
   model cannot be run that way, the variants run without reuse: slower, the same numbers.
3. Every run is captured like any other and closes like any other.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from streamlens.edits import Edit
from streamlens.errors import ClosureError, InputError, WiringError
from streamlens.hooks.edits.action import Action
from streamlens.hooks.edits.edit import attach_actions, changes_of
from streamlens.hooks.edits.freeze import Freezer, frozen_rows
from streamlens.hooks.edits.reference import References
from streamlens.hooks.edits.resolve import plan
from streamlens.hooks.forward import Batch
from streamlens.hooks.prompts import Positions, kept_positions
from streamlens.hooks.runs.join import JoinedBatch, Joining, joining_of
from streamlens.hooks.scope import HookScope
from streamlens.hooks.writes.capture import capture
from streamlens.hooks.writes.clean import Clean
from streamlens.hooks.writes.prefix import Prefix
from streamlens.ledger import Ledger
from streamlens.models.norms import weight_matrix

#: relative difference between the control row and the clean run above which a cache counts as unusable; batching
#: alone moves float32 writes by 1e-6 (measured)
CONTROL = {torch.float64: 1e-10, torch.float32: 1e-4}
#: tokens that run in one batch of variants: large enough that the control row costs little, small enough for memory
CHUNK = 4096
#: bytes that the kept writes and logits of one batch may take
ROOM = 1 << 28


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
        freeze: What keeps its clean value; see `streamlens.hooks.edits.freeze`.

    Yields:
        One entry per batch, the variants in their order.

    Raises:
        InputError: More than one prompt, or an edit that does not fit.

    Cost: about one forward over the edited positions per variant, batched.
    """
    if len(clean.context) != 1:
        raise InputError(f"Variants are runs of one prompt; got {len(clean.context)}.")
    clean = clean.unpadded
    model, wiring, context, across = clean.model, clean.wiring, clean.context, clean.encoder_context
    references = References(model, wiring)
    plans = [plan(model, wiring, context, edits, references, encoder_context=across) for edits in variants]
    kept = kept_positions(context, positions) or [list(range(len(context[0])))]
    rows = frozen_rows(wiring, freeze)
    resolved = [planned.actions() for planned in plans]
    frozen = freezer(clean, freeze) if rows or freeze else None
    ways = _ways(clean, joins=frozen is None)
    order = 0
    while order < len(resolved):
        way = ways[0]
        first = min(_first(actions) for actions in resolved[order:])
        start = min(first, *kept[0]) if way.prefix is not None else 0
        size = _size(clean, len(context[0]) - start, len(kept[0]), keep_logits=keep_logits)
        chunk = resolved[order : order + size]
        made = _run_chunk(clean, way, chunk, kept[0], start, keep_logits=keep_logits, frozen=frozen, last=len(ways) < 2)
        if made is None:
            ways.pop(0)
            continue
        yield made
        order += len(chunk)


@dataclass(frozen=True, eq=False, kw_only=True)
class Way:
    """How a batch of variants is run.

    Attributes:
        prefix: The clean run's keys and values that it goes on from; None to run every position.
        joins: Whether a variant runs only from the block of its first edit on.
    """

    prefix: Prefix | None
    joins: bool


def _ways(clean: Clean, *, joins: bool) -> list[Way]:
    """The ways to run variants, fastest first; the last one is a plain batch."""
    prefixes = [None] if clean.prefix is None else [clean.prefix, None]
    return [Way(prefix=prefix, joins=j) for prefix in prefixes for j in ([True, False] if joins else [False])]


def _size(clean: Clean, tokens: int, kept: int, *, keep_logits: bool) -> int:
    """How many variants of so many tokens, and so many that are kept, fit into a batch."""
    model, wiring = clean.model, clean.wiring
    numbers = len(wiring.writes) * wiring.d_model
    if keep_logits and wiring.head is not None:
        numbers += weight_matrix(model.modules[wiring.head.module]).shape[0]
    return max(1, min(CHUNK // tokens, ROOM // (kept * numbers * model.dtype.itemsize)))


def freezer(clean: Clean, freeze: str | Sequence[str] | None) -> Freezer:
    """What `freeze=` asks for."""
    return Freezer.of(clean.model, clean.wiring, clean.batch, clean.ledger, freeze)


def _first(actions: Sequence[Action]) -> int:
    return min(int(action.positions.min()) for action in actions)


def _run_chunk(
    clean: Clean,
    way: Way,
    chunk: Sequence[Sequence[Action]],
    kept: list[int],
    start: int,
    *,
    keep_logits: bool,
    frozen: Freezer | None,
    last: bool,
) -> Variants | None:
    """One batch: the control row, then the variants. None if the model cannot be run this way.

    Raises:
        ClosureError: It cannot be run in the last way either.
    """
    try:
        ledger, changed = _captured(clean, way, chunk, kept, start, keep_logits=keep_logits, frozen=frozen)
    except (InputError, WiringError):
        raise
    except Exception:  # whatever a model raises that cannot use this cache, or whose rows cannot join
        if last:
            raise
        return None
    if not _is_clean(clean, ledger, kept):
        if not last:
            return None
        raise ClosureError(
            "The model gives other numbers in a batch of variants than alone, without any edit.",
            hint="Run the edits one by one with replay().",
        )
    ledger = replace(ledger, sinks=clean.ledger.sinks[:, kept].expand(len(chunk) + 1, -1))
    return Variants(
        clean=ledger.prompt(slice(0, 1)),
        edited=ledger.prompt(slice(1, None)),
        changed=changed[:, 1:],
        reused=start > 0,
    )


def _captured(
    clean: Clean,
    way: Way,
    chunk: Sequence[Sequence[Action]],
    kept: list[int],
    start: int,
    *,
    keep_logits: bool,
    frozen: Freezer | None,
) -> tuple[Ledger, Tensor]:
    """The ledger of one batch, and which writes are edited where in it."""
    model, wiring, rows = clean.model, clean.wiring, len(chunk) + 1
    actions = [a.at(row=n + 1, start=start) for n, group in enumerate(chunk) for a in group]
    held = [] if frozen is None else frozen.actions(chunk, start)
    joining = joining_of(model, wiring, chunk) if way.joins else None
    batch = repeated_batch(clean, rows, kept, prefix=way.prefix, start=start, joining=joining)
    with (
        HookScope() as scope,
        nullcontext() if frozen is None else frozen.patterns(start),  # first, so that edges see the frozen ones
        attach_actions(model, wiring, batch, [*held, *actions]),
    ):
        if joining is not None:
            joining.attach(scope, model, wiring)
        ledger = capture(
            model,
            wiring,
            batch,
            prompts=clean.encoded.prompts * rows,
            keep_logits=keep_logits,
            provenance=clean.ledger.provenance,
        )
    return ledger, changes_of(actions, ledger.added.shape[:3], batch.index)


def repeated_batch(
    clean: Clean,
    rows: int,
    kept: list[int],
    *,
    prefix: Prefix | None = None,
    start: int = 0,
    joining: Joining | None = None,
) -> Batch:
    """One prompt from position `start` on, `rows` times."""
    own = (
        ("decoder_input_ids",) if clean.wiring.stream == "decoder" else ("input_ids", "token_type_ids", "position_ids")
    )
    inputs: dict[str, Any] = {}
    for name, value in clean.batch.inputs.items():
        if isinstance(value, Tensor) and value.dim() > 0 and len(value) == 1:
            value = value[:, start:] if name in own else value
            value = value.expand(rows, *value.shape[1:])
        inputs[name] = value
    if prefix is not None and start > 0:
        inputs |= prefix.inputs(start)
    index = torch.tensor([kept] * rows)
    length = inputs[own[0]].shape[1]
    fields: dict[str, Any] = {
        "inputs": inputs,
        "index": index - start,
        "indices": index,
        "mask": torch.ones_like(index, dtype=torch.bool),
        "ids": clean.batch.inputs[own[0]].cpu()[:, kept].expand(rows, -1),
        "whole": kept == list(range(start, start + length)),
        "run_mask": torch.ones(rows, length, dtype=torch.bool),
    }
    return Batch(**fields) if joining is None else JoinedBatch(**fields, joining=joining)


def _is_clean(clean: Clean, ledger: Ledger, kept: list[int]) -> bool:
    """Whether the control row, run through the cache, is the clean run."""
    tolerance = CONTROL.get(ledger.stream.dtype, 5e-2)
    before = clean.ledger.stream[0, kept].double()
    return bool((ledger.stream[0].double() - before).norm() <= tolerance * before.norm())
