"""Columns of many prompts at once: NumPy arrays into Arrow tables, no frame per prompt.

1. Rows stand in the order prompt, token, reader or rank, row of the ledger.
2. What repeats (texts, labels, units) is a dictionary column: codes beside its few values.
3. `made` puts the columns of a table into its schema's order and types.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from streamlens.batch.schemas import schema_of
from streamlens.ledger import Ledger
from streamlens.sites import Site


def made(table: str, columns: Mapping[str, Any]) -> pa.Table:
    """The Arrow table of one schema."""
    schema = schema_of(table)
    arrays = [_array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.dictionary_encode() if pa.types.is_dictionary(kind) and values.type == pa.string() else values
    if isinstance(values, np.ndarray) and values.dtype == np.float64 and kind == pa.float32():
        values = values.astype(np.float32)
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string(), from_pandas=True).dictionary_encode()
    return pa.array(values, kind, from_pandas=True)


def coded(codes: Any, values: Sequence[str | None]) -> pa.DictionaryArray:
    """A dictionary column: `values[codes]`."""
    return pa.DictionaryArray.from_arrays(pa.array(np.asarray(codes, dtype=np.int32)), pa.array(values, pa.string()))


def constant(value: str, rows: int) -> pa.DictionaryArray:
    """A dictionary column of one value."""
    return coded(np.zeros(rows), [value])


def token_columns(ledger: Ledger, numbers: Sequence[int], roles: Sequence[str], repeat: int) -> dict[str, Any]:
    """The columns that name a token, each `repeat` times.

    Args:
        ledger: The ledger of the prompts.
        numbers: The number of each prompt in the whole input.
        roles: The role of each kept token, padding left out, in the order prompt, token.
        repeat: Rows per token.
    """
    prompt, place = (axis.cpu().numpy() for axis in torch.nonzero(ledger.mask, as_tuple=True))
    texts = pa.array([ledger.tokens[b][p] for b, p in zip(prompt, place, strict=True)], pa.string())
    each = np.repeat(np.arange(len(prompt)), repeat)
    named = list(dict.fromkeys(roles))
    codes = np.array([named.index(role) for role in roles])

    def per_token(value: Tensor) -> np.ndarray:
        return value.cpu().numpy()[prompt, place][each]

    return {
        "prompt_id": np.asarray(numbers)[prompt][each],
        "position": per_token(ledger.indices),
        "token_id": per_token(ledger.token_ids),
        "token": texts.take(pa.array(each)),
        "special": per_token(ledger.special),
        "sink": per_token(ledger.sinks),
        "role": coded(codes[each], named),
    }


def row_columns(sites: Sequence[Site], times: int) -> dict[str, Any]:
    """The columns that name a row of the ledger, all rows `times` times."""
    kinds = list(dict.fromkeys(site.part or site.kind for site in sites))
    layers = np.tile(np.array([-1 if site.layer is None else site.layer for site in sites]), times)
    order = np.tile(np.arange(len(sites)), times)
    return {
        "layer": pa.array(layers, pa.int16(), mask=layers < 0),
        "kind": coded(np.tile([kinds.index(site.part or site.kind) for site in sites], times), kinds),
        "component": coded(order, [site.label for site in sites]),
        "order": order,
    }


def flat(value: Tensor, ledger: Ledger) -> np.ndarray:
    """[row, batch, pos, ...] to one number per (token, ..., row), padding left out."""
    kept = value.movedim(0, -1)[ledger.mask]  # [token, ..., row]
    return kept.cpu().numpy().reshape(-1)
