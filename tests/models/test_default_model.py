"""The default model, as a user has it: fetched and converted once a machine, then only read."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from streamlens.models import store
from streamlens.models.pull import pull
from streamlens.models.quiet import quiet
from streamlens.models.registry import DEFAULT_MODEL, find_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder():
    return pull(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def model(folder):
    with quiet():
        return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_it_is_whole(folder):
    assert store.is_complete(DEFAULT_MODEL)
    assert folder == store.model_folder(DEFAULT_MODEL)


def test_it_is_a_plain_float32_llama_with_tied_embeddings(model):
    assert model.dtype == torch.float32
    assert model.config.model_type == find_model(DEFAULT_MODEL).architecture
    assert not hasattr(model.config, "quantization_config")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(weight.numel() for weight in model.parameters()) == find_model(DEFAULT_MODEL).parameters


def test_its_tokens(tokenizer, bank):
    ids = tokenizer(bank)["input_ids"]
    assert len(ids) == 10  # no BOS
    assert ids[-1] == 5461
    assert tokenizer.decode(ids[-1:]) == " bank"
    assert tokenizer.decode(ids) == bank


@pytest.mark.parametrize(
    ("prompt", "difference"),
    [
        ("After crossing the river, she rested on the bank", 3.742),
        ("After cashing the check, she waited at the bank", -6.249),
    ],
)
def test_its_logits(model, tokenizer, prompt, difference):
    river, money = tokenizer(" river")["input_ids"][0], tokenizer(" money")["input_ids"][0]
    with torch.inference_mode():
        logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
    assert float(logits[river] - logits[money]) == pytest.approx(difference, abs=1e-3)
