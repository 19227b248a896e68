"""One self-contained page.

1. Each block becomes a section of HTML; its figures, tables and switches go into one JSON block.
2. Figures have lost their theme and fixed width: the page sets both.
3. Scripts and style are read from this folder; the policy names the scripts by their SHA-256.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources

import pandas as pd
from plotly.offline import get_plotlyjs

from streamlens import theme
from streamlens.report.blocks import THEMES, Block, Held, Tables, block_html
from streamlens.report.blocks import text_html as _text

__all__ = ["page"]

#: the page's script, in the order of its parts
SCRIPTS = ("tables.js", "figures.js", "switch.js", "page.js")
_CONTENTS = 4  # sections from which a page says what is in it


def page(
    sections: Iterable[Block],
    *,
    title: str,
    provenance: Mapping[str, object],
    table: pd.DataFrame | None = None,
    closure: str = "",
) -> str:
    """A whole HTML page that works from disk with no network, light and dark, on screen and on paper.

    Args:
        sections: figures and what else there is to see, in order.
        title: the page's heading.
        provenance: what made it: model, revision, device, dtype, BOS choice, versions, date. Values are
            shown as text, nested mappings as ``name value`` pairs.
        table: the rows behind the figures, shown and offered as CSV and JSON.
        closure: one sentence that says how well the parts add up; stands under the title and under the table.
    """
    blocks = list(sections)
    if table is not None:
        blocks.append(Tables(heading="Table", frames=[("the rows behind the figures", table)], footer=closure))
    held = Held()
    body = "\n".join(block_html(block, i, held) for i, block in enumerate(blocks))
    data = {"themes": THEMES, **held.data()}
    plotly, script = get_plotlyjs(), _script()
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
<noscript><p>The figures need JavaScript; sentences, tables and what made them are readable without.</p></noscript>
{_contents(blocks)}{body}
</main>
<footer>{_provenance(provenance)}</footer>
<script type="application/json" id="streamlens-data">{_json(data)}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def _contents(blocks: list[Block]) -> str:
    """Links to the sections of a long page."""
    if len(blocks) <= _CONTENTS:
        return ""
    links = "".join(f'<li><a href="#section-{n}">{_text(block.heading)}</a></li>' for n, block in enumerate(blocks))
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n'


def _provenance(provenance: Mapping[str, object]) -> str:
    entries = "".join(f"<dt>{_text(key)}</dt><dd>{_value(value)}</dd>" for key, value in provenance.items())
    return f"<h2>What made this</h2><dl>{entries}</dl>"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_text(key)} {_text(item)}" for key, item in value.items())
    return "not recorded" if value is None else _text(value)


def _json(data: object) -> str:
    """JSON that no HTML parser can end early and no editor misreads: ``<`` and all that has no shape are escaped."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return re.sub(r"[^\x00-\x7f]", lambda c: c[0] if c[0].isprintable() else json.dumps(c[0])[1:-1], text)


def _script() -> str:
    """The parts of the page's script in one scope of their own."""
    return "\n".join(['"use strict";', "(() => {", *map(_asset, SCRIPTS), "})();"])


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
    adds, subtracts = theme.SIGN_COLOURS["RdBu"]
    fixed = f"--sans: {theme.SANS}; --mono: {theme.MONO}; --adds: {adds}; --subtracts: {subtracts};"
    return f"""
:root {{ {fixed} {theme.css_variables()} }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ color-scheme: dark; {dark} }} }}
:root[data-theme="dark"] {{ color-scheme: dark; {dark} }}
{_asset("page.css")}"""
