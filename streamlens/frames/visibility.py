"""Frames of who sees which write, of two readers' overlap, and of the cause beside the geometry."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from streamlens.frames.ledgers import attributes, flat, table
from streamlens.frames.schemas import ROW, SCHEMAS, TOKEN
from streamlens.ledger import Ledger
from streamlens.readouts.visible.overlap import Overlap
from streamlens.readouts.visible.visibility import Visibility
from streamlens.readouts.visible.visibility_map import VisibilityMap


def visibility_frame(seen: Visibility) -> pd.DataFrame:
    """One row per (prompt, position, write); columns: `SCHEMAS["visibility"]`."""
    ledger, reader = seen.ledger, seen.reader
    values = {name: flat(value, ledger) for name, value in seen_by(seen).items()}
    frame = table("visibility", ledger, ledger.sites, values, reader=reader.name, unit=reader.unit, mode=seen.mode)
    frame.attrs.update(attributes(ledger), reader=reader.name, unit=reader.unit, mode=seen.mode)
    frame.attrs.update(rows=len(reader.rows), exact=seen.exact, energy=seen.energy)
    return frame


def seen_by(seen: Visibility) -> dict[str, Tensor]:
    """The numbers of `visibility_frame`, each [write, batch, pos], in float64."""
    return {
        "norm": seen.norm,
        "row_norm": seen.row_norm,
        "null_norm": seen.null_norm,
        "visible_share": seen.share,
        "chance": seen.chance,
        "lift": seen.lift,
        "gain": seen.gain,
        "change": seen.change,
        "direct": seen.direct,
        "rescale": seen.rescale,
    }


def visibility_map_frame(seen: VisibilityMap) -> pd.DataFrame:
    """One row per (write, reader), readers in stream order; columns: `SCHEMAS["visibility_map"]`."""
    ledger, readers = seen.ledger, seen.readers
    rows, k = len(ledger.sites), len(readers)
    writes = table("writes", ledger, ledger.sites, {})[[*TOKEN, *ROW]]
    frame = writes.loc[writes.index.repeat(k)].reset_index(drop=True)

    def each(values: Sequence[Any] | np.ndarray) -> np.ndarray:
        return np.tile(np.asarray(values), rows)

    names = [reader.name for reader in readers]
    frame["reader"] = pd.Categorical.from_codes(each(np.arange(k)), names, ordered=True)
    frame["reader_layer"] = pd.array([reader.layer for reader in readers] * rows, dtype="Int16")
    frame["reader_part"] = each([reader.part for reader in readers])
    frame["sees"] = seen.sees.numpy().reshape(-1)
    frame["rank"] = each([reader.rank for reader in readers])
    frame["exact"] = each([reader.exact for reader in readers])
    frame["chance"] = each(seen.chance.numpy())
    for name, values in {"visible_share": seen.share, "lift": seen.lift, "gain": seen.gain}.items():
        frame[name] = values.numpy().reshape(-1)
    types = {name: kind for name, (kind, _) in SCHEMAS["visibility_map"].items()}
    frame = frame[list(types)].astype(types)
    frame.attrs.update(attributes(ledger))
    return frame


def overlap_frame(found: Overlap) -> pd.DataFrame:
    """One row per principal angle; columns: `SCHEMAS["overlap"]`."""
    columns = {
        "index": np.arange(len(found.cosines)),
        "angle": found.angles.numpy(),
        "cosine": found.cosines.numpy(),
        "squared": found.cosines.square().numpy(),
    }
    frame = pd.DataFrame(columns).astype({name: kind for name, (kind, _) in SCHEMAS["overlap"].items()})
    frame.attrs.update(readers=list(found.names), ranks=list(found.ranks), d_model=found.d_model, total=found.total)
    frame.attrs.update(chance=found.chance, spread=found.spread, seed=found.seed)
    return frame


def cause_frame(ledger: Ledger, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per part of the write; columns: `SCHEMAS["cause"]`."""
    schema = SCHEMAS["cause"]
    frame = pd.DataFrame(list(rows), columns=list(schema)).astype({name: kind for name, (kind, _) in schema.items()})
    frame["removed"] = pd.Categorical(frame["removed"], [row["removed"] for row in rows], ordered=True)
    frame.attrs.update(attributes(ledger))
    return frame
