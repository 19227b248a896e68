"""Many alike figures as little JSON: what stands in several of them is stored once.

1. Numbers of figures are rounded to five digits: a pixel shows less.
2. Every text, list or object that occurs more than once is put into a pool, and `{"$": n}` stands where it stood; the
   page's script puts it back.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

__all__ = ["REFERENCE", "pooled", "rounded"]

DIGITS = 5
REFERENCE = "$"
_WORTH = 24  # characters from which a repeated value is pooled


def rounded(value: Any) -> Any:
    """Plain data with its floats at five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def pooled(values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The pool, and the values with references into it; values in the pool hold none."""
    counts: Counter[str] = Counter()
    for value in values:
        _count(value, counts)
    repeated = {text: None for text, n in counts.items() if n > 1 and len(text) >= _WORTH}
    numbers: dict[str, int] = {}
    pool: list[Any] = []

    def replace(value: Any) -> Any:
        if not isinstance(value, dict | list | str):
            return value
        text = _text(value)
        if text in repeated:
            if text not in numbers:
                numbers[text] = len(pool)
                pool.append(value)
            return {REFERENCE: numbers[text]}
        if isinstance(value, str):
            return value
        if isinstance(value, dict):
            return {key: replace(item) for key, item in value.items()}
        return [replace(item) for item in value]

    return pool, [replace(value) for value in values]


def _count(value: Any, counts: Counter[str]) -> None:
    if not isinstance(value, dict | list | str):
        return
    text = _text(value)
    counts[text] += 1
    if counts[text] > 1 or isinstance(value, str):  # the whole of it is repeated: what is inside goes with it
        return
    for item in value.values() if isinstance(value, dict) else value:
        _count(item, counts)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
