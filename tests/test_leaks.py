"""After many calls there are no more hooks, tensors or objects than after a few. `scripts/leaks.py` measures memory."""

import importlib.util
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from left_behind import Left, growth, hooks_on
from public_calls import CALLS, OTHER, PROMPT, Subject, tiny
from streamlens import ablate, decompose
from streamlens.errors import InputError, WiringError

SCRIPT = Path(__file__).parents[1] / "scripts" / "leaks.py"
CALLS_EACH = 10
#: objects that torch, pandas and the interpreter may keep for themselves; a leak of one object a call is over it
SLACK = CALLS_EACH - 4


@pytest.fixture(scope="module")
def subject() -> Subject:
    return tiny()


def nothing_left(left: Left) -> bool:
    return left.hooks == 0 and left.tensors <= 0 and left.objects <= SLACK


@pytest.mark.parametrize("name", list(CALLS))
def test_nothing_is_left_by(subject, name):
    left = growth(subject.model.model, lambda: CALLS[name](subject), calls=CALLS_EACH, warm=4)
    assert nothing_left(left), left


def test_nothing_is_left_by_a_model_that_raises(subject):
    module = subject.model.model

    def breaks(*_):
        raise RuntimeError("midway")

    own = module.model.layers[1].register_forward_hook(breaks)

    def call() -> None:
        for name in ("decompose, sources", "ablate", "ablate, an edge", "sweep", "backward", "perturb", "lesion"):
            with pytest.raises((RuntimeError, WiringError), match="midway"):
                CALLS[name](subject)

    left = growth(module, call, calls=CALLS_EACH, warm=4)
    own.remove()
    assert nothing_left(left), left


def test_nothing_is_left_by_a_refusal(subject):
    def call() -> None:
        for prompt, edits in ((PROMPT, "L9.attn"), (PROMPT, "L1.attn@money"), ([], "L1.attn"), (OTHER, [])):
            with pytest.raises(InputError):
                ablate(subject.model, prompt, edits)

    left = growth(subject.model.model, call, calls=CALLS_EACH, warm=4)
    assert nothing_left(left), left


def test_nothing_is_left_by_a_result_that_is_let_go(subject):
    """No cycle holds a ledger until the collector comes."""
    ledger = decompose(subject.model, PROMPT)
    gone = weakref.ref(ledger.stream)
    del ledger
    assert gone() is None


class TestTheCountsSeeALeak:
    """Positive controls."""

    def test_of_a_hook(self, subject):
        module = subject.model.model
        owned = []
        left = growth(module, lambda: owned.append(module.lm_head.register_forward_pre_hook(print)), calls=CALLS_EACH)
        assert left.hooks == CALLS_EACH
        assert not nothing_left(left)
        for handle in owned:
            handle.remove()

    @pytest.mark.parametrize(
        "kind",
        ["register_forward_hook", "register_full_backward_hook", "register_state_dict_post_hook"],
    )
    def test_of_a_hook_of_any_kind(self, subject, kind):
        module = subject.model.model.lm_head
        before = hooks_on(subject.model.model)
        handle = getattr(module, kind)(lambda *_: None)
        assert hooks_on(subject.model.model) > before
        handle.remove()

    def test_of_a_ledger(self, subject):
        kept = []
        left = growth(subject.model.model, lambda: kept.append(decompose(subject.model, PROMPT)), calls=CALLS_EACH)
        assert left.tensors > CALLS_EACH
        assert not nothing_left(left)

    def test_of_one_small_object(self, subject):
        kept = []

        def call() -> None:
            decompose(subject.model, PROMPT)
            kept.append([torch])

        left = growth(subject.model.model, call, calls=CALLS_EACH)
        assert left.tensors == 0
        assert not nothing_left(left)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's account is Linux's")
class TestTheScript:
    def test_measures_in_a_process_of_its_own(self, tmp_path):
        command = [sys.executable, str(SCRIPT), "--calls", "20", "--warm", "10", "--only", "replay", "--no-default"]
        out = tmp_path / "leaks.json"
        done = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "| replay" in done.stdout
        [row] = json.loads(out.read_text())["rows"]
        assert (row["hooks"], row["tensors"], row["counted"]) == (0, 0, 10)

    def test_tells_a_leak(self):
        """A positive control: every result is kept."""
        spec = importlib.util.spec_from_file_location("leaks", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        row = script.measured("replay", "tiny llama", calls=20, warm=10, plant=True)
        assert row["tensors"] > 10
        assert script.leaks(row)
        flat = {"counted": 900, "hooks": 0, "tensors": 0, "objects": 3, "half": 300.0, "after": 300.5}
        assert not script.leaks(flat)
        for worse in ({"after": 301.5}, {"hooks": 1}, {"tensors": 1}, {"objects": 900}):
            assert script.leaks(flat | worse)
