"""Attributes that Dash takes as they are: `aria-` for screen readers, `data-` for the page's own script."""

from typing import Any


def wild(**given: str) -> dict[str, Any]:
    """`wild(aria_label="x")` is `{"aria-label": "x"}`."""
    return {name.replace("_", "-"): value for name, value in given.items()}
