"""The explorer: a page on this machine on which every sublayer is a switch, and every number adds up.

1. `state.py`: what a tab shows is its URL, prompt, position, reader and edits. The server keeps nothing of a tab.
2. `engine.py`: one model, one tab at a time, the answer to a state, and a bounded cache of answers.
3. `layout.py`, `panels.py`, `assets/`: the page. `app.py` joins it to the engine through Dash callbacks.
4. `lab_page.py`, `lab_live.py`, `lab_callbacks.py`: the same for the lab's examples.
5. `safety.py`, `server.py`: who may ask, what a browser may load, and serving until Ctrl-C.

Dash is an extra, and imported only in this folder.
"""

from streamlens.errors import InputError

__all__ = ["require_dash"]


def require_dash() -> None:
    """Says how to get Dash where it is missing.

    Raises:
        InputError: It is not installed, or too old.
    """
    fix = 'pip install "streamlens[app]"'
    try:
        import dash
    except ImportError as error:
        raise InputError("The explorer needs Dash, which is not installed.", hint=fix) from error
    if int(dash.__version__.partition(".")[0]) < 4:
        raise InputError(f"The explorer needs Dash 4; {dash.__version__} is installed.", hint=fix)
