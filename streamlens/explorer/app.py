"""The Dash app: the page, and the callbacks between it and the engine.

1. `ask` answers the state in a URL: tokens, numbers, and what the edits did. It runs the model.
2. `more` draws the rest from the same answer, and compares with a second prompt. It starts when `ask` has answered.
3. `save` hands the frame out as CSV. Themes are put on in the browser.
4. Whatever goes wrong becomes one sentence in its place on the page.
"""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, no_update

from streamlens import theme
from streamlens.display import visible
from streamlens.errors import StreamlensError
from streamlens.explorer import figures, panels
from streamlens.explorer.engine import Answer, Engine, tokens
from streamlens.explorer.lab_callbacks import add_lab
from streamlens.explorer.layout import index_page, layout
from streamlens.explorer.safety import guard
from streamlens.explorer.state import State as Asked
from streamlens.report.table import as_csv

_CHANGED, _STREAM = ("effects", "downstream"), ("contributions", "growth")


def make_app(engine: Engine, start: Asked, *, host: str, port: int, token: str | None = None) -> Dash:
    """The app, guarded for where it will be served.

    Args:
        engine: The model.
        start: What the bare address opens with.
        host: Where it will be bound.
        port: Its port.
        token: What has to be known to ask.
    """
    app = Dash(
        "streamlens",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        title="streamlens",
        update_title="",
        suppress_callback_exceptions=True,  # the lab's parts come when it is first looked at
        include_pages_meta=False,
        add_log_handler=False,
    )
    app.index_string = index_page(_style(), {"start": start.search.replace("&", "&amp;")})
    app.layout = layout(engine.switches(), model=engine.name, saved=engine.saved, max_tokens=engine.max_tokens)
    _ask(app, engine)
    _more(app, engine)
    _save(app, engine)
    _in_the_browser(app)
    add_lab(app)
    guard(app.server, host=host, port=port, scripts=app.csp_hashes(), token=token)
    return app


def _style() -> str:
    dark = theme.css_variables(dark=True)
    return f"""
:root {{ --sans: {theme.SANS}; --mono: {theme.MONO}; {theme.css_variables()}
 --adds: {theme.SIGN_COLOURS["RdBu"][0]}; --subtracts: {theme.SIGN_COLOURS["RdBu"][1]}; }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ color-scheme: dark; {dark} }} }}
:root[data-theme="dark"] {{ color-scheme: dark; {dark} }}
"""


def said(error: Exception) -> str:
    """What went wrong, as a sentence; what we did not foresee also goes to the terminal."""
    if isinstance(error, StreamlensError):
        return visible(str(error))
    traceback.print_exception(error)
    return visible(f"That went wrong here ({type(error).__name__}: {error}); the terminal says where.")


def _tried(make: Callable[[], Any]) -> tuple[Any, str]:
    """What `make` gives, or None and the reason."""
    try:
        return make(), ""
    except Exception as error:
        return None, said(error)


def _plain(name: str) -> Output:
    return Output({"kind": "plain", "name": name}, "data")


def _ask(app: Dash, engine: Engine) -> None:
    @app.callback(
        Output("answered", "data"),
        Output("stripped", "data"),
        Output("strip", "children"),
        Output("strip2", "children"),
        Output("error", "children"),
        Output("headline", "children"),
        Output("effects-table", "children"),
        Output("guesses", "children"),
        Output("pinned", "children"),
        Output("python", "children"),
        *(_plain(name) for name in _CHANGED),
        Input("request", "data"),
        State("stripped", "data"),
        prevent_initial_call=True,
    )
    def ask(search: str, stripped: list[str] | None) -> tuple[Any, ...]:
        asked, wrong = _tried(lambda: Asked.from_search(search))
        if asked is None:
            return search, None, [], [], wrong, *_NOTHING
        strips = _strips(engine, asked, stripped)
        shown, wrong = _tried(lambda: _shown(engine.answer(asked), asked))
        return search, *strips, wrong, *(shown or _NOTHING)


