"""What a page is made of, each kind as plain data and as HTML.

1. `Section` is one figure, `Words` are sentences with a table or a strip of tokens, `Switch` is figures of which a
   column of buttons chooses one set, `Tables` are frames to read and to save.
2. `block_html` turns one into HTML; figures, tables and switches go into `Held`, the data of the page.
"""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from streamlens import theme
from streamlens.display import html_token, visible
from streamlens.report.compact import pooled, rounded
from streamlens.report.table import columns_of, table_html

__all__ = [
    "Block",
    "Choice",
    "Held",
    "Section",
    "Strip",
    "Switch",
    "Tables",
    "Words",
    "block_html",
    "meta_of",
    "text_html",
]


@dataclass(frozen=True, eq=False, kw_only=True)
class Section:
    """One figure of a page. Texts are plain; `summary` is what a screen reader says for the picture.

    `table` stands under the figure, for pages whose figures have a table each.
    """

    heading: str
    figure: go.Figure
    caption: str
    summary: str = ""
    table: pd.DataFrame | None = None


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The tokens of a prompt, raw; `picked` is a position."""

    tokens: Sequence[str]
    special: Sequence[bool]
    sinks: Sequence[bool]
    picked: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Words:
    """Sentences; the first is set larger if `verdict`. Below them a strip of tokens and a table, where given."""

    heading: str
    lines: Sequence[str]
    verdict: bool = False
    strip: Strip | None = None
    table: pd.DataFrame | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """One button of a switch: its label, its size as a bar and in words, what it says, and its figures."""

    label: str
    size: float
    shown: str
    says: str
    figures: Sequence[go.Figure]


@dataclass(frozen=True, eq=False, kw_only=True)
class Switch:
    """Figures of which a column of buttons chooses one set; every choice has as many.

    Attributes:
        heading: Of the section.
        caption: What is shown.
        choices: From the top down.
        start: The choice that is pressed at first.
        rest: What is said while none is.
        buttons: What the buttons do, for screen readers: "Switch off".
    """

    heading: str
    caption: str
    choices: Sequence[Choice]
    start: int
    rest: str
    buttons: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Tables:
    """Frames by name, each to be saved as CSV and JSON; the first `shown` are also there to read."""

    heading: str
    frames: Sequence[tuple[str, pd.DataFrame]]
    shown: int = 1
    footer: str = ""


#: px that stay above a figure whose title the page sets
_ABOVE = 12

Block = Section | Words | Switch | Tables


@dataclass(eq=False)
class Held:
    """The data of a page: figures in the order of their places, tables, and switches."""

    figures: list[Any] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    switches: list[Any] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """As plain data; figures and switches refer to a pool of what they share."""
        pool, (figures, switches) = pooled([rounded(self.figures), rounded(self.switches)])
        return {"pool": pool, "figures": figures, "switches": switches, "tables": self.tables}


def text_html(text: object) -> str:
    """Any text, legible and escaped for an element or an attribute."""
    return html.escape(visible(str(text)), quote=True)


def block_html(block: Block, number: int, held: Held) -> str:
    """One block as a section of the page."""
    inner: str
    if isinstance(block, Section):
        inner = _section(block, number, held)
    elif isinstance(block, Words):
        inner = _words(block, number)
    elif isinstance(block, Switch):
        inner = _switch(block, number, held)
    else:
        inner = _tables(block, number, held)
    return f"""<section id="section-{number}" aria-labelledby="heading-{number}">
<h2 id="heading-{number}">{text_html(block.heading)}</h2>
{inner}</section>"""


def _section(section: Section, number: int, held: Held) -> str:
    summary = section.summary or meta_of(section.figure).get("summary", "") or section.caption
    rows = _scrolled(table_html(section.table, caption=section.heading), number) if section.table is not None else ""
    held.figures.append(_bare(section.figure))
    return f"""<figure>
