"""FRAMES: the border between computation and everything that shows or stores it.

Each function gives one tidy frame, one observation a row, with a schema that is part of the product:
`SCHEMAS` names every column, its type and what it means. Categories stand in stream order; numbers are float32.
What holds for the whole frame (prompts, model, closure) is in `frame.attrs`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamlens.ledger import Ledger
from streamlens.readouts.attribution import Readout
from streamlens.readouts.lens import LogitLens, streams
from streamlens.sites import Site

_TOKEN = {
    "prompt_id": ("int32", "number of the prompt"),
    "position": ("int32", "position within the prompt's own tokens, from 0"),
    "token_id": ("int32", "id of the token at that position"),
    "token": ("str", "its text, with its spaces"),
    "special": ("bool", "whether it is a special token"),
    "sink": ("bool", "whether its final stream is far above the prompt's median norm"),
}
_ROW = {
    "layer": ("Int16", "block, from 0; missing for what enters before the first"),
    "kind": ("category", "embed, pos_embed, attn, mlp, ..., or a row that closes the sum"),
    "component": ("category", "the row's label; ordered as in the stream"),
    "order": ("int32", "the row's number in stream order"),
}
#: further columns of a ledger whose writes are split; the part's number, missing where a row is no such part
PARTS = {
    "head": ("Int16", "query head"),
    "neuron": ("Int32", "hidden unit of the MLP"),
    "expert": ("Int16", "expert of a mixture"),
    "source": ("Int32", "source position that the head reads from"),
    "source_token": ("str", "its token's text"),
    "attention": ("float32", "attention probability from this token to the source token"),
}
#: frame -> column -> (type, meaning)
SCHEMAS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "writes": {
        **_TOKEN,
        **_ROW,
        "norm": ("float32", "Euclidean norm of the write"),
        "share": ("float32", "<write, stream> / |stream|^2: signed, sums to 1 over a token's rows"),
        "cosine": ("float32", "cosine of the write and the final stream"),
        "stream_norm": ("float32", "norm of the stream after the write"),
    },
    "readout": {
        **_TOKEN,
        "reader": ("category", "the reader's row"),
        "unit": ("category", "unit of contribution"),
        **_ROW,
        "contribution": ("float32", "what the row adds to the reader; sums to the model's own value"),
    },
    "lens": {
        **_TOKEN,
        **_ROW,
        "rank": ("int32", "0 for the most likely token"),
        "top_token_id": ("int32", "id of the predicted token"),
        "top_token": ("str", "its text"),
        "logit": ("float32", "its logit if the model stopped after this write"),
        "probability": ("float32", "its probability then"),
    },
}


def writes_frame(ledger: Ledger) -> pd.DataFrame:
    """One row per (prompt, position, write), the rounding row included; columns: `SCHEMAS["writes"]`."""
    sites = [*ledger.sites, Site(kind="rounding")]
    stream = ledger.stream.double()
    squared = stream.square().sum(-1).clamp_min(1e-300)
    norms, shares = [], []
    for update in [*ledger.writes, ledger.rounding]:
        update = update.double()
        norms.append(update.norm(dim=-1))
        shares.append((update * stream).sum(-1) / squared)
    norm, share = torch.stack(norms), torch.stack(shares)
    depth = [s.double().norm(dim=-1) for s in streams(ledger)]
    columns = {
        "norm": norm,
        "share": share,
        "cosine": share * squared.sqrt() / norm.clamp_min(1e-300),
        "stream_norm": torch.stack([*depth, stream.norm(dim=-1)]),
    }
    frame = _table("writes", ledger, sites, {name: _flat(value, ledger) for name, value in columns.items()})
    frame.attrs.update(_attrs(ledger))
    return frame


def readout_frame(readout: Readout) -> pd.DataFrame:
    """One row per (prompt, position, reader, write); columns: `SCHEMAS["readout"]`."""
    ledger, rows = readout.ledger, readout.reader.rows
    parts = []
    for number, name in enumerate(rows):
        values = {"contribution": _flat(readout.contributions[..., number], ledger)}
        part = _table("readout", ledger, readout.sites, values, reader=name, unit=readout.reader.unit)
        parts.append(part.assign(reader=pd.Categorical(part["reader"], list(rows), ordered=True)))
    frame = pd.concat(parts, ignore_index=True)
    frame.attrs.update(_attrs(ledger))
    frame.attrs.update(
        reader=readout.reader.name, unit=readout.reader.unit, readout_closure=float(readout.closure.max())
    )
    return frame


def lens_frame(lens: LogitLens) -> pd.DataFrame:
    """One row per (prompt, position, write, rank); columns: `SCHEMAS["lens"]`."""
    parts = []
    for rank in range(lens.ids.shape[-1]):
        ids = _flat(lens.ids[..., rank], lens.ledger)
        values = {
            "rank": np.full(len(ids), rank),
            "top_token_id": ids,
            "top_token": np.array([lens.texts[int(i)] for i in ids], dtype=object),
            "logit": _flat(lens.logits[..., rank], lens.ledger),
            "probability": _flat(lens.probabilities[..., rank], lens.ledger),
        }
        parts.append(_table("lens", lens.ledger, lens.sites, values))
    frame = pd.concat(parts, ignore_index=True)
    frame = frame.sort_values(["prompt_id", "position", "order", "rank"], ignore_index=True)
    frame.attrs.update(_attrs(lens.ledger))
    return frame


def _table(
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


def _flat(value: Tensor, ledger: Ledger) -> np.ndarray:
    """[write, batch, pos] to one number per (token, write), padding left out."""
    return value.permute(1, 2, 0)[ledger.mask].cpu().numpy().reshape(-1)


def _attrs(ledger: Ledger) -> dict[str, Any]:
    return {
        "prompts": list(ledger.prompts),
        "closure": float(ledger.closure.max()),
        "in_order": ledger.in_order,
        **ledger.provenance,
    }
