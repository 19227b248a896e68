"""The lab's callbacks: a switch or slider moves, `lab_live` computes, the page shows it. Nothing is kept here."""

from typing import Any

from dash import ALL, Dash, Input, Output, ctx, html, no_update

from streamlens.explorer import lab_live
from streamlens.explorer.figures import plain
from streamlens.explorer.lab_page import MATRICES, lab_page

_LIMIT = 1.0  # the step size that a prediction is asked for at


def add_lab(app: Dash) -> None:
    """Adds the callbacks of the lab."""
    _shown(app)
    _branches(app)
    _picture(app)
    _euler(app)
    _attention(app)
    _stack(app)


def _plain(name: str) -> Output:
    return Output({"kind": "plain", "name": name}, "data")


def _slide(name: str) -> Input:
    return Input({"kind": "slide", "name": name}, "value")


def _said(live: lab_live.Live) -> list[Any]:
    return [html.P(text) for text in live.says]


def _shown(app: Dash) -> None:
    @app.callback(Output("lab", "children"), Input("lab-shown", "data"), prevent_initial_call=True)
    def shown(_: bool) -> Any:
        return lab_page()


def _branches(app: Dash) -> None:
    @app.callback(
        Output("lab-branch-one", "aria-pressed"),
        Output("lab-branch-two", "aria-pressed"),
        Output("lab-branches-says", "children"),
        _plain("lab-branches"),
        Input("lab-branch-one", "n_clicks"),
        Input("lab-branch-two", "n_clicks"),
    )
    def branches(one: int | None, two: int | None) -> tuple[Any, ...]:
        on = [(clicks or 0) % 2 == 0 for clicks in (one, two)]
        live = lab_live.branches(*on)
        return (*(str(state).lower() for state in on), _said(live), plain(live.figures[0]))


def _picture(app: Dash) -> None:
    @app.callback(_plain("lab-picture"), Input("lab-picture", "value"))
    def picture(name: str) -> Any:
        return plain(lab_live.picture(name).figures[0])

    @app.callback(
        Output("lab-pixel", "children"),
        Input("lab-picture", "value"),
        _slide("row"),
        _slide("column"),
        Input({"kind": "graph", "name": "lab-picture"}, "hoverData"),
    )
    def pixel(name: str, row: Any, column: Any, hovered: Any) -> str:
        if isinstance(ctx.triggered_id, dict) and hovered:
            row, column = hovered["points"][0]["y"], hovered["points"][0]["x"]
        return lab_live.pixel(name, int(float(row)), int(float(column)))


def _euler(app: Dash) -> None:
    @app.callback(
        Output("lab-predicted", "data"),
        Input({"kind": "predict", "says": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def predicted(clicks: list[int | None]) -> Any:
        chosen: Any = ctx.triggered_id
        return chosen["says"] if any(clicks) else no_update

    @app.callback(
        Output("lab-question", "hidden"),
        Output("lab-euler-says", "children"),
        _plain("lab-euler"),
        _slide("h"),
        Input("lab-predicted", "data"),
    )
    def steps(value: Any, expected: str | None) -> tuple[Any, ...]:
        h = float(value)
        if h >= _LIMIT and expected is None:
            return False, "Say what you expect, and the steps go on.", no_update
        live = lab_live.steps(h)
        said = _said(live)
        if h > _LIMIT and expected is not None:
            right = expected in live.says[1]
            said.append(html.P(f"You expected that it {expected}: {'right' if right else 'it does not'}."))
        return True, said, plain(live.figures[0])


def _attention(app: Dash) -> None:
    names = [f"{name}-{row}-{column}" for name in MATRICES for row in range(2) for column in range(2)]

    @app.callback(
        Output("lab-attention-says", "children"),
        Output("lab-attention-table", "children"),
        _plain("lab-attention"),
        *(_slide(name) for name in names),
    )
    def attention(*values: Any) -> tuple[Any, ...]:
        w = [float(value) for value in values]
        made = [((w[i], w[i + 1]), (w[i + 2], w[i + 3])) for i in range(0, len(w), 4)]
        live, table = lab_live.attention(*made)
        head = html.Thead(html.Tr([html.Th(name, scope="col") for name in table]))
        rows = [html.Tr([html.Td(_cell(value)) for value in row]) for row in table.itertuples(index=False)]
        return _said(live), html.Table([head, html.Tbody(rows)]), plain(live.figures[0])

    @app.callback(
        [Output({"kind": "slide", "name": name}, "value") for name in names],
        Input("lab-weights", "n_clicks"),
        prevent_initial_call=True,
    )
    def as_on_paper(_: int) -> list[float]:
        return [value for rows in MATRICES.values() for row in rows for value in row]


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _stack(app: Dash) -> None:
    @app.callback(
        Output("lab-turns", "aria-pressed"),
        Output("lab-stack-says", "children"),
        _plain("lab-product"),
        _plain("lab-lengths"),
        Input("lab-turns", "n_clicks"),
        _slide("depth"),
        _slide("diagonal"),
        _slide("corner"),
    )
    def stack(clicks: int | None, depth: Any, diagonal: Any, corner: Any) -> tuple[Any, ...]:
        turns = (clicks or 0) % 2 == 0
        live = lab_live.stack(
            depth=int(float(depth)), diagonal=float(diagonal), corner=float(corner), alternating=turns
        )
        return str(turns).lower(), _said(live), *(plain(drawn) for drawn in live.figures)
