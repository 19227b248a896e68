"""Who may ask, and what a browser may load: the rules of a server on somebody's own machine.

1. A page elsewhere can make this browser send requests here. The Host must be one of this server's own names (a name
   that was rebound to 127.0.0.1 is not), the Origin, where there is one, this very server.
2. Beyond this machine a token is asked for: in the address once, afterwards in a cookie that no other site can send.
3. The policy lets a page load scripts, styles and data from here, and nothing from anywhere else.
"""

import hmac
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WILD = ("0.0.0.0", "::", "")
_LARGEST = 1 << 20  # bytes of a request


def is_local(host: str) -> bool:
    """Whether a server bound there can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_names(host: str) -> tuple[str, ...]:
    """The names under which a server bound to `host` is asked for."""
    wild = (socket.gethostname(), socket.getfqdn()) if host in _WILD else ()
    return tuple(dict.fromkeys((*LOOPBACK, *wild) if is_local(host) or wild else (host, *LOOPBACK)))


def is_own(asked: str, host: str, port: int) -> bool:
    """Whether a Host header names a server bound to `host` and `port`.

    Bound to every address, it also answers to any address in figures: only names can be rebound.
    """
    name, own_port = split_host(asked)
    if own_port != port:
        return False
    if name.lower() in (known.lower() for known in own_names(host)):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return host in _WILD


def split_host(asked: str) -> tuple[str, int | None]:
    """Name and port of a Host header; port 80 where it names none, None where it is no number."""
    name, colon, port = asked.rpartition(":")
    if not colon or asked.endswith("]"):
        name, port = asked, "80"
    return name.strip("[]"), int(port) if port.isascii() and port.isdigit() else None


def policy(scripts: Sequence[str]) -> str:
    """The content security policy; `scripts` are the hashes of the page's inline scripts."""
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *scripts]),
        "style-src": "'self' 'unsafe-inline'",  # plotly and Dash style elements
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def guard(server: Any, *, host: str, port: int, scripts: Sequence[str], token: str | None = None) -> None:
    """Puts the rules on a Flask server.

    Args:
        server: The Flask server.
        host: Where it is bound.
        port: Its port.
        scripts: Hashes of the page's inline scripts.
        token: What has to be known to ask; None for a server of this machine only.
    """
    from flask import redirect, request

    cookie = f"streamlens-{port}"
    headers = {
        "Content-Security-Policy": policy(scripts),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    server.config["MAX_CONTENT_LENGTH"] = _LARGEST

    @server.before_request
    def allowed() -> Any:
        asked = request.headers.get("Host", "")
        if not is_own(asked, host, port):
            return "This server answers to its own name only.\n", 403
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{asked}":
            return "This server answers to its own pages only.\n", 403
        if token is None:
            return None
        if hmac.compare_digest(request.args.get("token", "").encode(), token.encode()):
            made = redirect("/")
            made.set_cookie(cookie, token, httponly=True, samesite="Strict")
            return made
        if not hmac.compare_digest(request.cookies.get(cookie, "").encode(), token.encode()):
            return "Open the address that was printed at the start: it holds the token.\n", 403
        return None

    @server.after_request
    def marked(response: Any) -> Any:
        response.headers.update(headers)
        return response
