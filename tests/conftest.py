"""What every test runs under, and the one real model they share."""

import os
from collections.abc import Iterator

import hypothesis
import pytest
from jaxtyping import install_import_hook

# Before torch is imported: with one thread each, xdist's workers do not fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test may ask a hub: what a test needs is on disk, or built by it.
os.environ["HF_HUB_OFFLINE"] = "1"

# Under pytest every annotated signature and dataclass field of the package is checked, shapes included.
install_import_hook("streamlens", "beartype.beartype")

# The same examples on every run, and no deadline: the machine is shared, so a slow example is not a bug.
hypothesis.settings.register_profile("streamlens", deadline=None, derandomize=True)
hypothesis.settings.load_profile("streamlens")


@pytest.fixture(scope="module")
def quiet_transformers() -> Iterator[None]:
    """Some architectures tell at every call that a faster kernel is missing."""
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@pytest.fixture(scope="session")
def default_model():
    """The handle of the default model (about 3 s, once per worker). Never edit it."""
    import streamlens

    return streamlens.load("smollm2-135m")


@pytest.fixture(scope="session")
def bank() -> str:
    """The sentence of every worked example."""
    return "After crossing the river, she rested on the bank"
