"""A frame as an HTML table that is safe to read, and as plain columns that keep the raw text.

1. Texts are made legible and escaped; numbers are aligned and shortened to four digits.
2. What is downloaded keeps full precision and the raw tokens: the page holds it column by column, texts once each, and
   its script makes CSV or JSON of it.
"""

import html
from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_float_dtype, is_integer_dtype

from streamlens.display import html_token, visible

__all__ = ["as_csv", "columns_of", "table_html"]

#: columns whose texts are tokens
_TOKENS = ("token", "source_token", "top_token", "top_before", "top_after", "token_b")


def _is_number(column: Any) -> bool:
    return (is_float_dtype(column) or is_integer_dtype(column)) and not is_bool_dtype(column)


def _cell(value: Any, *, name: Hashable) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, str):
        return html_token(value) if name in _TOKENS and value else html.escape(visible(value), quote=False)
    if isinstance(value, np.generic):
        value = value.item()
    return html.escape(_digits(value) if isinstance(value, float) else visible(str(value)), quote=False)


def _digits(value: float) -> str:
    text = f"{value:.4g}"
    return f"−{text[1:]}" if text.startswith("-") else text


def table_html(frame: pd.DataFrame, *, caption: str, footer: str = "") -> str:
    """The whole frame as a table with a header row; `footer` is plain text under it."""
    kinds = {name: "number" if _is_number(frame[name]) else "text" for name in frame.columns}
    head = "".join(
        f'<th scope="col" class="{"number" if kind == "number" else ""}">{_cell(str(name), name=None)}</th>'
        for name, kind in kinds.items()
    )
    columns = [
        [f'<td class="{kind}">{_cell(value, name=name)}</td>' for value in frame[name]] for name, kind in kinds.items()
    ]
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in zip(*columns, strict=True))
    foot = f'<tfoot><tr><td colspan="{len(kinds)}">{_cell(footer, name=None)}</td></tr></tfoot>' if footer else ""
    label = html.escape(visible(caption), quote=True)
    return f'<table aria-label="{label}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table>'


def as_csv(frame: pd.DataFrame) -> str:
    """The frame as CSV, raw and in full."""
    return frame.to_csv(index=False)


def columns_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The frame as plain data, raw and in full: per column its name and values, or texts and which of them."""
    return [{"name": str(name), **_column(frame[name])} for name in frame.columns]


def _column(column: Any) -> dict[str, Any]:
    missing = column.isna().to_numpy()
    if is_bool_dtype(column) or is_integer_dtype(column):
        return {"values": [None if gone else value for gone, value in zip(missing, column.tolist(), strict=True)]}
    if is_float_dtype(column):  # as text first: the shortest that is this number in its own precision
        texts = [str(value) for value in column.to_numpy()]
        return {"values": [None if gone else _number(text) for gone, text in zip(missing, texts, strict=True)]}
    codes, texts = pd.factorize(column.astype(object).map(str, na_action="ignore"))
    return {"texts": [str(text) for text in texts], "codes": codes.tolist()}


def _number(text: str) -> float | str:
    """JSON has no infinity: it stays a text."""
    value = float(text)
    return value if np.isfinite(value) else text
