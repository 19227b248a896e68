"""Frames read back from files.

1. Parquet keeps everything: types, categories in their order, and the attributes (prompts, model, closure, reader).
2. CSV and rows of JSON keep the values alone. Types come from the texts, categories from the order of the rows; texts
   of tokens stay as they are ("nan", "", "1"). The attributes are lost: a figure then says neither closure nor model.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd

from streamlens.errors import InputError, first_line

__all__ = ["read_frame"]

SUFFIXES = (".parquet", ".csv", ".jsonl", ".json")
#: columns whose texts are the tokenizer's own, never numbers
_TEXTS = {"token", "source_token", "top_token", "top_before", "top_after", "token_b", "text", "label", "template"}
#: columns that are categories in the order of the rows, where they hold text
_CATEGORIES = {"component", "variant", "reader", "unit", "kind", "status", "mode", "reader_part", "family", "lesion"}


def read_frame(path: str | Path) -> pd.DataFrame:
    """A frame from a `.parquet`, `.csv`, `.jsonl` or `.json` file of rows.

    Raises:
        InputError: No such file, another kind of file, or one that does not hold rows.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a frame is a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file.")
    try:
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path)
        else:
            frame = _restored(_rows(path))
    except InputError:
        raise
    except Exception as error:  # pandas, Arrow, csv and json each have errors of their own for a broken file
        raise InputError(f"{path}: cannot be read as a frame: {first_line(error)}") from error
    if frame.empty:
        raise InputError(f"{path}: holds no rows.")
    return frame


def _rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() == ".csv":
        return [dict(row) for row in csv.DictReader(io.StringIO(text, newline=""))]
    lines = text.splitlines() if path.suffix.lower() == ".jsonl" else [text]
    found = [row for line in lines if line.strip() for row in _listed(json.loads(line))]
    if any(isinstance(value, dict | list) for row in found for value in row.values()):
        raise InputError(
            f"{path}: holds results with parts inside, not rows of a frame.",
            hint="Save the frame: -o FILE.parquet (or .csv) of the same command.",
        )
    return found


def _listed(value: Any) -> list[dict[str, Any]]:
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a row is an object of column and value")
    return rows


def _restored(rows: list[dict[str, Any]]) -> pd.DataFrame:
    names = list(rows[0]) if rows else []
    return pd.DataFrame({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> Any:
    if name in _TEXTS:
        return pd.Series(values, dtype="str")
    known = [value for value in values if value not in (None, "")]
    if known and all(str(value) in ("True", "False") for value in known):
        return pd.Series([str(value) == "True" for value in values], dtype="bool")
    numbers: Any = pd.to_numeric(pd.Series(values, dtype="object").replace({"": None}), errors="coerce")
    if name not in _CATEGORIES and numbers.notna().sum() == len(known):
        whole = len(known) == len(values) and bool((numbers == numbers.round()).all()) and numbers.abs().max() < 2**53
        return numbers.astype("int64") if whole and not any("." in str(v) for v in values) else numbers.astype(float)
    if name in _CATEGORIES:
        order = list(dict.fromkeys(str(value) for value in values))
        return pd.Categorical([str(value) for value in values], order, ordered=True)
    return pd.Series([None if value is None else str(value) for value in values], dtype="str")
