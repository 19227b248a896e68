"""From edits to actions: positions become numbers, methods become functions.

1. `plan` checks everything, and runs nothing: positions are looked up among each prompt's own tokens (None means all
   of them), vectors and references are compared with what they replace.
2. Two edits that speak of the same write at the same token are refused: which comes first would decide.
3. `Plan.actions` runs the reference prompts of mean and resample, each set once for all edits that name it.
4. The projections take the row space of the reader over the stream: its matrix, with the gain (and centring) of the
   norm it reads through folded in and that norm's scale held, as `nullspace` and frozen visibility do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from streamlens.carries import fold
from streamlens.edits import Edit
from streamlens.errors import InputError
from streamlens.hooks.edits.action import Action, Change
from streamlens.hooks.edits.edit import Place, make_action, place_of
from streamlens.hooks.edits.reference import References
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import find_position
from streamlens.models.wiring import Wiring
from streamlens.sites import Site
from streamlens.subspaces import spectrum

#: singular values of a reader's matrix below this share of the largest span no row space
RANK_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One checked edit: where it acts, and how its change is made once references may run."""

    place: Place
    rows: list[int]
    positions: list[int]
    sources: list[int] | None
    attention: str
    change: Callable[[], Change]


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """Checked edits of one run."""

    model: ModelHandle
    steps: Sequence[Step]

    def actions(self) -> list[Action]:
        """The actions that make the edits. Cost: one forward over each set of reference prompts not yet run."""
        device = self.model.device
        return [
            make_action(
                step.place,
                step.change(),
                rows=torch.tensor(step.rows, device=device),
                positions=torch.tensor(step.positions, device=device),
                source=None if step.sources is None else torch.tensor(step.sources, device=device),
                attention=step.attention,
            )
            for step in self.steps
        ]


def resolve(
    model: ModelHandle,
    wiring: Wiring,
    context: Sequence[Sequence[str]],
    edits: Sequence[Edit],
    *,
    encoder_context: Sequence[Sequence[str]] = (),
) -> list[Action]:
    """The actions that make `edits` in a run of one or more prompts; see `plan`."""
    references = References(model, wiring)
    return plan(model, wiring, context, edits, references, encoder_context=encoder_context).actions()


def plan(
    model: ModelHandle,
    wiring: Wiring,
    context: Sequence[Sequence[str]],
    edits: Sequence[Edit],
    references: References,
    *,
    encoder_context: Sequence[Sequence[str]] = (),
) -> Plan:
    """Checks edits against a model and prompts. Runs no prompt.

    Args:
        model: The model.
        wiring: The stream's wiring.
        context: The text of each prompt's own tokens.
        edits: What is to be changed.
        references: Where the runs of reference prompts are shared.
        encoder_context: For a decoder, the text of its encoder's tokens: the sources of cross-attention.

    Raises:
        InputError: A site, position, vector or reference that does not exist or does not fit; two edits of one write.
        WiringError: A head or neuron of a write that has no such parts; an edge of attention that cannot be read.
    """
    places = [place_of(model, wiring, edit) for edit in edits]
    where = [_where(context, edit) for edit in edits]
    read = []
    for edit, place, (rows, _) in zip(edits, places, where, strict=True):
        texts = encoder_context if place.site.kind == "cross_attn" else context
        read.append(None if edit.source is None else [find_position(texts[row], edit.source) for row in rows])
    _require_apart(edits, places, where, read)
    steps = []
    for edit, place, (rows, positions), sources in zip(edits, places, where, read, strict=True):
        steps.append(
            Step(
                place=place,
                rows=rows,
                positions=positions,
                sources=sources,
                attention="" if sources is None else place.attention(model),
                change=_change(model, wiring, edit, place, context, positions, references),
            )
        )
    return Plan(model=model, steps=steps)


def _where(context: Sequence[Sequence[str]], edit: Edit) -> tuple[list[int], list[int]]:
    """The prompts and positions an edit acts on."""
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


def _require_apart(
    edits: Sequence[Edit],
    places: Sequence[Place],
    where: Sequence[tuple[list[int], list[int]]],
    sources: Sequence[list[int] | None],
) -> None:
    """Refuses edits whose order would decide: of one write, head or edge, or of a thing and a part of it."""
    taken: dict[tuple[int, int, int], list[tuple[Site, int | None, Edit]]] = {}
    for edit, place, (rows, positions), read in zip(edits, places, where, sources, strict=True):
        for number, (row, position) in enumerate(zip(rows, positions, strict=True)):
            source = None if read is None else read[number]
            here = taken.setdefault((place.row, row, position), [])
            for site, from_, other in here:
                parts = site.fine and place.site.fine and site != place.site
                edges = site == place.site and None not in (from_, source) and from_ != source
                if not parts and not edges:
                    raise InputError(
                        f"A write is edited once at a token; {other.label} and {edit.label} both edit "
                        f"{place.site if place.site == site else place.site.sublayer} at position {position}.",
                        hint="Make one edit of them, or name other positions.",
                    )
            here.append((place.site, source, edit))


def _change(
    model: ModelHandle,
    wiring: Wiring,
    edit: Edit,
    place: Place,
    context: Sequence[Sequence[str]],
    positions: list[int],
    references: References,
) -> Callable[[], Change]:
    if edit.method == "mean":
        return references.mean(edit, place, positions)
    if edit.method == "resample":
        return references.resample(edit, place, context, positions)
    if edit.method == "zero":
        made: Change = torch.zeros_like
    elif edit.method == "scale":
        factor: Any = edit.value
        made = lambda here: here * factor  # noqa: E731
    elif edit.method == "replace":
        made = _replace(model, wiring, edit, place)
    else:
        made = _project(model, wiring, edit, place)
    return lambda: made


def _replace(model: ModelHandle, wiring: Wiring, edit: Edit, place: Place) -> Change:
    value = torch.as_tensor(edit.value).detach().to(model.device)
    width = wiring.d_model if place.columns is None else place.columns.stop - place.columns.start
    if value.shape != (width,):
        raise InputError(f"{place.site} is replaced by a vector of {width} numbers; got shape {tuple(value.shape)}.")
    if not torch.isfinite(value).all():
        wrong = int((~torch.isfinite(value)).sum())
        raise InputError(f"{place.site} is replaced by finite numbers; {wrong} of these {width} are not.")
    if place.columns is None:
        value = value / wiring.factor_of(place.row)  # so that the vector is what enters the stream
    return lambda here: value.to(here.dtype).expand_as(here)


def _project(model: ModelHandle, wiring: Wiring, edit: Edit, place: Place) -> Change:
    reader: Any = edit.reader
    if place.site.fine:
        raise InputError(f"A projection acts on a whole write, [d_model]; {place.site} is a part of one.")
    matrix = reader.matrix.double()
    if matrix.shape[-1] != wiring.d_model:
        raise InputError(f"A reader is as wide as the stream, {wiring.d_model}; this one is {matrix.shape[-1]} wide.")
    norm = getattr(reader, "through", None)
    if norm is None and getattr(reader, "norm", "none") == "final" and wiring.final_norm is not None:
        norm = model.stream_norm(wiring.final_norm)
    _, basis = spectrum(fold(matrix.cpu(), norm), getattr(reader, "tolerance", RANK_TOLERANCE))
    basis = basis.to(model.device)

    def change(here: Tensor) -> Tensor:
        seen = (here.double() @ basis.T) @ basis
        return (seen if edit.method == "project_onto" else here.double() - seen).to(here.dtype)

    return change
