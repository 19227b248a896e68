"""From edits to actions: positions become numbers, methods become functions. All checks happen here.

1. Positions are looked up among each prompt's own tokens; None means all of them.
2. Two edits that speak of the same write at the same token are refused: which comes first would decide.
3. zero, scale, replace need nothing more. mean and resample run their reference prompts once. The projections take
   the row space of the reader as it reads the final stream: its matrix, behind the final norm's gain (and
   centring) if it reads through it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from streamlens.edits import Edit
from streamlens.errors import InputError
from streamlens.hooks.capture import capture
from streamlens.hooks.edit import Action, Change, make_action, site_of
from streamlens.hooks.prompts import batch_for
from streamlens.hooks.split import Split
from streamlens.models.handle import ModelHandle
from streamlens.models.norms import gain_vector
from streamlens.models.tokens import encode, find_position
from streamlens.models.wiring import Projection, Wiring

#: singular values of a reader's matrix below this share of the largest span no row space
RANK_TOLERANCE = 1e-9


def resolve(
    model: ModelHandle, wiring: Wiring, context: Sequence[Sequence[str]], edits: Sequence[Edit]
) -> list[Action]:
    """The actions that make `edits` in a run of one or more prompts.

    Args:
        model: The model.
        wiring: The stream's wiring.
        context: The text of each prompt's own tokens.
        edits: What is to be changed.

    Raises:
        InputError: A site, position, vector or reference that does not exist or does not fit; two edits of one write.
        WiringError: A head or neuron of a write that has no such parts.
    """
    _require_apart(model, wiring, context, edits)
    actions = []
    for edit in edits:
        rows, positions = _places(context, edit)
        change = _change(model, wiring, edit, context, rows, positions)
        source = None if edit.source is None else find_position(context[0], edit.source)
        actions.append(
            make_action(
                model,
                wiring,
                edit,
                change,
                rows=torch.tensor(rows, device=model.device),
                positions=torch.tensor(positions, device=model.device),
                source=source,
            )
        )
    return actions


def _places(context: Sequence[Sequence[str]], edit: Edit) -> tuple[list[int], list[int]]:
    """The (prompt, position) pairs an edit acts on."""
    rows, positions = [], []
    for row, tokens in enumerate(context):
        if edit.position is None:
            here = list(range(len(tokens)))
        else:
            wanted = [edit.position] if isinstance(edit.position, int | str) else list(edit.position)
            here = [find_position(tokens, token) for token in wanted]
        rows += [row] * len(here)
        positions += here
    return rows, positions


def _require_apart(model: ModelHandle, wiring: Wiring, context: Sequence[Sequence[str]], edits: Sequence[Edit]) -> None:
    taken: dict[tuple[Any, ...], str] = {}
    for edit in edits:
        _, site = site_of(model, wiring, edit)
        rows, positions = _places(context, edit)
        for place in zip(rows, positions, strict=True):
            for key in (
                {(site, edit.source, *place), (site.sublayer, None, *place)} if site.fine else {(site, None, *place)}
            ):
                whole = key[0] == site
                if key in taken and (whole or taken[key] == site.label):
                    raise InputError(
                        f"Two edits speak of {site} at position {place[1]}: {taken[key]} and {edit.label}."
                    )
                if whole:
                    taken[key] = edit.label
            if not site.fine and any(k[0] != site and k[0].sublayer == site and k[2:] == place for k in taken):
                raise InputError(f"Two edits speak of {site} at position {place[1]}: the whole write and a part of it.")


def _change(
    model: ModelHandle,
    wiring: Wiring,
    edit: Edit,
    context: Sequence[Sequence[str]],
    rows: list[int],
    positions: list[int],
) -> Change:
    if edit.method == "zero":
        return torch.zeros_like
    if edit.method == "scale":
        factor: Any = edit.value
        return lambda here: here * factor
    if edit.method == "replace":
        return _replace(model, wiring, edit)
    if edit.method in ("project_out", "project_onto"):
        return _project(model, wiring, edit)
    if edit.method == "mean":
        return _mean(model, wiring, edit, positions)
    return _resample(model, wiring, edit, context, positions)


def _width(model: ModelHandle, wiring: Wiring, edit: Edit) -> int:
    row, site = site_of(model, wiring, edit)
    if not site.fine:
        return wiring.d_model
    maker = model.projections(wiring.stream)[row]
    assert isinstance(maker, Projection)
    return 1 if site.neuron is not None else maker.width // maker.heads


def _replace(model: ModelHandle, wiring: Wiring, edit: Edit) -> Change:
    value = torch.as_tensor(edit.value).detach().to(model.device)
    width = _width(model, wiring, edit)
    if value.shape not in ((width,), (1,) if width == 1 else (width,)) or not torch.isfinite(value).all():
        raise InputError(f"{edit.site} is replaced by {width} finite numbers; got shape {tuple(value.shape)}.")
    row, site = site_of(model, wiring, edit)
    # the change acts before the factor that the write's group shares
    value = value if site.fine else value / wiring.factor_of(row)
    return lambda here: value.to(here.dtype).expand_as(here)


def _project(model: ModelHandle, wiring: Wiring, edit: Edit) -> Change:
    _, site = site_of(model, wiring, edit)
    reader: Any = edit.reader
    if site.fine:
        raise InputError(f"A projection acts on a whole write, [d_model]; {site} is a part of one.")
    matrix = reader.matrix.double()
    if matrix.shape[-1] != wiring.d_model:
        raise InputError(f"A reader is as wide as the stream, {wiring.d_model}; this one is {matrix.shape[-1]} wide.")
    norm = wiring.final_norm if getattr(reader, "norm", "none") == "final" else None
    if norm is not None:
        matrix = matrix * gain_vector(model.modules[norm.tap.module], norm.gain, wiring.d_model).cpu()
        matrix = matrix - matrix.mean(-1, keepdim=True) if norm.centred else matrix
    _, values, basis = torch.linalg.svd(matrix, full_matrices=False)
    basis = basis[values > RANK_TOLERANCE * values[0]].to(model.device)

    def change(here: Tensor) -> Tensor:
        seen = (here.double() @ basis.T) @ basis
        return (seen if edit.method == "project_onto" else here.double() - seen).to(here.dtype)

    return change


@dataclass(frozen=True, eq=False)
class _Observed:
    """What an edit's write is on other prompts: its values [batch, pos, width] and the tokens there."""

    values: Tensor
    mask: Tensor
    sinks: Tensor
    context: tuple[tuple[str, ...], ...]


