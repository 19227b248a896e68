"""One self-contained page.

1. Each section becomes a figure element: heading, caption, an empty place for the plot, a summary for
   screen readers.
2. Figures lose their theme and fixed width (the page sets both) and go into one JSON block.
3. Scripts and style are read from this folder; the policy names the scripts by their SHA-256.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from streamlens import theme
from streamlens.display import visible
from streamlens.report.table import as_csv, as_json, table_html

__all__ = ["Section", "page"]

_THEMES = {
    name: {
        "template": theme.template(dark=dark),
        "scales": {scale: theme.scale(scale, dark=dark) for scale in (*theme.SIGN_COLOURS, "sequential")},
    }
    for name, dark in (("light", False), ("dark", True))
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Section:
    """One figure of a page. Texts are plain; `summary` is what a screen reader says for the picture."""

    heading: str
    figure: go.Figure
    caption: str
    summary: str = ""


def page(
    sections: Iterable[Section],
    *,
    title: str,
    provenance: Mapping[str, object],
    table: pd.DataFrame | None = None,
    closure: str = "",
) -> str:
    """A whole HTML page that works from disk with no network, light and dark, on screen and on paper.

    Args:
        sections: the figures, in order.
        title: the page's heading.
        provenance: what made it: model, revision, device, dtype, BOS choice, versions, date. Values are
            shown as text, nested mappings as ``name value`` pairs.
        table: the rows behind the figures, shown and offered as CSV and JSON.
        closure: one sentence that says how well the parts add up; stands under the title and under the table.
    """
    shown = list(sections)
    body = "\n".join(_section(section, i) for i, section in enumerate(shown))
    if table is not None:
        body += _table(table, closure)
    data = {
        "themes": _THEMES,
        "figures": [_bare(section.figure) for section in shown],
        "downloads": [] if table is None else _downloads(table),
    }
    plotly, script = get_plotlyjs(), _asset("page.js")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(plotly, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{_text(title)}</title>
<style>{_style()}</style>
</head>
<body>
<header>
<div><h1>{_text(title)}</h1>{f'<p class="closure">{_text(closure)}</p>' if closure else ""}</div>
<button type="button" id="theme" aria-pressed="false">Dark theme</button>
</header>
<main>
<noscript><p>The figures need JavaScript; the table and what made it are readable without.</p></noscript>
{body}
</main>
<footer>{_provenance(provenance)}</footer>
<script type="application/json" id="streamlens-data">{_json(data)}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def _text(text: object) -> str:
    return html.escape(visible(str(text)), quote=True)


def _section(section: Section, number: int) -> str:
    layout: Any = section.figure.layout
    meta = layout.meta or {}
    summary = section.summary or meta.get("summary", "") or section.caption
    sizes = (("--needs", "min_width"), ("--enough", "max_width"))
    style = "; ".join(f"{name}: {int(meta[key])}px" for name, key in sizes if key in meta)
    return f"""<section aria-labelledby="heading-{number}">
<h2 id="heading-{number}">{_text(section.heading)}</h2>
<figure>
<figcaption>{_text(section.caption)}</figcaption>
<div class="panel" role="group" aria-labelledby="heading-{number}">
<div class="rows" aria-hidden="true" hidden></div>
<div class="plot" role="img" aria-label="{_text(summary)}" style="{style}"></div>
</div>
</figure>
</section>"""


def _table(table: pd.DataFrame, closure: str) -> str:
    return f"""<section aria-labelledby="heading-table">
<h2 id="heading-table">Table</h2>
<div class="actions"><button type="button" id="csv">Save CSV</button>
<button type="button" id="json">Save JSON</button></div>
<div class="table" tabindex="0" role="group" aria-labelledby="heading-table">
{table_html(table, caption="The rows behind the figures", footer=closure)}
</div>
</section>"""


def _downloads(table: pd.DataFrame) -> list[list[str]]:
    """Button, file name, type and text of each."""
    return [
        ["csv", "streamlens.csv", "text/csv", as_csv(table)],
        ["json", "streamlens.json", "application/json", as_json(table)],
    ]


def _provenance(provenance: Mapping[str, object]) -> str:
    entries = "".join(f"<dt>{_text(key)}</dt><dd>{_value(value)}</dd>" for key, value in provenance.items())
    return f"<h2>What made this</h2><dl>{entries}</dl>"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_text(key)} {_text(item)}" for key, item in value.items())
    return "not recorded" if value is None else _text(value)


def _bare(figure: go.Figure) -> dict:
    """The figure as plain data without what the page decides: template and width."""
    plain = json.loads(str(figure.to_json(engine="json")))
    for name in ("template", "width"):
        plain["layout"].pop(name, None)
    return {"data": plain["data"], "layout": plain["layout"]}


def _json(data: object) -> str:
    """ASCII JSON that no HTML parser can end early: ``<`` is escaped, and so is a lone surrogate."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("streamlens.report").joinpath(name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Only these scripts run, nothing is fetched. Plotly styles elements and draws images as data."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _style() -> str:
    dark = theme.css_variables(dark=True)
    return f"""
:root {{ --sans: {theme.SANS}; --mono: {theme.MONO}; {theme.css_variables()} }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ color-scheme: dark; {dark} }} }}
:root[data-theme="dark"] {{ color-scheme: dark; {dark} }}
{_asset("page.css")}"""
