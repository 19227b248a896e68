"""Levels: which writes are split, and the ledger with their parts in place of them.

1. `plan` looks the level and the sites up in what is known of the model, before it runs.
2. `split.py` makes the parts from what the forward showed.
3. `refine` puts them into the ledger and compares them with the write itself; the ledger carries the largest
   difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from streamlens.carries import Add, Renorm, Step
from streamlens.errors import ClosureError, InputError, WiringError
from streamlens.hooks.forward import Batch
from streamlens.hooks.writes.split import ROOM, TOLERANCE, Parts, Split, difference
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Experts, Projection, Wiring
from streamlens.sites import Site, find

LEVELS = ("sublayer", "head", "source", "neuron")
#: what a level splits; the other writes stay whole
SPLITS = {"head": ("attn", "cross_attn"), "source": ("attn", "cross_attn"), "neuron": ("mlp",)}


def plan(model: ModelHandle, wiring: Wiring, level: str, sites: Sequence[str] | None) -> list[Split]:
    """The writes that a level splits, all of them or those named.

    Raises:
        InputError: Unknown level, or a site that this level does not split.
        WiringError: A write that cannot be split, with the reason.
    """
    if level not in LEVELS:
        raise InputError(f"A level is one of {', '.join(LEVELS)}; got {level!r}.")
    if level == "sublayer":
        if sites is not None:
            raise InputError("sites= chooses what a finer level splits; give level= as well.")
        return []
    projections = model.projections(wiring.stream)
    wanted = None if sites is None else {_named(wiring, text, level) for text in sites}
    splits = []
    for row, write in enumerate(wiring.writes):
        if row in projections and write.site.kind in SPLITS[level] and (wanted is None or row in wanted):
            projection = projections[row]
            if isinstance(projection, Experts) and level != "neuron":
                projection = f"{write.site} is a mixture of experts; it has no heads."
            if isinstance(projection, str):
                raise WiringError(projection, hint="Choose other writes with sites=.")
            splits.append(Split(row=row, write=write, maker=projection))
    if not splits:
        kinds = " or ".join(SPLITS[level])
        raise InputError(f"Level {level!r} splits {kinds} writes, and this model has none.")
    return splits


def require_room(splits: Sequence[Split], level: str, batch: Batch, wiring: Wiring, *, top: int | None) -> None:
    """Refuses, before the model runs, a split whose rows would not fit into `ROOM` while they are made.

    Raises:
        InputError: One write's rows at all kept positions are too many.
    """
    tokens, length = batch.index.numel(), batch.run_mask.shape[1]
    for split in splits:
        if not isinstance(split.maker, Projection):
            continue
        per_head = length if level == "source" else 1
        width = split.maker.width if top is None else min(top, split.maker.width)
        rows = width if level == "neuron" else split.maker.heads * per_head
        if rows * tokens * wiring.d_model * 8 > ROOM:
            what = f"{split.maker.width} neurons" if level == "neuron" else f"{rows} parts"
            raise InputError(
                f"{split.write.site} has {what}; at {tokens} positions their rows would take more than "
                f"{ROOM >> 20} MiB.",
                hint="Give top=50, or fewer positions=." if level == "neuron" else "Give fewer positions=.",
            )


def _named(wiring: Wiring, text: str, level: str) -> int:
    site = find(text, wiring.sites)
    if site.kind not in SPLITS[level]:
        raise InputError(f"Level {level!r} splits {' or '.join(SPLITS[level])} writes; {site} is none.")
    return wiring.sites.index(site)


def refine(ledger: Ledger, parts: Mapping[int, Parts], *, level: str) -> Ledger:
    """The ledger with some rows replaced by their parts.

    Raises:
        ClosureError: Parts that do not sum to their write.
    """
    sites: list[Site] = []
    added: list[Tensor] = []
    attention: list[Tensor] = []
    places: dict[int, tuple[int, ...]] = {}
    errors: dict[str, float] = {}
    dtype = torch.promote_types(ledger.added.dtype, torch.float32)
    for row, site in enumerate(ledger.sites):
        whole = ledger.added[row]
        start = len(sites)
        if row in parts:
            sites += parts[row].sites
            added.append(parts[row].rows.to(dtype))
            errors[site.label] = difference(parts[row].rows.sum(0), whole, ledger.mask)
        else:
            sites.append(site)
            added.append(whole[None].to(dtype))
        seen = parts[row].attention if row in parts else None
        shape = (len(sites) - start, *whole.shape[:-1])
        attention.append(torch.full(shape, float("nan")) if seen is None else seen)
        places[row] = tuple(range(start, len(sites)))
    worst = max(errors, key=lambda label: errors[label])
    if ledger.stream.dtype in (torch.float32, torch.float64) and errors[worst] > TOLERANCE:
        raise ClosureError(f"The parts of {worst} do not sum to it: relative error {errors[worst]:.1e}.")
    return replace(
        ledger,
        sites=tuple(sites),
        added=torch.cat(added),
        program=tuple(_placed(step, places) for step in ledger.program),
        split_error=errors,
        attention=torch.cat(attention) if level == "source" else None,
        provenance={**ledger.provenance, "level": level},
    )


def _placed(step: Step, places: Mapping[int, tuple[int, ...]]) -> Step:
    if isinstance(step, Add):
        return replace(step, writes=tuple(new for row in step.writes for new in places[row]))
    if isinstance(step, Renorm) and step.bias is not None:
        return Renorm(step.norm, places[step.bias][0])
    return step
