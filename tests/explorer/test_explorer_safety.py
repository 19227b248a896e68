"""Who may ask: this machine's own pages, under the server's own names; others need a token."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from flask import Flask

from streamlens.errors import InputError
from streamlens.explorer import require_dash
from streamlens.explorer.safety import guard, is_own, policy, split_host
from streamlens.explorer.server import address, require_allowed, take_port


def client(*, host: str = "127.0.0.1", token: str | None = None):
    server = Flask("guarded")
    server.add_url_rule("/", "page", lambda: "here", methods=["GET", "POST"])
    guard(server, host=host, port=8050, scripts=["'sha256-abc'"], token=token)
    return server.test_client(use_cookies=False)


@pytest.mark.parametrize("name", ["127.0.0.1:8050", "localhost:8050", "LOCALHOST:8050", "[::1]:8050"])
def test_it_answers_to_its_own_names(name: str) -> None:
    assert client().get("/", headers={"Host": name}).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["evil.example:8050", "127.0.0.1:8051", "127.0.0.1", "127.0.0.1.evil.example:8050", "192.168.1.7:8050", ":8050"],
)
def test_a_foreign_host_is_forbidden(name: str) -> None:
    assert client().get("/", headers={"Host": name}).status_code == 403


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8050", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_forbidden(method: str, origin: str) -> None:
    asked = client().open("/", method=method, headers={"Host": "127.0.0.1:8050", "Origin": origin})
    assert asked.status_code == 403
    own = {"Host": "127.0.0.1:8050", "Origin": "http://127.0.0.1:8050"}
    assert client().open("/", method=method, headers=own).status_code == 200


def test_every_answer_carries_the_policy() -> None:
    for host in ("127.0.0.1:8050", "evil.example"):
        answer = client().get("/", headers={"Host": host})
        said = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in said
        assert "script-src 'self' 'sha256-abc';" in said
        assert "http" not in said
        assert answer.headers["X-Frame-Options"] == "DENY"
    assert "unsafe-eval" not in policy([])
    assert "'unsafe-inline'" not in policy([]).partition("script-src")[2].partition(";")[0]


def test_bound_to_every_address_it_answers_to_figures_but_not_to_foreign_names() -> None:
    assert is_own("192.168.1.7:8050", "0.0.0.0", 8050)
    assert is_own(f"{socket.gethostname()}:8050", "0.0.0.0", 8050)
    assert not is_own("rebound.example:8050", "0.0.0.0", 8050)
    assert split_host("[::1]:8050") == ("::1", 8050)
    assert split_host("[::1]") == ("::1", 80)
    assert split_host("a:b") == ("a", None)


def test_beyond_this_machine_a_token_is_needed_and_then_kept_in_a_cookie() -> None:
    asker, own = client(host="192.168.1.7", token="sesame"), {"Host": "192.168.1.7:8050"}
    assert asker.get("/", headers=own).status_code == 403
    assert asker.get("/?token=wrong", headers=own).status_code == 403
    assert asker.get("/?token=sesamé", headers=own).status_code == 403
    let_in = asker.get("/?token=sesame", headers=own)
    assert (let_in.status_code, let_in.headers["Location"]) == (302, "/")
    cookie = let_in.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    kept = {**own, "Cookie": cookie.partition(";")[0]}
    assert client(host="192.168.1.7", token="sesame").get("/", headers=kept).status_code == 200
    assert asker.get("/", headers={**kept, "Host": "evil.example:8050"}).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", ""])
def test_other_machines_have_to_be_asked_for(host: str) -> None:
    with pytest.raises(InputError, match="Other machines can reach a server on"):
        require_allowed(host, allow_remote=False)
    token = require_allowed(host, allow_remote=True)
    assert token is not None
    assert len(token) >= 32
    assert token != require_allowed(host, allow_remote=True)


def test_this_machine_needs_no_token() -> None:
    assert [require_allowed(host, allow_remote=False) for host in ("127.0.0.1", "localhost", "::1")] == [None] * 3


def test_a_taken_port_is_said() -> None:
    with take_port("127.0.0.1", 0) as taken:
        host, port = taken.getsockname()
        assert host == "127.0.0.1"
        assert address(taken, token=None) == f"http://127.0.0.1:{port}/"
        assert address(taken, token="t").endswith("/?token=t")
        with pytest.raises(InputError, match=rf"Nothing can be served on 127.0.0.1:{port}: address already in use"):
            take_port("127.0.0.1", port)


def test_without_dash_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dash", None)
    with pytest.raises(InputError, match=r'not installed. pip install "streamlens\[app\]"'):
        require_dash()


@pytest.mark.model
def test_from_the_command_line_to_ctrl_c() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "streamlens", "explore", "--port", "0", "--prompt", "the bank"]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert ran.stdout is not None
    printed = ran.stdout.readline()
    assert printed.startswith("http://127.0.0.1:")
    port = int(printed.rstrip("/\n").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as asked:
        asked.sendall(f"GET /alive HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        assert asked.recv(1024).startswith(b"HTTP/1.1 204")
    assert listening(port) == {"127.0.0.1"}
    ran.send_signal(signal.SIGINT)
    stdout, stderr = ran.communicate(timeout=60)
    assert ran.returncode == 130
    assert stdout == ""
    assert list(filter(None, stderr.splitlines()))[-2:] == [
        "Open this address in a browser. Ctrl-C ends the explorer.",
        "interrupted",
    ]


def listening(port: int) -> set[str]:
    """The addresses on which a port of this machine is listened to."""
    import psutil

    found = psutil.net_connections(kind="tcp")
    return {entry.laddr.ip for entry in found if entry.status == psutil.CONN_LISTEN and entry.laddr.port == port}


def test_remote_without_the_flag_is_refused_before_a_model_is_loaded() -> None:
    command = [sys.executable, "-m", "streamlens", "explore", "--host", "0.0.0.0"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == [
        "error: Other machines can reach a server on 0.0.0.0.",
        "hint: If they should, say --allow-remote; a token is then asked for.",
    ]
