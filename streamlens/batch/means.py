"""Means over prompts, taken before anything is stored: raw rows of many prompts are large.

1. Rows are grouped by the token's role, by the row's component or its layer and kind, by reader, and by whether the
   token is an attention sink (a sink's norm would be the mean of everything).
2. A shard stores the number of rows, their sum and their sum of squares for every measured column; these add up
   over shards.
3. `merged` adds them up and gives mean and standard deviation.
"""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from streamlens.batch.columns import made
from streamlens.batch.schemas import MEANS, TABLES

_PLAIN = {"category": pa.string(), "Int16": pa.int16()}
KEYS = [name for name in MEANS if name not in ("n", "total", "squares")]


def measures_of(table: str) -> list[str]:
    """The columns that are averaged: every number that is no identity and no error."""
    return [name for name, (kind, _) in TABLES[table].items() if kind.startswith("float") and name != "closure"]


def averaged(table: str, rows: pa.Table, by: str) -> pa.Table:
    """The partial means of one table's rows: `SCHEMAS["means"]`.

    Args:
        table: Which table the rows are of.
        rows: Its rows, all columns.
        by: "role": a mean for every component; "layer": for every kind of write of every layer.
    """
    frame: Any = rows.to_pandas(ignore_metadata=True)
    keys = pd.DataFrame({"table": table, "role": frame["role"].astype(str), "sink": frame["sink"]})
    for name in ("reader", "unit", "kind", "component"):
        keys[name] = frame[name].astype(str) if name in frame else None
    if "rank" in frame:
        keys["component"] = "rank " + frame["rank"].astype(str)
    keys["layer"] = frame["layer"].astype("Int16") if "layer" in frame else pd.array([pd.NA] * len(frame), "Int16")
    keys["order"] = next((frame[name] for name in ("order", "rank") if name in frame), -1)
    if by == "layer" and "layer" in frame:
        keys["component"] = None
        keys["order"] = keys["order"].groupby([keys["layer"], keys["kind"]], dropna=False).transform("min")
    parts = []
    for measure in measures_of(table):
        values = frame[measure].astype(np.float64)
        part = keys.assign(measure=measure, n=1, total=values, squares=values**2)
        parts.append(_summed(part[values.notna()]))
    found = pd.concat(parts, ignore_index=True)
    found = found.sort_values([*(key for key in KEYS if key != "order"), "order"], kind="stable", ignore_index=True)
    return made("means", {name: pa.array(found[name], _PLAIN.get(MEANS[name][0]), from_pandas=True) for name in found})


def merged(parts: pd.DataFrame) -> pd.DataFrame:
    """The means of all shards: the keys, `n`, `mean`, and `std` (of the rows, with n - 1; NaN for one row)."""
    sums = _summed(parts)
    n, mean = sums["n"], sums["total"] / sums["n"]
    spread = (sums["squares"] - n * mean**2).clip(lower=0) / (n - 1).where(n > 1)
    found = sums[KEYS].assign(n=n, mean=mean, std=np.sqrt(spread))
    return found.sort_values(["table", "measure", "reader", "role", "sink", "order"], kind="stable", ignore_index=True)


def _summed(rows: Any) -> Any:
    """The sums of all rows with the same keys."""
    grouped = rows.groupby(KEYS, dropna=False, sort=False, observed=True)
    return grouped[["n", "total", "squares"]].sum().reset_index()
