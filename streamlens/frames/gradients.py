"""Frames of gradients: the backward ledger, and the gradient by path length.

1. A backward ledger has a row per token and write; the direct route and the rounding close the sum at the embedding.
2. Paths have a row per family and length.
"""

import pandas as pd
import torch

from streamlens.frames.ledgers import attributes, flat, table
from streamlens.frames.schemas import SCHEMAS
from streamlens.readouts.depth.backward import BackwardLedger
from streamlens.readouts.depth.paths import Paths
from streamlens.sites import Site

NAN = float("nan")


def backward_frame(backward: BackwardLedger) -> pd.DataFrame:
    """One row per (prompt, position, write), then the direct route and the rounding; columns: `SCHEMAS["backward"]`."""
    sites = [*backward.sites, Site(kind="direct"), Site(kind="rounding")]
    direct, own = backward.direct[:1].norm(dim=-1), backward.contributions.norm(dim=-1)
    none = torch.full_like(direct, NAN)
    size = backward.total.square().sum((-1, -2))[:, None].clamp_min(1e-300)
    rounding = (backward.rounding * backward.total).sum(-1)[None] / size
    columns = {
        "gradient": [backward.gradient.norm(dim=-1), none, none],
        "direct": [backward.direct.norm(dim=-1), direct, none],
        "contribution": [own, direct, backward.rounding.norm(dim=-1)[None]],
        "cosine_direct": [backward.cosine_direct, none, none],
        "alignment": [backward.alignment, none, none],
        "share": [backward.shares, backward.direct_share[None], rounding],
        "effect": [backward.effects, none, none],
        "branch": [backward.branches[:, None, None].expand(own.shape), none == 0, none == 0],
    }
    values = {name: flat(torch.cat(parts), backward.ledger) for name, parts in columns.items()}
    frame = table("backward", backward.ledger, sites, values)
    frame.attrs.update(attributes(backward.ledger))
    frame.attrs.update(
        metric=backward.metric,
        unit=backward.unit,
        values=backward.value.tolist(),
        places=[list(places) for places in backward.places],
        backward_closure=float(backward.closure.max()),
    )
    return frame


def paths_frame(paths: Paths) -> pd.DataFrame:
    """One row per (family, length); columns: `SCHEMAS["paths"]`."""
    parts = []
    for name, family in paths.families.items():
        drawn = paths.single if name == "all" else None
        missing = [NAN] * len(family.counts)
        parts.append(
            pd.DataFrame(
                {
                    "family": name,
                    "length": range(len(family.counts)),
                    "paths": [float(count) for count in family.counts],
                    "path_share": family.path_shares,
                    "norm": family.norms.cpu(),
                    "norm_share": family.norm_shares.cpu(),
                    "share": family.shares.cpu(),
                    "single": missing if drawn is None else drawn.mean(-1),
                    "single_share": missing if drawn is None else paths.single_shares,
                }
            )
        )
    schema = SCHEMAS["paths"]
    frame = pd.concat(parts, ignore_index=True).astype({name: kind for name, (kind, _) in schema.items()})
    frame["family"] = pd.Categorical(frame["family"], list(paths.families), ordered=True)
    mean, low, high = paths.effective_length()
    frame.attrs.update(attributes(paths.ledger))
    frame.attrs.update(
        metric=paths.metric,
        unit=paths.unit,
        value=paths.value,
        place=list(paths.place),
        sums={name: float(family.target.norm()) for name, family in paths.families.items()},
        paths_closure=paths.closure,
        drift=paths.drift,
        precision=paths.precision,
        effective_length=mean,
        effective_range=[low, high],
    )
    return frame