<figcaption>{text_html(section.caption)}</figcaption>
{_panel(section.figure, summary, number)}
</figure>
{rows}"""


def _words(block: Words, number: int) -> str:
    said = [
        f'<p class="{"verdict" if block.verdict and n == 0 else "said"}">{text_html(line)}</p>'
        for n, line in enumerate(block.lines)
    ]
    if block.strip is not None:
        said.append(_strip(block.strip))
    if block.table is not None:
        said.append(_scrolled(table_html(block.table, caption=block.heading), number))
    return "\n".join([*said, ""])


def _strip(strip: Strip) -> str:
    chips = []
    for place, (token, special, sink) in enumerate(zip(strip.tokens, strip.special, strip.sinks, strict=True)):
        kinds = ["chip", *(["sink"] if sink else []), *(["picked"] if place == strip.picked else [])]
        current = ' aria-current="true"' if place == strip.picked else ""
        note = " sink" if sink else ""
        chips.append(
            f'<li class="{" ".join(kinds)}"{current}><span>{html_token(token, special=special)}</span>'
            f"<small>{place}{note}</small></li>"
        )
    return f'<ol class="chips" aria-label="Tokens">{"".join(chips)}</ol>'


def _switch(block: Switch, number: int, held: Held) -> str:
    first = block.choices[block.start]
    places = list(range(len(held.figures), len(held.figures) + len(first.figures)))
    held.figures += [_bare(figure) for figure in first.figures]
    choices = [
        {"says": choice.says, "figures": [_bare(figure) for figure in choice.figures]} for choice in block.choices
    ]
    held.switches.append({"plots": places, "start": block.start, "rest": block.rest, "choices": choices})
    largest = max(abs(choice.size) for choice in block.choices) or 1.0
    buttons = "\n".join(
        f'<button type="button" aria-pressed="{str(n == block.start).lower()}" '
        f'tabindex="{0 if n == block.start else -1}" style="--size: {abs(choice.size) / largest:.3f}; '
        f'--side: var(--{"adds" if choice.size >= 0 else "subtracts"})"><span>{text_html(choice.label)}</span>'
        f"<small>{text_html(choice.shown)}</small></button>"
        for n, choice in enumerate(block.choices)
    )
    panels = "\n".join(_panel(figure, meta_of(figure).get("summary", ""), number) for figure in first.figures)
    return f"""<p class="said">{text_html(block.caption)}</p>
<div class="switch" data-switch="{len(held.switches) - 1}">
<div class="branches" role="toolbar" aria-orientation="vertical" aria-label="{text_html(block.buttons)}">
{buttons}
</div>
<div class="answer">
<p class="headline" aria-live="polite">{text_html(first.says)}</p>
{panels}
</div>
</div>
"""


def _tables(block: Tables, number: int, held: Held) -> str:
    parts = []
    for n, (name, frame) in enumerate(block.frames):
        shown = n < block.shown
        label = f'<h3 id="table-{number}-{n}">{text_html(name)}</h3>' if len(block.frames) > 1 else ""
        buttons = " ".join(
            f'<button type="button" data-table="{len(held.tables)}" data-kind="{kind}" '
            f'aria-label="Save {kind.upper()} of {text_html(name)}">Save {kind.upper()}</button>'
            for kind in ("csv", "json")
        )
        count = f"<span>{len(frame):,} rows</span>"
        parts.append(f'{label}<div class="actions">{buttons} {count}</div>')
        if shown:
            footer = block.footer if n == 0 else ""
            parts.append(_scrolled(table_html(frame, caption=name, footer=footer), number))
        file = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
        held.tables.append({"file": f"streamlens-{file}", "columns": columns_of(frame)})
    return "\n".join([*parts, ""])


def _scrolled(table: str, number: int) -> str:
    return f'<div class="table" tabindex="0" role="group" aria-labelledby="heading-{number}">\n{table}\n</div>'


def _panel(figure: go.Figure, summary: str, number: int) -> str:
    """The place of a figure, under its title: the page sets titles itself, so that they wrap."""
    meta = meta_of(figure)
    sizes = (("--needs", "min_width"), ("--enough", "max_width"))
    style = "; ".join(f"{name}: {int(meta[key])}px" for name, key in sizes if key in meta)
    title = "".join(f"<p>{text_html(line)}</p>" for line in meta.get("title", ()))
    return f"""<div class="drawn">
<div class="title">{title}</div>
<div class="panel" role="group" aria-labelledby="heading-{number}">
<div class="rows" aria-hidden="true" hidden></div>
<div class="plot" role="img" aria-label="{text_html(summary)}" style="{style}"></div>
</div>
</div>"""


def meta_of(figure: go.Figure) -> dict[str, Any]:
    layout: Any = figure.layout
    return layout.meta or {}


def _bare(figure: go.Figure) -> dict[str, Any]:
    """The figure as plain data without what the page decides: template, width, and the room of the title."""
    plain = json.loads(str(figure.to_json(engine="json")))
    layout = plain["layout"]
    for name in ("template", "width"):
        layout.pop(name, None)
    meta = layout.get("meta") or {}
    if "title_px" not in meta:
        return {"data": plain["data"], "layout": layout}
    room = meta.pop("title_px") - _ABOVE
    layout.pop("title")
    layout["height"] -= room
    layout["margin"]["t"] -= room
    return {"data": plain["data"], "layout": layout, "title": [visible(line) for line in meta.pop("title")]}


THEMES = {
    name: {
        "template": theme.template(dark=dark),
        "scales": {scale: theme.scale(scale, dark=dark) for scale in (*theme.SIGN_COLOURS, "sequential")},
    }
    for name, dark in (("light", False), ("dark", True))
}
