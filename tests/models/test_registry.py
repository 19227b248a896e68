"""The registry names models, knows their wheels, and helps who mistypes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import streamlens
from streamlens.errors import ModelError
from streamlens.models.registry import DEFAULT_MODEL, MODELS, find_model


def test_the_named_models():
    assert list(MODELS) == ["smollm2-135m", "minilm-l6"]
    assert DEFAULT_MODEL == "smollm2-135m"
    assert all(name == spec.name for name, spec in MODELS.items())


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_a_wheel_is_pinned(spec):
    assert re.fullmatch(r"[a-z0-9-]+==\d+\.\d+\.\d+", spec.wheel.requirement)
    assert re.fullmatch(r"[0-9a-f]{64}", spec.wheel.sha256)
    assert spec.space > spec.wheel.size


def test_a_mistyped_name_gets_the_nearest_and_all():
    with pytest.raises(ModelError, match="got 'SmolLM2'") as caught:
        find_model("SmolLM2")
    assert caught.value.hint == "Did you mean smollm2-135m? The names are: smollm2-135m, minilm-l6."


def test_a_name_like_no_other_gets_all():
    with pytest.raises(ModelError) as caught:
        find_model("../../etc")
    assert caught.value.hint == "The names are: smollm2-135m, minilm-l6."


def test_listing_and_fetching_import_no_torch():
    script = (
        "import sys, streamlens.models.pull;print('torch' in sys.modules, 'streamlens.models.fetch' in sys.modules)"
    )
    root = Path(streamlens.__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]