def _observe(model: ModelHandle, wiring: Wiring, edit: Edit) -> _Observed:
    """One forward over the reference prompts."""
    row, site = site_of(model, wiring, edit)
    encoded = encode(model.tokenizer, edit.prompts if edit.prompts is not None else [])
    batch = batch_for(model, wiring, encoded, None, {})
    splits = []
    if site.fine:
        maker = model.projections(wiring.stream)[row]
        assert isinstance(maker, Projection)
        splits = [Split(row=row, write=wiring.writes[row], maker=maker)]
    ledger = capture(model, wiring, batch, prompts=encoded.prompts, keep_logits=False, provenance={}, splits=splits)
    values = ledger.added[row]
    if splits:
        size = splits[0].inputs.shape[-1] if site.neuron is not None else _width(model, wiring, edit)
        start = site.neuron if site.neuron is not None else (site.head or 0) * size
        values = splits[0].inputs[..., start : start + (1 if site.neuron is not None else size)]
    return _Observed(values, ledger.mask, ledger.sinks, ledger.context)


def _mean(model: ModelHandle, wiring: Wiring, edit: Edit, positions: list[int]) -> Change:
    seen = _observe(model, wiring, edit)
    keep = (seen.mask & ~seen.sinks)[..., None].to(seen.values.device)
    if not keep.any():
        raise InputError(f"The reference prompts of {edit.label} hold no token that is no sink.")
    if not edit.per_position:
        mean = (seen.values.double() * keep).sum((0, 1)) / keep.sum((0, 1))
        return lambda here: mean.to(here.dtype).expand_as(here)
    if max(positions) >= seen.values.shape[1]:
        raise InputError(
            f"A mean per position needs a reference at position {max(positions)}; the longest reference prompt has "
            f"{seen.values.shape[1]} tokens."
        )
    keep = seen.mask[..., None].to(seen.values.device)
    each = (seen.values.double() * keep).sum(0) / keep.sum(0)
    return lambda here: each[positions].to(here.dtype)


def _resample(
    model: ModelHandle, wiring: Wiring, edit: Edit, context: Sequence[Sequence[str]], positions: list[int]
) -> Change:
    seen = _observe(model, wiring, edit)
    there = seen.context[0]
    wanted = [edit.position] if isinstance(edit.position, str) else edit.position
    if isinstance(wanted, list) and all(isinstance(token, str) for token in wanted):
        places = [find_position(there, token) for token in wanted] * len(context)
    else:
        if any(len(tokens) != len(there) for tokens in context):
            raise InputError(
                "Prompts of different length do not align position by position: "
                f"{list(context[0])} ({len(context[0])} tokens) and {list(there)} ({len(there)} tokens).",
                hint="Name the token: position=' bank'.",
            )
        places = positions
    values = seen.values[0, places]
    return lambda here: values.to(here.dtype)
