"""Frames of a ledger, a readout and a logit lens.

1. One row per token and row of the ledger, padding left out, columns as in `schemas.py`.
2. What holds for the whole frame (prompts, model, closure) is in `frame.attrs`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamlens.frames.schemas import PARTS, SCHEMAS
from streamlens.ledger import Ledger
from streamlens.readouts.attribution import Readout
from streamlens.readouts.lens import LogitLens, streams
from streamlens.sites import Site


def writes_frame(ledger: Ledger) -> pd.DataFrame:
    """One row per (prompt, position, write), the rounding row included; columns: `SCHEMAS["writes"]`."""
    sites = [*ledger.sites, Site(kind="rounding")]
    columns = measures(ledger)
    frame = table("writes", ledger, sites, {name: flat(value, ledger) for name, value in columns.items()})
    frame.attrs.update(attributes(ledger))
    return frame


def measures(ledger: Ledger) -> dict[str, Tensor]:
    """The numbers of `writes_frame`, each [write, batch, pos] with the rounding row last, in float64."""
    stream = ledger.stream.double()
    squared = stream.square().sum(-1).clamp_min(1e-300)
    norms, shares = [], []
    for update in [*ledger.writes, ledger.rounding]:
        update = update.double()
        norms.append(update.norm(dim=-1))
        shares.append((update * stream).sum(-1) / squared)
    norm, share = torch.stack(norms), torch.stack(shares)
    depth = [s.double().norm(dim=-1) for s in streams(ledger)]
    return {
        "norm": norm,
        "share": share,
        "cosine": share * squared.sqrt() / norm.clamp_min(1e-300),
        "stream_norm": torch.stack([*depth, stream.norm(dim=-1)]),
    }


def readout_frame(readout: Readout) -> pd.DataFrame:
    """One row per (prompt, position, reader, write); columns: `SCHEMAS["readout"]`."""
    ledger, rows = readout.ledger, readout.reader.rows
    parts = []
    for number, name in enumerate(rows):
        values = {"contribution": flat(readout.contributions[..., number], ledger)}
        part = table("readout", ledger, readout.sites, values, reader=name, unit=readout.reader.unit)
        parts.append(part.assign(reader=pd.Categorical(part["reader"], list(rows), ordered=True)))
    frame = pd.concat(parts, ignore_index=True)
    frame.attrs.update(attributes(ledger))
    frame.attrs.update(
        reader=readout.reader.name, unit=readout.reader.unit, readout_closure=float(readout.closure.max())
    )
    return frame


def lens_frame(lens: LogitLens) -> pd.DataFrame:
    """One row per (prompt, position, write, rank); columns: `SCHEMAS["lens"]`."""
    parts = []
    for rank in range(lens.ids.shape[-1]):
        ids = flat(lens.ids[..., rank], lens.ledger)
        values = {
            "rank": np.full(len(ids), rank),
            "top_token_id": ids,
            "top_token": np.array([lens.texts[int(i)] for i in ids], dtype=object),
            "logit": flat(lens.logits[..., rank], lens.ledger),
            "probability": flat(lens.probabilities[..., rank], lens.ledger),
        }
        parts.append(table("lens", lens.ledger, lens.sites, values))
    frame = pd.concat(parts, ignore_index=True)
    frame = frame.sort_values(["prompt_id", "position", "order", "rank"], ignore_index=True)
    frame.attrs.update(attributes(lens.ledger))
    return frame


def table(
    schema: str, ledger: Ledger, sites: Sequence[Site], values: Mapping[str, Any], **constants: Any
) -> pd.DataFrame:
    """The identity columns of (row, token) pairs beside the given values, in the schema's order and types."""
    prompt, place = (axis.cpu().numpy() for axis in torch.nonzero(ledger.mask, as_tuple=True))
    tokens, rows = len(prompt), len(sites)
    ids, indices = ledger.token_ids.cpu().numpy(), ledger.indices.cpu().numpy()
    texts = np.array([ledger.tokens[b][p] for b, p in zip(prompt, place, strict=True)], dtype=object)
    labels = [site.label for site in sites]
    kinds = list(dict.fromkeys(site.part or site.kind for site in sites))
    layers = np.array([-1 if site.layer is None else site.layer for site in sites])
    per_token = {
        "prompt_id": prompt,
        "position": indices[prompt, place],
        "token_id": ids[prompt, place],
        "token": texts,
        "special": ledger.special.cpu().numpy()[prompt, place],
        "sink": ledger.sinks.cpu().numpy()[prompt, place],
    }
    columns: dict[str, Any] = {name: np.repeat(value, rows) for name, value in per_token.items()}
    layer = np.tile(layers, tokens)
    columns["layer"] = pd.array(np.where(layer < 0, 0, layer), dtype="Int16")
    columns["layer"][layer < 0] = pd.NA
    codes = [kinds.index(site.part or site.kind) for site in sites]
    columns["kind"] = pd.Categorical.from_codes(np.tile(codes, tokens), kinds)
    columns["component"] = pd.Categorical.from_codes(np.tile(np.arange(rows), tokens), labels, ordered=True)
    columns["order"] = np.tile(np.arange(rows), tokens)
    columns |= {**constants, **values}
    types = {name: kind for name, (kind, _) in SCHEMAS[schema].items()}
    if ledger.split_error:
        columns |= _parts(ledger, sites, tokens)
        types |= {name: kind for name, (kind, _) in PARTS.items()}
    return pd.DataFrame(columns).reindex(columns=list(types)).astype(types)


def _parts(ledger: Ledger, sites: Sequence[Site], tokens: int) -> dict[str, Any]:
    """The columns of `PARTS`."""
    columns: dict[str, Any] = {}
    for name in ("head", "neuron", "expert", "source"):
        numbers = [getattr(site, name) for site in sites] * tokens
        columns[name] = pd.array(numbers, dtype=PARTS[name][0])
    prompts = torch.nonzero(ledger.mask)[:, 0].tolist()
    columns["source_token"] = np.array(
        [None if s.source is None else ledger.source_text(s, prompt) for prompt in prompts for s in sites], dtype=object
    )
    seen = np.full((len(sites), tokens), np.nan, dtype=np.float32)
    if ledger.attention is not None:
        seen[: len(ledger.sites)] = ledger.attention[:, ledger.mask].cpu().numpy()
    columns["attention"] = seen.T.reshape(-1)
    return columns


def flat(value: Tensor, ledger: Ledger) -> np.ndarray:
    """[write, batch, pos] to one number per (token, write), padding left out."""
    return value.permute(1, 2, 0)[ledger.mask].cpu().numpy().reshape(-1)


def attributes(ledger: Ledger) -> dict[str, Any]:
    return {
        "prompts": list(ledger.prompts),
        "closure": float(ledger.closure.max()),
        "in_order": ledger.in_order,
        **ledger.provenance,
    }
