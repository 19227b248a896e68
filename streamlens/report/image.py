"""A figure as PNG, SVG or PDF, through kaleido and a Chromium that is on the machine.

A picture is as wide as its figure asks for; without a browser the message names the fix and the page that needs none.
"""

import plotly.graph_objects as go

from streamlens.errors import InputError
from streamlens.report.blocks import meta_of

__all__ = ["IMAGES", "image"]

IMAGES = ("png", "svg", "pdf")
_WIDTH = 900  # px, where a figure fits any
_SCALE = 2  # pixels of a PNG per px


def image(figure: go.Figure, kind: str) -> bytes:
    """The picture's bytes.

    Args:
        figure: any figure.
        kind: ``png``, ``svg`` or ``pdf``.

    Raises:
        InputError: another kind; kaleido or a browser is missing or fails.
    """
    if kind not in IMAGES:
        raise InputError(f"a picture is {', '.join(IMAGES)}; got {kind!r}.")
    meta = meta_of(figure)
    width = min(max(meta.get("min_width", 0), _WIDTH), meta.get("max_width", 10_000))
    try:
        return figure.to_image(format=kind, width=width, scale=_SCALE if kind == "png" else 1)
    except Exception as error:  # whatever kaleido and the browser raise
        raise InputError(f"A {kind.upper()} needs kaleido and a browser: {_said(error)}", hint=_FIX) from error


_FIX = (
    'pip install "kaleido>=1.0", and Chromium or Chrome (Debian: apt-get install chromium; BROWSER_PATH names another '
    "place). Or write a page, which needs neither: -o FILE.html"
)


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
