"""A frame as an HTML table that is safe to read, and as CSV and JSON that keep the raw text.

1. Texts are made legible and escaped; numbers are aligned and shortened to four digits.
2. What is downloaded keeps full precision and the raw tokens.
"""

import html
import json
from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_float_dtype, is_integer_dtype

from streamlens.display import html_token, visible

__all__ = ["as_csv", "as_json", "table_html"]


def _is_number(column: Any) -> bool:
    return (is_float_dtype(column) or is_integer_dtype(column)) and not is_bool_dtype(column)


def _cell(value: Any, *, name: Hashable) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, str):
        return html_token(value) if name == "token" else html.escape(visible(value), quote=False)
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


def as_json(frame: pd.DataFrame) -> str:
    """The frame as a JSON list of rows, raw and in full; missing values are null."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
    return json.dumps(rows, default=lambda value: value.item() if hasattr(value, "item") else str(value))
