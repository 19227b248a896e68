"""The zoo is what it says: every entry builds, runs, repeats itself, and stands off its defaults."""

import copy
import inspect

import pytest
import torch
import transformers
from torch import nn

from zoo import ENTRIES, SKIPPED, Entry, build, inputs, off_default

pytestmark = pytest.mark.usefixtures("quiet_transformers")

KINDS = {"decoder", "encoder", "encoder-decoder"}
WIRINGS = {
    "pre-norm",
    "parallel",
    "sandwich",
    "branch-norm",
    "multiplier",
    "residual-inside",
    "moe",
    "post-norm",
    "cross-attention",
    "mixer",
    "hybrid",
    "stream-scalar",
    "stream-scale",
    "several-streams",
}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entry(entry: Entry) -> None:
    model = build(entry)
    assert not model.training

    first = _run(model, entry)
    assert first.shape[:2] == ((2, 5) if entry.kind == "encoder-decoder" else (2, 7))
    assert torch.isfinite(first).all()
    assert torch.equal(first, _run(build(entry), entry)), "two builds differ"

    # Collapsed: the same vector at every position would pass for a stream that no branch writes to.
    assert first.std() > 0.05
    assert (first - first.mean(dim=(0, 1))).norm() > 0.05 * first.norm()

    constant = [name for name, tensor in model.named_parameters() if tensor.numel() > 1 and _constant(tensor)]
    assert not constant, "still at a constant"


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gemma4_text", "bert", "t5"])
def test_off_default_moves_gains_and_biases_and_keeps_ties(name: str) -> None:
    model = build(name)
    again = copy.deepcopy(model)
    for tensor in [*again.parameters(), *again.buffers()]:
        if tensor.ndim == 1 and tensor.is_floating_point() and tensor.requires_grad:
            nn.init.ones_(tensor)
    off_default(again, seed=1)
    moved = [tensor for tensor in again.parameters() if tensor.ndim == 1]
    assert moved
    assert not any(_constant(tensor) for tensor in moved)
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight


def test_layer_scalars_are_moved_though_they_are_buffers() -> None:
    model = build("gemma4_text")
    scalars = [buffer.item() for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
    assert len(scalars) == 4
    assert all(0.6 <= scalar <= 0.8 for scalar in scalars)


def test_a_build_leaves_the_random_state_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build("gpt2")
    assert torch.equal(torch.rand(3), expected)


def test_the_precision_is_a_cast() -> None:
    single, double = build("gpt2"), build("gpt2", torch.float64)
    for one, other in zip(single.parameters(), double.parameters(), strict=True):
        assert torch.equal(one.double(), other)


def test_entries_are_labelled() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    assert not set(names) & set(SKIPPED)
    assert all(entry.kind in KINDS for entry in ENTRIES)
    words = {word for entry in ENTRIES for word in entry.wiring.split(", ")}
    assert words == WIRINGS
    assert all((entry.streams > 1) == ("several-streams" in entry.wiring) for entry in ENTRIES)


def test_at_least_200_architectures_have_modelling_files_of_their_own() -> None:
    files = set()
    for entry in ENTRIES:
        config = transformers.CONFIG_MAPPING[entry.model_type]
        mapping = getattr(transformers, entry.auto)
        model = mapping._model_mapping[config] if entry.auto.startswith("Auto") else mapping
        files.add(inspect.getmodule(model).__name__)
    assert len(files) >= 200


def _run(model: transformers.PreTrainedModel, entry: Entry) -> torch.Tensor:
    """Logits [batch, time, vocabulary], or the final stream where the model has no head."""
    with torch.no_grad():
        output = model(**inputs(entry))
    return output.logits if "logits" in output else output.last_hidden_state


def _constant(tensor: torch.Tensor) -> bool:
    return bool((tensor == tensor.flatten()[0]).all())
