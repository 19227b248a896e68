"""The tiny model of these tests, as a folder and as a handle."""

from pathlib import Path

import pytest

import streamlens
from tiny_batch import save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny llama and its tokenizer."""
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture(scope="session")
def handle(tiny: Path):
    return streamlens.load(tiny)
