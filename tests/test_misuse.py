"""Whatever is asked wrongly is refused in one sentence. Asked in a program of its own, where beartype is not there."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import misuse
import streamlens
from public_calls import PROMPT, tiny
from streamlens import arguments, decompose, lab, plots, read
from streamlens.batch import __all__ as batch_names
from streamlens.errors import InputError

SCRIPT = Path(misuse.__file__)


@pytest.fixture(scope="module")
def found() -> dict:
    path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_but_our_errors_comes_out(found):
    assert found["complaints"] == {}
    assert found["asked"] > 4000


def test_every_public_name_is_asked(tmp_path):
    asked = {name.partition(".")[0] for name in misuse.right(tmp_path)}
    assert set(streamlens.__all__) == asked | misuse.CLASSES
    inside = set(misuse.right(tmp_path))
    assert {f"plots.{name}" for name in plots.__all__} <= inside
    assert {f"batch.{name}" for name in batch_names if name[0].islower()} <= inside
    assert {f"lab.{name}" for name in lab.__all__ if name[0].islower()} <= inside


class TestWhatIsComplainedOf:
    """Positive controls."""

    @pytest.mark.parametrize("error", [KeyError, IndexError, AttributeError, RuntimeError, TypeError])
    def test_an_error_of_pythons_or_torchs(self, error):
        def call():
            raise error("inside")

        assert misuse.complaint(call).startswith(error.__name__)

    def test_an_answer_where_none_is_right(self):
        assert misuse.complaint(lambda: float("nan"), must_refuse=True) == "answered with a float"

    def test_an_error_that_says_nothing(self):
        def call():
            raise InputError("wrong")

        assert misuse.complaint(call) == "says only 'wrong'"

    def test_not_a_sentence(self):
        def call():
            raise InputError("A prompt has at least one token; got none.")

        assert misuse.complaint(call) is None


class TestTheSentence:
    def test_names_the_argument_what_it_is_and_what_was_given(self):
        subject = tiny()
        with pytest.raises(InputError) as refused:
            decompose(subject.model.model, PROMPT)
        assert refused.value.message == "model of decompose() is a ModelHandle; got a LlamaForCausalLM."
        assert refused.value.hint == "streamlens.load(...) gives a model."
        with pytest.raises(InputError, match=r"^reader of read\(\) is a Reader; got str ' river'\. "):
            read(decompose(subject.model, PROMPT), " river")
        with pytest.raises(
            InputError, match=r"^top of decompose\(\) is a whole number or None; got True or False|got bool"
        ):
            decompose(subject.model, PROMPT, level="neuron", top=True)


@pytest.mark.parametrize(
    ("value", "kind", "whether"),
    [
        (1, int, True),
        (True, int, False),
        (1, float, True),
        ("1", float, False),
        (torch.zeros(()), float, False),
        ("text", str | Sequence[str], True),
        ("text", Sequence[str], True),
        ("text", Sequence[int], False),
        ([1, "a"], Sequence[int | str], True),
        ([1, None], Sequence[int | str], False),
        ((1, "a"), tuple[int | str, int | str], True),
        ((1,), tuple[int, int], False),
        ((1, 2, 3), tuple[int, ...], True),
        (None, int | None, True),
    ],
)
def test_what_fits(value, kind, whether):
    assert arguments.fits(value, kind) is whether
