"""The lab's page: each example live, next to the sentence it teaches."""

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from streamlens.explorer.attributes import wild
from streamlens.explorer.lab_live import BRANCHES, PICTURES
from streamlens.explorer.layout import figure
from streamlens.lab import attention_by_hand as by_hand

#: what the steps do past h = 1, to predict from
PREDICTIONS = ("decays", "oscillates for ever", "grows")
MATRICES = {"W_Q": by_hand.W_Q, "W_K": by_hand.W_K, "W_V": by_hand.W_V}


def lab_page() -> Any:
    """All sections."""
    lead = (
        "Small residual networks, solved by hand and computed live. Each keeps the same books as a language model: "
        "what a branch adds is a write, and the stream is their sum."
    )
    sections = [_branches(), _picture(), _euler(), _attention(), _stack()]
    return html.Div([html.P(lead, className="lead"), *sections], className="lab")


def _section(heading: str, teaches: str, controls: Sequence[Any], figures: Sequence[Any]) -> Any:
    return html.Section(
        [
            html.H2(heading),
            html.P(teaches, className="caption"),
            html.Div(
                [html.Div(controls, className="controls"), html.Div(figures, className="answers")], className="live"
            ),
        ]
    )


def _says(name: str) -> Any:
    return html.Div(id=name, className="say", role="status")


def toggle(name: str, label: str, *, pressed: bool = True) -> Any:
    """A button that is on or off; a callback turns its `aria-pressed`."""
    return html.Button(label, id=name, type="button", className="toggle", **wild(aria_pressed=str(pressed).lower()))


def slider(name: str, label: str, *, low: float, high: float, step: float | str, value: float) -> Any:
    """A native slider under its label and its value; its id is `{"kind": "slide", "name": name}`."""
    chosen = html.Span(id={"kind": "slid", "name": name}, className="value")
    given = {"min": low, "max": high, "step": step, "value": value, "name": name, "className": "slide"}
    return html.Label(
        [html.Span([f"{label} = ", chosen]), dcc.Input(id={"kind": "slide", "name": name}, type="range", **given)]
    )


def _branches() -> Any:
    return _section(
        "Two branches, and switching them off",
        "Each branch reads the stream as the ones before it left it. Switch branch one off: branch two reads another "
        "vector, and writes another one. That is why rerunning is not subtracting.",
        [*(toggle(f"lab-{name.replace(' ', '-')}", name) for name in BRANCHES), _says("lab-branches-says")],
        [figure("lab-branches", "Where the stream goes", "Grey is the start; every other arrow is a write.")],
    )


def _picture() -> Any:
    options = [{"label": name, "value": name} for name in PICTURES]
    return _section(
        "Correcting an image",
        "A blurred image is already close to the sharp one: the branch only has to write what is missing, here with "
        "its sign. Point at a pixel to see the sum.",
        [
            html.Label([html.Span("Picture"), dcc.RadioItems(options, "by hand", id="lab-picture")]),
            slider("row", "row", low=0.0, high=7.0, step=1.0, value=0.0),
            slider("column", "column", low=0.0, high=7.0, step=1.0, value=0.0),
            _says("lab-pixel"),
        ],
        [figure("lab-picture", "Input, signed correction, result", "All three on one scale, blue above zero.")],
    )


def _euler() -> Any:
    answers = [html.Button(text, id={"kind": "predict", "says": text}, type="button") for text in PREDICTIONS]
    return _section(
        "Depth as time",
        "The block x + h f(x) is one Euler step of x' = f(x). For x' = -2x the exact solution decays "
        "whatever h is; the steps do not.",
        [
            dcc.Store(id="lab-predicted"),
            slider("h", "step size h", low=0.05, high=1.5, step=0.05, value=0.25),
            html.Div(
                [
                    html.P("You are about to cross h = 1. What will the steps do past it?"),
                    html.Div(answers, className="actions"),
                ],
                id="lab-question",
                hidden=True,
                className="say",
            ),
            _says("lab-euler-says"),
        ],
        [figure("lab-euler", "Sixteen steps beside the exact curve", "The picture is cut at ±8.")],
    )


def _attention() -> Any:
    matrices = [
        html.Fieldset(
            [
                html.Legend(name),
                *(
                    slider(f"{name}-{i}-{j}", f"{name}[{i},{j}]", low=-3.0, high=3.0, step="any", value=value)
                    for i, row in enumerate(rows)
                    for j, value in enumerate(row)
                ),
            ],
            className="matrix",
        )
        for name, rows in MATRICES.items()
    ]
    return _section(
        "One attention head by hand",
        "“ bank” asks (W_Q), the other tokens answer (W_K), and what they hand over (W_V) is weighed and added. Move a "
        "weight and watch where “ bank” ends.",
        [*matrices, html.Button("As on paper", id="lab-weights", type="button"), _says("lab-attention-says")],
        [
            figure("lab-attention", "From [2, 1] to where the head takes it", "An arrow for each token it reads."),
            html.Div(id="lab-attention-table", className="tablebox"),
        ],
    )


def _stack() -> Any:
    return _section(
        "A stack of blocks: its product, and its paths",
        "Eigenvalues of the blocks do not bound what their product does; its singular values do. The same product, "
        "multiplied out, is a sum over 2^L paths.",
        [
            toggle("lab-turns", "A and its transpose in turn"),
            slider("depth", "blocks", low=1.0, high=12.0, step=1.0, value=6.0),
            slider("diagonal", "diagonal of A", low=0.0, high=1.0, step=0.05, value=0.5),
            slider("corner", "upper corner of A", low=0.0, high=3.0, step=0.1, value=2.0),
            _says("lab-stack-says"),
        ],
        [
            figure("lab-product", "Products by depth", "On a log axis; the dashed lines are products over the blocks."),
            figure(
                "lab-lengths", "Paths by length", "How many paths there are, and how much of the gradient they carry."
            ),
        ],
    )
