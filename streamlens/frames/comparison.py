"""Frames of a comparison of two contexts. Signs everywhere: A - B."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamlens.frames.ledgers import attributes, table
from streamlens.frames.schemas import DIFFERENCE, SCHEMAS
from streamlens.ledger import Ledger
from streamlens.readouts.comparison import Comparison
from streamlens.readouts.effects import cosine
from streamlens.sites import Site


def comparison_frame(comparison: Comparison) -> pd.DataFrame:
    """One row per write, then `rounding`, `rescale` and `softcap`; columns: `SCHEMAS["comparison"]`, one per reader.

    The reader columns are named `difference: NAME`; each sums to that reader's whole difference. `attrs["readers"]`
    holds by NAME the reader's `unit`, the model's own values `a` and `b`, and the closing error.
    """
    a, b = comparison.a, comparison.b
    rows = len(comparison.sites)
    closing = [Site(kind="rescale"), Site(kind="softcap")]
    first, second = (torch.cat([x.writes[:, 0, 0].double(), x.rounding[:, 0]]) for x in (a, b))
    values: dict[str, Any] = {
        "norm_a": first.norm(dim=-1),
        "norm_b": second.norm(dim=-1),
        "norm": comparison.differences.norm(dim=-1),
        "share": comparison.share,
        "cosine": cosine(comparison.differences, comparison.stream.expand(rows, -1)),
        "cosine_ab": cosine(first, second),
    }
    padded = {name: np.append(value.cpu().numpy(), [np.nan, np.nan]) for name, value in values.items()}
    other = {"position_b": int(b.indices[0, 0]), "token_b": b.tokens[0][0]}
    frame = table("comparison", a, [*comparison.sites, *closing], padded, **other)
    for reading in comparison.readings:
        for k, name in enumerate(reading.reader.rows):
            parts = [*reading.writes[:, k].tolist(), float(reading.rescale[k]), float(reading.softcap[k])]
            frame[f"difference: {name}"] = np.array(parts, dtype=DIFFERENCE["difference"][0])
    frame.attrs.update(attributes(a), **_both(a, b), scale=comparison.scale, readers=_values(comparison))
    return frame


def _values(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """By the reader's row: its unit, the model's own values, and how well the parts sum to their difference."""
    return {
        name: {
            "unit": reading.reader.unit,
            "a": _of(reading.a, k),
            "b": _of(reading.b, k),
            "closure": _of(reading.closure, k),
        }
        for reading in comparison.readings
        for k, name in enumerate(reading.reader.rows)
    }


def comparison_effects_frame(comparison: Comparison) -> pd.DataFrame:
    """One row per reader row; columns: `SCHEMAS["comparison_effects"]`."""
    schema = SCHEMAS["comparison_effects"]
    rows = [
        {
            "reader": name,
            "unit": reading.reader.unit,
            "a": float(reading.a[k]),
            "b": float(reading.b[k]),
            "observed": float(reading.a[k] - reading.b[k]),
            "writes": float(reading.writes[:-1, k].sum()),
            "rounding": float(reading.writes[-1, k]),
            "rescale": float(reading.rescale[k]),
            "softcap": float(reading.softcap[k]),
            "total": _of(reading.total, k),
            "closure": _of(reading.closure, k),
        }
        for reading in comparison.readings
        for k, name in enumerate(reading.reader.rows)
    ]
    frame = pd.DataFrame(rows, columns=list(schema)).astype({name: kind for name, (kind, _) in schema.items()})
    frame.attrs.update(attributes(comparison.a), **_both(comparison.a, comparison.b), scale=comparison.scale)
    return frame


def _of(values: Tensor, k: int) -> float:
    return float(values[k])


def _both(a: Ledger, b: Ledger) -> dict[str, Any]:
    return {
        "prompts": [*a.prompts, *b.prompts],
        "closure": max(float(a.closure.max()), float(b.closure.max())),
        "in_order": max(a.in_order, b.in_order),
    }
