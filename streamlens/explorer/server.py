"""Serving the explorer until Ctrl-C.

1. The port is taken before the model is loaded, so that a taken one is said at once.
2. One thread a request, so that a page loads while the model computes; the model answers in turn (`turns.py`).
3. Requests are not logged: addresses hold prompts.
"""

import logging
import secrets
import socket
import socketserver
from typing import Any

from streamlens.errors import InputError
from streamlens.explorer.safety import is_local


def require_allowed(host: str, *, allow_remote: bool) -> str | None:
    """The token that a server bound to `host` asks for; None for one of this machine only.

    Raises:
        InputError: Others could reach it, and that was not asked for.
    """
    if is_local(host):
        return None
    if not allow_remote:
        raise InputError(
            f"Other machines can reach a server on {host or 'every address'}.",
            hint="If they should, say --allow-remote; a token is then asked for.",
        )
    return secrets.token_urlsafe(24)


def take_port(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    Raises:
        InputError: The port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(
            f"Nothing can be served on {host}:{port}: {(error.strerror or str(error)).lower()}.",
            hint="--port 0 takes a free one.",
        ) from error
    except OverflowError as error:
        raise InputError(f"A port is between 0 and 65535; got {port}.") from error


def address(taken: socket.socket, *, token: str | None) -> str:
    """The URL to open."""
    host, port = taken.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(host), str(host))
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def make_server(app: Any, taken: socket.socket) -> Any:
    """A threaded server of a Dash app on a bound socket."""
    from werkzeug.serving import WSGIRequestHandler
    from werkzeug.serving import make_server as make

    class Quiet(WSGIRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    host, port = taken.getsockname()[:2]
    return make(host, port, app.server, threaded=True, fd=taken.fileno(), request_handler=Quiet)


def serve(server: Any) -> None:
    """Serves until it is interrupted, and lets the interrupt through: werkzeug's own loop swallows it."""
    try:
        socketserver.BaseServer.serve_forever(server)
    finally:
        server.server_close()
