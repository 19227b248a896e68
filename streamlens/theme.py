"""One look for every figure and page, light and dark, as plain data.

1. `Palette` names each colour by its role; `LIGHT` and `DARK` are its two values.
2. `scale()` gives the colour scales. Signed values diverge from a middle that is close to the background,
   so that nothing is what zero looks like: blue adds, red subtracts (never red and green), or orange and
   purple on request.
3. `template()` makes a plotly layout template of a palette, `css_variables()` the same colours for a page.

A colour fixed inside a figure (a bar, a line) has to read on both backgrounds, since a page swaps only
the template and the scales when the reader changes theme: those are the mid-tones ADDS, SUBTRACTS,
NEUTRAL and `position_colours`.
"""

from dataclasses import asdict, dataclass

from streamlens.errors import InputError

__all__ = [
    "DARK",
    "LIGHT",
    "SIGN_COLOURS",
    "Palette",
    "css_variables",
    "palette",
    "position_colours",
    "scale",
    "template",
]

SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'
MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace'

# (adds, subtracts): at least 3:1 against both backgrounds, and apart for every common colour blindness.
SIGN_COLOURS = {"RdBu": ("#3b82c4", "#d1495b"), "PuOr": ("#8d6fc0", "#cf7a1f")}
NEUTRAL = "#7f8793"
NAN_GREY = "rgba(127,135,147,0.45)"

_DIVERGING = {
    ("RdBu", False): ("#8c1127", "#d6604d", "#f6b99b", "#f7f7f7", "#a7cfe4", "#4393c3", "#0b4a8a"),
    ("RdBu", True): ("#ffb3a1", "#e8604c", "#7c2f2b", "#1f242b", "#23496f", "#3f8fd6", "#a9d8ff"),
    ("PuOr", False): ("#8a4500", "#e08214", "#fdc67f", "#f7f7f7", "#c9c3e0", "#8073ac", "#47207a"),
    ("PuOr", True): ("#ffd095", "#e08214", "#6d4312", "#1f242b", "#42386b", "#8e7cc9", "#d6ccff"),
}
_SEQUENTIAL = {
    False: ("#f4f6f8", "#c9dceb", "#8fbad6", "#4f8fbd", "#22649a", "#0c3d6b"),
    True: ("#1f242b", "#1f3f5c", "#28638f", "#3f8dc0", "#7dbbe0", "#d3ecff"),
}
_POSITION_STOPS = ((76, 114, 196), (42, 148, 148), (148, 136, 60), (217, 120, 50))


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours by role, as CSS."""

    background: str
    surface: str
    text: str
    muted: str
    line: str
    accent: str


LIGHT = Palette(
    background="#ffffff", surface="#f5f6f8", text="#1b1f24", muted="#57606a", line="#d5dae0", accent="#1f6fb5"
)
DARK = Palette(
    background="#15181d", surface="#1d2127", text="#e6e9ed", muted="#a1aab5", line="#363c45", accent="#6cb2f5"
)


def palette(dark: bool) -> Palette:
    """The colours of one theme."""
    return DARK if dark else LIGHT


def scale(name: str, *, dark: bool = False) -> list[list]:
    """A plotly colour scale: ``RdBu`` or ``PuOr`` (low subtracts, high adds), or ``sequential``.

    Raises:
        InputError: there is no scale of that name.
    """
    if name == "sequential":
        stops = _SEQUENTIAL[dark]
    elif (name, dark) in _DIVERGING:
        stops = _DIVERGING[name, dark]
    else:
        raise InputError(f"a colour scale is one of RdBu, PuOr, sequential; got {name!r}.")
    return [[i / (len(stops) - 1), stop] for i, stop in enumerate(stops)]


def position_colours(n: int) -> list[str]:
    """`n` colours from blue to orange in the order of the positions, each legible on both backgrounds."""
    colours = []
    for i in range(n):
        at = (i / max(n - 1, 1)) * (len(_POSITION_STOPS) - 1)
        low = min(int(at), len(_POSITION_STOPS) - 2)
        pair = zip(_POSITION_STOPS[low], _POSITION_STOPS[low + 1], strict=True)
        colours.append("#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in pair))
    return colours


def template(*, dark: bool = False) -> dict:
    """The plotly template of a theme: everything a figure takes from the background it stands on."""
    colours = palette(dark)
    axis = {
        "gridcolor": colours.line,
        "zerolinecolor": colours.muted,
        "linecolor": colours.line,
        "tickcolor": colours.line,
        "title": {"font": {"color": colours.muted}},
    }
    return {
        "layout": {
            "paper_bgcolor": colours.background,
            "plot_bgcolor": colours.background,
            "font": {"family": SANS, "size": 12, "color": colours.text},
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "bgcolor": colours.surface,
                "bordercolor": colours.muted,
                "font": {"family": SANS, "color": colours.text},
            },
            "legend": {"font": {"color": colours.text}, "bgcolor": "rgba(0,0,0,0)"},
            "coloraxis": {"colorbar": {"outlinewidth": 0, "tickcolor": colours.muted}},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colours.muted, "activecolor": colours.accent},
        }
    }


def css_variables(*, dark: bool = False) -> str:
    """The palette as CSS custom properties: ``--background: #ffffff; ...``."""
    return " ".join(f"--{role}: {colour};" for role, colour in asdict(palette(dark)).items())
