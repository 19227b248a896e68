"""The page as it is before anything is asked: header, question, the column of switches, empty places for answers.

Buttons and fields carry `data-act`; `assets/explorer.js` listens for them, writes the URL, and asks the server.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dash import dcc, html

from streamlens.explorer.attributes import wild
from streamlens.explorer.figures import THEMES
from streamlens.sites import Site

#: figure -> what it shows, in a sentence for a newcomer
FIGURES = {
    "effects": (
        "What the edit did to the reader",
        "Direct is the edited write itself. Indirect is how all later writes responded to reading another stream. "
        "Rescale is the final norm. The diamond is their sum.",
    ),
    "downstream": (
        "How every write changed",
        "Each bar is the change of one write, as far as the reader sees it. Writes before the edit cannot change. "
        "Click a bar to keep its numbers.",
    ),
    "contributions": (
        "What the reader's value is made of",
        "The stream is a sum of writes, so the reader's value is a sum too: each bar starts where the last one ended.",
    ),
    "growth": (
        "How the stream grows",
        "Every write adds a vector; this is the length of the sum so far.",
    ),
    "comparison": (
        "What separates the two sentences",
        "Each bar is what one write gives the reader in the first sentence, minus in the second.",
    ),
}


def layout(switches: Sequence[tuple[str, int]], *, model: str, saved: Iterable[str], max_tokens: int) -> Any:
    """The page.

    Args:
        switches: Every write that can be switched, in stream order, with how many heads it has.
        model: The model's name.
        saved: The names of saved readers.
        max_tokens: How long a prompt may be.
    """
    return html.Div(
        [
            *(
                dcc.Store(id=name)
                for name in ("request", "answered", "theme", "lab-shown", "clicked", "pumped", "stripped")
            ),
            dcc.Store(id="themes", data=THEMES),
            dcc.Download(id="download"),
            html.A("Skip to the numbers", href="#answers", className="skip"),
            _header(model),
            html.Main([_question(list(saved), max_tokens), _work(switches)], id="explore", **wild(aria_busy="false")),
            html.Main(html.P("Computing …", className="quiet"), id="lab", hidden=True),
        ],
        id="page",
    )


def act(name: str, children: Any, *, className: str = "", **given: str) -> Any:
    """A real button that `explorer.js` listens to; further keywords are attributes, such as `aria_label`."""
    plain = {key: value for key, value in given.items() if not key.startswith(("aria_", "data_"))}
    wildcards = {key: value for key, value in given.items() if key not in plain}
    own: dict[str, Any] = {**plain, **wild(data_act=name, **wildcards)}
    return html.Button(children, type="button", className=className, disable_n_clicks=True, **own)


def figure(name: str, heading: str, caption: str) -> Any:
    """A place for one figure; hidden until there is something to draw."""
    title = f"heading-{name}"
    return html.Section(
        [
            dcc.Store(id={"kind": "plain", "name": name}),
            html.H2(heading, id=title),
            html.P(caption, className="caption"),
            html.Div(
                html.Div(
                    dcc.Graph(
                        id={"kind": "graph", "name": name},
                        figure={"data": [], "layout": {}},
                        responsive="auto",
                        config={"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": _UNUSED},
                    ),
                    id={"kind": "said", "name": name},
                    role="img",
                ),
                className="panel",
            ),
        ],
        id={"kind": "box", "name": name},
        hidden=True,
        className="figure",
        **wild(aria_labelledby=title),
    )


_UNUSED = ["lasso2d", "select2d", "autoScale2d"]


def _header(model: str) -> Any:
    tabs = [
        act("tab", text, data_tab=name, role="tab", aria_controls=name, aria_selected=str(name == "explore").lower())
        for name, text in (("explore", "Explore a sentence"), ("lab", "The lab"))
    ]
    return html.Header(
        [
            html.Div([html.H1("streamlens"), html.P(model, className="quiet")], className="name"),
            html.Div(tabs, role="tablist", className="tabs", **wild(aria_label="Pages")),
            act("theme", "Dark theme", id="theme-button", aria_pressed="false"),
        ]
    )


def _question(saved: list[str], max_tokens: int) -> Any:
    readers = [html.Option("a token's logit", value=""), *(html.Option(name, value=name) for name in saved)]
    return html.Section(
        [
            html.P(
                "A model turns each token into a vector and passes it through its layers. Every part adds its own "
                "vector to it: that sum is the stream. Switch parts off and see what the others make of it.",
                className="lead",
            ),
            html.Div(
                [
                    _field("prompt", "Sentence", rows=2, wide=True),
                    act("run", "Run", className="primary", title="Ctrl+Enter"),
                ],
                className="row",
            ),
            html.P(
                f"Then pick the token whose vector you want to follow. A dot is a space. Up to {max_tokens} tokens.",
                className="caption",
            ),
            html.Div(id="strip", className="strip", role="group", **wild(aria_label="Tokens")),
            html.Div(
                [
                    html.Label(
                        [html.Span("Read"), html.Select(readers, id="reader", **wild(data_act="reader"))],
                        hidden=not saved,
                    ),
                    _field("for", "logit of the next token", hint="with its space; empty: the likeliest"),
                    _field("against", "minus the logit of", hint="optional"),
                    _field("second", "Compare with another sentence", hint="optional", wide=True),
                    act("run", "Read", title="Enter"),
                ],
                className="row",
            ),
            html.Div(id="strip2", className="strip", role="group", **wild(aria_label="Tokens of the second sentence")),
            html.P(id="error", role="alert", className="error"),
        ],
        className="question",
    )


def _field(name: str, label: str, *, rows: int = 1, hint: str = "", wide: bool = False) -> Any:
    field = html.Textarea(
        id=name, rows=rows, placeholder=hint, spellCheck="false", disable_n_clicks=True, **wild(data_field=name)
    )
    return html.Label([html.Span(label), field], className="wide" if wide else "")


def _work(switches: Sequence[tuple[str, int]]) -> Any:
    answers = [
        html.P(id="status", role="status", className="status"),
        html.P(id="headline", className="headline"),
        html.Div(id="effects-table", className="tablebox"),
        _named("effects"),
        _named("downstream"),
        _pins(switches),
        html.Section(
            [
                html.H2("What the model would say next"),
                html.P(
                    "The likeliest next tokens after the picked one, before and after the edits.", className="caption"
                ),
                html.Div(id="guesses", className="tablebox"),
            ]
        ),
        _named("contributions"),
        _named("growth"),
        html.P(id="comparison-error", role="alert", className="error"),
        _named("comparison"),
        html.Section(
            [
                html.H2("Take it with you"),
                html.Div(
                    [
                        act("copy", "Copy as Python", id="copy"),
                        html.Button("Save CSV", id="csv", type="button"),
                    ],
                    className="actions",
                ),
                html.Details([html.Summary("The calls that give these numbers"), html.Pre(id="python", tabIndex="0")]),
            ]
        ),
    ]
    return html.Div(
        [_column(switches), html.Div(answers, className="answers", id="answers", tabIndex="-1")], className="work"
    )


def _named(name: str) -> Any:
    return figure(name, *FIGURES[name])


def _pins(switches: Sequence[tuple[str, int]]) -> Any:
    options = [html.Option("none", value=""), *(html.Option(label, value=label) for label, _ in switches)]
    choice = html.Label([html.Span("Numbers of one write"), html.Select(options, id="pin", **wild(data_act="pin"))])
    return html.Section([choice, html.Div(id="pinned", className="tablebox")], className="pins")


def _column(switches: Sequence[tuple[str, int]]) -> Any:
    rows = [html.Li(_switch(label, heads), className="layer") for label, heads in reversed(switches)]
    where = html.Select(
        [html.Option("at the picked token", value="here"), html.Option("at every token", value="all")],
        id="where",
        **wild(data_act="where"),
    )
    return html.Aside(
        [
            html.H2("The stream"),
            html.P(
                "From the bottom up. Press a part: once is off, twice is half, three times is on.", className="caption"
            ),
            html.Div(
                [
                    act("undo", "Undo", id="undo"),
                    act("reset", "Reset", id="reset"),
                    html.Label([html.Span("Edits act"), where]),
                ],
                className="actions",
            ),
            html.Ol(
                [html.Li("to the next token", className="cap"), *rows, html.Li("the token comes in", className="cap")],
                className="column",
                id="column",
            ),
        ],
        **wild(aria_label="Switches, from the last write to the first"),
    )


def _switch(label: str, heads: int) -> list[Any]:
    main: list[Any] = [_toggle(label)]
    if not heads:
        return main
    group, name = f"heads-{label.replace('.', '-')}", f"{heads} heads of {label}"
    opener = act("heads", "heads", className="opener", aria_expanded="false", aria_controls=group, aria_label=name)
    each = [_toggle(head) for head in head_labels(label, heads)]
    return [
        *main,
        opener,
        html.Div(each, id=group, className="heads", role="group", hidden=True, **wild(aria_label=name)),
    ]


def head_labels(label: str, heads: int) -> list[str]:
    """The labels of an attention write's heads, as `Site` writes them."""
    site = Site.parse(label)
    return [site.part_of("head", number).label for number in range(heads)]


def _toggle(label: str) -> Any:
    kind = re.sub(r".*\.", "", label) if "." in label else ("head" if re.search(r"H\d+$", label) else "embed")
    return act(
        "write", label, className=f"write {kind}", data_label=label, aria_pressed="true", aria_label=f"{label}: on"
    )


def index_page(style: str, options: Mapping[str, str]) -> str:
    """Dash's page template with the theme's colours in it, and nothing from elsewhere."""
    attributes = "".join(f' data-{name}="{value}"' for name, value in options.items())
    return f"""<!DOCTYPE html>
<html lang="en"{attributes}>
<head>
{{%metas%}}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{{%title%}}</title>
<style>{style}</style>
{{%css%}}
</head>
<body>
{{%app_entry%}}
<footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
</body>
</html>"""