#: headline, table, guesses, pinned, calls and figures where there is no answer
_NOTHING = ("", None, None, None, "", None, None)


def _shown(answer: Answer, asked: Asked) -> tuple[Any, ...]:
    drawn = figures.changed(answer)
    return (
        answer.headline or "Nothing is switched off. Press a part of the stream to see what depends on it.",
        panels.effects_table(answer),
        panels.guesses_table(answer.guesses, edited=answer.effects is not None),
        panels.pinned(answer, asked.pin),
        answer.code,
        *(drawn[name] for name in _CHANGED),
    )


def _strips(engine: Engine, asked: Asked, stripped: list[str] | None) -> tuple[Any, ...]:
    """What the strips now hold, and both strips. One that holds its sentence already stays, and keeps the focus."""
    texts = [asked.prompt, asked.second]
    picked = (asked.position, asked.second_position)
    made = []
    for number, (text, position, act) in enumerate(zip(texts, picked, ("token", "token2"), strict=True)):
        if stripped is not None and stripped[number] == text:
            made.append(no_update)
            continue
        run, _ = _tried(lambda text=text: engine.run(text)) if text else (None, "")
        known = [] if run is None else tokens(run)
        place = len(known) - 1 if position is None and act == "token" else position
        made.append(panels.strip(known, place, act))
    return texts, *made


def _more(app: Dash, engine: Engine) -> None:
    @app.callback(
        *(_plain(name) for name in _STREAM),
        _plain("comparison"),
        Output("comparison-error", "children"),
        Input("answered", "data"),
        prevent_initial_call=True,
    )
    def more(search: str) -> tuple[Any, ...]:
        found, _ = _tried(lambda: _answer_of(engine, search))
        if found is None:  # `ask` has said why
            return None, None, None, ""
        asked, answer = found
        drawn, wrong = _tried(lambda: figures.stream(answer))
        compared = None
        if asked.second and drawn:
            compared, wrong = _tried(lambda: figures.compared(engine.compared(asked), answer))
        return (*((drawn or {}).get(name) for name in _STREAM), compared, wrong)


def _answer_of(engine: Engine, search: str) -> Any:
    asked = Asked.from_search(search)
    return asked, engine.answer(asked)


def _save(app: Dash, engine: Engine) -> None:
    @app.callback(
        Output("download", "data"),
        Input("csv", "n_clicks"),
        State("answered", "data"),
        prevent_initial_call=True,
    )
    def save(_: int, search: str | None) -> Any:
        found, _wrong = _tried(lambda: _answer_of(engine, search or ""))
        return no_update if found is None else dcc.send_string(as_csv(found[1].writes), "streamlens.csv")


def _in_the_browser(app: Dash) -> None:
    # It asks with `set_props`: an Output would close a circle of callbacks, which Dash does not run.
    app.clientside_callback(
        ClientsideFunction("streamlens", "pump"), Output("pumped", "data"), Input("answered", "data")
    )
    app.clientside_callback(
        ClientsideFunction("streamlens", "draw"),
        Output({"kind": "graph", "name": MATCH}, "figure"),
        Output({"kind": "graph", "name": MATCH}, "style"),
        Output({"kind": "box", "name": MATCH}, "hidden"),
        Output({"kind": "said", "name": MATCH}, "aria-label"),
        Input({"kind": "plain", "name": MATCH}, "data"),
        Input("theme", "data"),
        State("themes", "data"),
    )
    app.clientside_callback(
        ClientsideFunction("streamlens", "slid"),
        Output({"kind": "slid", "name": MATCH}, "children"),
        Input({"kind": "slide", "name": MATCH}, "value"),
    )
    app.server.add_url_rule("/alive", "alive", lambda: ("", 204))
    app.clientside_callback(
        ClientsideFunction("streamlens", "pin"),
        Output("clicked", "data"),
        Input({"kind": "graph", "name": "downstream"}, "clickData"),
        State({"kind": "plain", "name": "downstream"}, "data"),
        prevent_initial_call=True,
    )
