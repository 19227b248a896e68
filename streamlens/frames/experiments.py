"""Frames of experiments that are no ledgers: first-order estimates, their check against a sweep, and lesions.

What an experiment found comes as plain rows and tensors; here it gets its schema.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from streamlens.frames.ablation import token_columns
from streamlens.frames.ledgers import attributes
from streamlens.frames.schemas import SCHEMAS
from streamlens.ledger import Ledger
from streamlens.readouts.readers.reader import Reader


def estimates_frame(
    clean: Ledger,
    positions: Sequence[int],
    variants: Sequence[str],
    *,
    readers: Sequence[Reader],
    before: Sequence[Tensor],
    values: Sequence[Tensor],
) -> pd.DataFrame:
    """One row per (variant, reader row, position); columns: `SCHEMAS["estimates"]`.

    Args:
        clean: The run without edits at all positions, one prompt.
        positions: Where it was read.
        variants: What would be edited.
        readers: What is read.
        before: For each reader its value without edits, [pos, reader].
        values: For each reader the estimates, [variant, pos, reader].
    """
    rows: list[dict[str, Any]] = []
    for reader, own, estimate in zip(readers, before, values, strict=True):
        for number, variant in enumerate(variants):
            for place, position in enumerate(positions):
                token = token_columns(clean, position)
                for k, name in enumerate(reader.rows):
                    found = {"clean": float(own[place, k]), "estimate": float(estimate[number, place, k])}
                    rows.append({"variant": variant, **token, "reader": name, "unit": reader.unit, **found})
    frame = _typed("estimates", rows)
    frame["variant"] = pd.Categorical(frame["variant"], list(dict.fromkeys(variants)), ordered=True)
    frame.attrs.update(attributes(clean))
    return frame


def rank_correlation_frame(estimates: pd.DataFrame, effects: pd.DataFrame) -> pd.DataFrame:
    """One row per (reader row, position); columns: `SCHEMAS["rank_correlation"]`.

    Args:
        estimates: A frame of `SCHEMAS["estimates"]`.
        effects: A frame of `SCHEMAS["effects"]`; only variants that stand in both count.
    """
    keys = ["variant", "position", "reader"]
    text = dict.fromkeys(["variant", "reader"], "str")  # the categories of two sweeps need not be the same
    guesses, truths = estimates[[*keys, "estimate"]].astype(text), effects[[*keys, "total"]].astype(text)
    both = guesses.merge(truths, on=keys)
    rows = []
    for key, group in both.groupby(["reader", "position"], sort=False):
        reader, position = key if isinstance(key, tuple) else (key, 0)
        guess, exact = pd.Series(group["estimate"]), pd.Series(group["total"])
        rows.append(
            {
                "reader": reader,
                "position": position,
                "variants": len(group),
                "spearman": guess.rank().corr(exact.rank()),  # ties get their mean rank
                "pearson": guess.corr(exact),
                "slope": (guess * exact).sum() / max((guess * guess).sum(), 1e-300),
            }
        )
    return _typed("rank_correlation", rows)


def lesion_frame(rows: Sequence[Mapping[str, Any]], attrs: Mapping[str, Any]) -> pd.DataFrame:
    """One row per lesion, the model as it is first; columns: `SCHEMAS["lesion"]`."""
    frame = _typed("lesion", rows)
    frame["lesion"] = pd.Categorical(frame["lesion"], [row["lesion"] for row in rows], ordered=True)
    frame.attrs.update(attrs)
    return frame


def _typed(name: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    schema = SCHEMAS[name]
    return pd.DataFrame(list(rows), columns=list(schema)).astype({column: kind for column, (kind, _) in schema.items()})
