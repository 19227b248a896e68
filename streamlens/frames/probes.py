"""Frames of probes: accuracy after every write, values on sentences, and the table *before, update, after*."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from streamlens.frames.ledgers import attributes, flat, table
from streamlens.frames.schemas import SCHEMAS
from streamlens.readouts.readers.reader import Reader
from streamlens.readouts.steps import BeforeAfter
from streamlens.sites import Site


def probe_frame(
    sites: Sequence[Site], columns: Mapping[str, Tensor], same: Mapping[str, Any], attrs: Mapping[str, Any]
) -> pd.DataFrame:
    """One row per write; columns: `SCHEMAS["probe"]`.

    Args:
        sites: The writes, in stream order.
        columns: What differs between them, [write] each.
        same: What is one number for all.
        attrs: Model, versions, arguments; `method` is a column too.
    """
    labels = [site.label for site in sites]
    made = {
        "layer": pd.array([site.layer for site in sites], dtype="Int16"),
        "kind": pd.Categorical([site.part or site.kind for site in sites]),
        "component": pd.Categorical(labels, labels, ordered=True),
        "order": range(len(sites)),
        "method": attrs["method"],
        **{name: column.tolist() for name, column in columns.items()},
        **same,
    }
    frame = _typed("probe", made)
    frame.attrs.update(attrs)
    return frame


def probe_scores_frame(
    rows: Sequence[Mapping[str, Any]], values: Tensor, reader: Reader, attrs: Mapping[str, Any]
) -> pd.DataFrame:
    """One row per (sentence, reader row); columns: `SCHEMAS["probe_scores"]`.

    Args:
        rows: For each sentence its text, label, template, split, and the predicted class.
        values: The reader's values, [batch, reader].
        reader: The reader.
        attrs: Model, versions, arguments.
    """
    many = len(reader.rows)
    made = {
        "prompt_id": [n for n in range(len(rows)) for _ in range(many)],
        **{name: [row[name] for row in rows for _ in range(many)] for name in rows[0]},
        "reader": pd.Categorical(list(reader.rows) * len(rows), list(reader.rows), ordered=True),
        "unit": reader.unit,
        "value": values.reshape(-1).tolist(),
    }
    frame = _typed("probe_scores", made)
    frame.attrs.update(attrs)
    return frame


def steps_frame(steps: BeforeAfter) -> pd.DataFrame:
    """One row per (prompt, position, reader, write); columns: `SCHEMAS["steps"]`."""
    parts, reader = [], steps.reader
    columns = {"before": steps.before, "update": steps.update, "after": steps.after}
    for number, name in enumerate(reader.rows):
        values = {column: flat(value[..., number], steps.ledger) for column, value in columns.items()}
        part = table("steps", steps.ledger, steps.sites, values, reader=name, unit=reader.unit)
        parts.append(part.assign(reader=pd.Categorical(part["reader"], list(reader.rows), ordered=True)))
    frame = pd.concat(parts, ignore_index=True)
    frame.attrs.update(attributes(steps.ledger))
    closure = float(steps.closure.max())
    frame.attrs.update(reader=reader.name, unit=reader.unit, readout_closure=closure, reads_after=reader.after)
    return frame


def _typed(schema: str, columns: Mapping[str, Any]) -> pd.DataFrame:
    types = {name: kind for name, (kind, _) in SCHEMAS[schema].items()}
    return pd.DataFrame(dict(columns)).reindex(columns=list(types)).astype(types)
