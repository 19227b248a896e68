"""Beside transformer-lens: the same writes on the default model, and bridges in both directions.

A bridge runs eager attention, the handle whatever the model came with: the two differ by float32 roundings.
"""

import copy

import pytest
import torch

import streamlens
import zoo
from closeness import assert_close
from model_state import state_of
from streamlens import Reader, decompose, read
from streamlens.sites import Site

pytestmark = [
    pytest.mark.model,
    # transformer-lens and what it imports; none of it is ours to mend
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def ledger(default_model, bank):
    return decompose(default_model, bank)


@pytest.fixture(scope="module")
def bridge(default_model):
    return default_model.bridge()


@pytest.fixture(scope="module")
def cached(bridge, ledger):
    with torch.no_grad():
        return bridge.run_with_cache(ledger.token_ids)


def hook_of(site: Site) -> str:
    return "hook_embed" if site.kind == "embed" else f"blocks.{site.layer}.hook_{site.kind}_out"


def test_every_sublayer_write_agrees(ledger, cached):
    """To 1e-4 of the write at each token; measured: 6e-6."""
    _, cache = cached
    assert len(ledger.sites) == 61
    for write, site in zip(ledger.writes, ledger.sites, strict=True):
        distance = (write - cache[hook_of(site)]).norm(dim=-1) / write.norm(dim=-1)
        assert float(distance.max()) < 1e-4, site.label


@pytest.mark.parametrize("layer", [0, 1, 15, 29])
def test_the_stream_agrees_in_the_middle_too(ledger, cached, layer):
    _, cache = cached
    assert_close(ledger.at(f"L{layer}.attn").stream, cache[f"blocks.{layer}.hook_resid_mid"])
    assert_close(ledger.at(f"{layer}_mlp_out").stream, cache[f"blocks.{layer}.hook_resid_post"])


def test_the_logits_agree(ledger, cached):
    logits, _ = cached
    assert_close(ledger.logits, logits)


def test_its_spellings_name_our_writes(ledger):
    for site in ledger.sites:
        assert ledger.at(hook_of(site)).labels[-1] == site.label


def test_a_bridge_leaves_the_model_as_it_was(default_model, bank):
    ids = default_model.tokenizer(bank, return_tensors="pt")["input_ids"]
    before, texts = state_of(default_model.model), tokenizer_state(default_model.tokenizer)
    with torch.no_grad():
        logits = default_model.model(ids).logits
        default_model.bridge()
        assert torch.equal(default_model.model(ids).logits, logits)
    assert state_of(default_model.model) == before
    assert tokenizer_state(default_model.tokenizer) == texts
    assert default_model.model.config._attn_implementation == "sdpa"
    assert decompose(default_model, bank).in_order == 0.0


def tokenizer_state(tokenizer) -> tuple:
    return tokenizer.padding_side, tokenizer.special_tokens_map, tokenizer("on the bank")["input_ids"]


def test_a_bridge_shares_the_weights(default_model, bridge):
    own = {parameter.data_ptr() for parameter in default_model.model.parameters()}
    assert {parameter.data_ptr() for parameter in bridge.original_model.parameters()} <= own


def test_load_takes_a_bridge(bridge, ledger):
    handle = streamlens.load(bridge)
    assert handle.origin == "bridge"
    assert handle.model is bridge.original_model
    found = decompose(handle, ledger.token_ids)
    assert found.labels == ledger.labels
    assert found.in_order == 0.0
    assert_close(found.writes, ledger.writes)
    reader = Reader.logit_diff(handle, " river", " money")
    assert float(read(found, reader).total[0, -1, 0]) == pytest.approx(3.742, abs=1e-3)


def test_a_bridges_tokenizer_puts_a_bos_in_front_and_that_is_said(bridge, ledger, bank):
    """transformer-lens configures it so; the tokenizer decides, and the result names it."""
    found = decompose(streamlens.load(bridge), bank)
    assert found.token_ids.tolist() == [[1, *ledger.token_ids[0].tolist()]]
    assert found.provenance["bos"] == "tokenizer"
    assert ledger.provenance["bos"] == "none"


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_bridge_booted_by_the_user(default_model, name):
    """On a model of theirs; the ledger is the one of the plain model."""
    from transformer_lens.model_bridge import TransformerBridge

    plain = decompose(streamlens.load(zoo.build(name)), [[11, 12, 13, 14]])
    booted = TransformerBridge.boot_transformers(
        f"tiny-{name}", hf_model=zoo.build(name), tokenizer=copy.deepcopy(default_model.tokenizer)
    )
    handle = streamlens.load(booted)
    ledger = decompose(handle, [[11, 12, 13, 14]])
    assert ledger.in_order == 0.0
    assert_close(ledger.writes, plain.writes)
    assert ledger.labels == plain.labels
    assert_close(read(ledger, Reader.logits(handle, [5, 6])).total, plain.logits[..., [5, 6]], like=torch.float32)


def test_a_model_without_a_tokenizer_can_be_bridged_too():
    """Booting asks the hub for a tokenizer where none is given; no network is needed for a live model."""
    bridge = streamlens.load(zoo.build("llama")).bridge()
    assert bridge.original_model is not None
