"""The explorer served from this process, and a browser that looks at it."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from explorer_tabs import Tab
from page_visit import browser
from streamlens.explorer.app import make_app
from streamlens.explorer.engine import Engine
from streamlens.explorer.server import address, make_server, take_port
from streamlens.explorer.state import State

__all__ = ["browser"]  # a fixture


@pytest.fixture(scope="session")
def engine(default_model) -> Engine:
    return Engine(default_model, name="smollm2-135m")


@pytest.fixture(scope="session")
def explorer(engine: Engine, bank: str) -> Iterator[str]:
    """The address of a running explorer that opens with the bank sentence."""
    with take_port("127.0.0.1", 0) as taken:
        start = State(prompt=bank, wanted=" river", against=" money")
        app = make_app(engine, start, host="127.0.0.1", port=taken.getsockname()[1])
        server = make_server(app, taken)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield address(taken, token=None)
        server.shutdown()
        thread.join(10)


@pytest.fixture
def visit(browser: Any, explorer: str) -> Iterator[Callable[..., Tab]]:
    """Opens tabs; whatever a test does in them, nothing may leave and nothing may go wrong."""
    tabs: list[Tab] = []

    def opened(path: str = "", *, width: int = 1400, scheme: str = "light") -> Tab:
        tabs.append(Tab(browser, explorer, path, width=width, scheme=scheme))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.context.close()
        assert tab.outside == []
        assert tab.faults == []
