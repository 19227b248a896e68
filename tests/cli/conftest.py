"""Running the command line in this process, on the one default model of the session."""

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Runs one command line; standard output and standard error are kept apart."""
    from streamlens.cli import main

    def run(*args: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, list(args), input=stdin)

    return run


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, default_model) -> None:
    """The command line takes the session's model instead of loading it each time."""
    monkeypatch.setattr("streamlens.models.load.load", lambda *_, **__: default_model)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test: what is wrong has to be said before."""

    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("streamlens.models.load.load", load)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output counts as a terminal with colours, 100 columns wide."""
    monkeypatch.setattr("streamlens.cli.output._is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
