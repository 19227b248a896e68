"""Nothing is left behind: whatever happens in a call, the model is afterwards what it was before."""

from collections import Counter

import pytest
import torch
from torch import nn

import streamlens
import zoo
from model_state import hooks_of, state_of
from streamlens import Reader, decompose, logit_lens, read
from streamlens.errors import ClosureError, InputError, WiringError
from streamlens.hooks.scope import HookScope

IDS = [[11, 12, 13, 14], [21, 22, 23, 24]]


@pytest.fixture
def model():
    return zoo.build("llama")


def in_mixed_modes(model: nn.Module) -> nn.Module:
    """Training here, eval there, some weights frozen: what a user in the middle of fine-tuning has."""
    model.train()
    model.model.layers[1].eval()
    model.model.layers[2].mlp.training = False
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad_(False)
    return model


class Broken(RuntimeError):
    """What the tests' own modules and hooks raise."""


def breaks(*_args, **_kwargs):
    raise Broken("midway")


class TestTheModelIsAsItWas:
    def test_after_load(self, model):
        before = state_of(in_mixed_modes(model))
        streamlens.load(model)
        assert state_of(model) == before

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_after_the_whole_path(self, model, attention):
        model.set_attn_implementation(attention)
        before = state_of(in_mixed_modes(model))
        handle = streamlens.load(model)
        ledger = decompose(handle, IDS)
        readout = read(ledger, Reader.logits(handle, [5, 6]))
        frames = [ledger.to_frame(), readout.to_frame(), logit_lens(ledger, handle).to_frame()]
        assert all(len(frame) for frame in frames)
        assert handle.model is model
        assert state_of(model) == before
        assert {before["attention"][name] for name in ("", "model.layers.0.self_attn")} == {attention}

    @pytest.mark.parametrize(
        ("prompt", "options"),
        [
            (IDS, {"positions": 9}),
            (IDS, {"positions": "bank"}),
            (IDS, {"prepend_bos": True}),
            (IDS, {"attention_mask": torch.ones(1, 1)}),
            ("text without a tokenizer", {}),
        ],
    )
    def test_after_a_users_error(self, model, prompt, options):
        handle = streamlens.load(in_mixed_modes(model))
        before = state_of(model)
        with pytest.raises(InputError):
            decompose(handle, prompt, **options)
        assert state_of(model) == before

    @pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
    @pytest.mark.parametrize("place", ["embed_tokens", "layers.1.mlp.up_proj", "layers.2", "norm"])
    def test_after_a_model_that_raises_midway(self, model, place, error):
        handle = streamlens.load(in_mixed_modes(model))
        module = model.model.get_submodule(place)
        forward = module.forward

        def raises(*_args, **_kwargs):
            raise error("midway")

        module.forward = raises
        before = state_of(model)
        with pytest.raises(error, match="midway"):
            decompose(handle, IDS)
        assert state_of(model) == before
        with pytest.raises(error, match="midway"):
            streamlens.load(model)
        assert state_of(model) == before

        module.forward = forward
        assert decompose(handle, IDS).in_order == 0.0

    def test_after_an_argument_that_the_forward_cannot_use(self, model):
        handle = streamlens.load(in_mixed_modes(model))
        before = state_of(model)
        with pytest.raises(RuntimeError):
            decompose(handle, IDS, position_ids=torch.arange(99)[None])
        assert state_of(model) == before

    def test_the_comparison_sees_each_kind_of_change(self, model):
        """A positive control: what the tests above would miss, they would miss here."""
        seen = set()
        changes = [
            lambda: model.model.layers[0].mlp.register_forward_hook(print),
            lambda: model.model.norm.register_forward_pre_hook(print),
            lambda: model.model.layers[0].train(),
            lambda: model.lm_head.weight.requires_grad_(False),
            lambda: model.lm_head.weight.data.add_(1e-6),
            lambda: model.set_attn_implementation("eager"),
            lambda: setattr(model.model.norm, "forward", breaks),
            lambda: model.lm_head.register_buffer("extra", torch.zeros(1)),
        ]
        for change in changes:
            before = state_of(model)
            change()
            after = state_of(model)
            seen |= {key for key in before if before[key] != after[key]}
        assert seen >= {"hooks", "training", "requires_grad", "bits", "attention", "forwards", "state dict"}


class TestAUserWhoHasHooksToo:
    def test_they_are_called_in_their_order_and_still_stand_afterwards(self, model):
        calls = []
        mlp = model.model.layers[1].mlp
        mlp.register_forward_pre_hook(lambda *_: calls.append("pre 1"))
        mlp.register_forward_pre_hook(lambda *_: calls.append("pre 0"), prepend=True)
        mlp.register_forward_hook(lambda *_: calls.append("after 1"))
        mlp.register_forward_hook(lambda *_, **__: calls.append("after 2"), with_kwargs=True)
        mlp.register_forward_hook(lambda *_: calls.append("after 0"), prepend=True)
        expected = ["pre 0", "pre 1", "after 0", "after 1", "after 2"]

        handle = streamlens.load(model)
        loading = len(calls)
        assert calls == expected * (loading // len(expected))
        before = hooks_of(mlp)
        decompose(handle, IDS)
        assert calls[loading:] == expected
        assert hooks_of(mlp) == before

        calls.clear()
        model(torch.tensor(IDS))
        assert calls == expected

    def test_they_are_counted_once_a_forward_even_when_it_raises(self, model):
        counts = Counter()
        for name, module in model.named_modules():
            module.register_forward_hook(lambda *_, name=name: counts.update([name]))
        handle = streamlens.load(model)
        model.model.layers[2].register_forward_hook(breaks)
        counts.clear()
        before = state_of(model)
        with pytest.raises(Broken):
            decompose(handle, IDS)
        assert counts["model.layers.1"] == counts["model.layers.2"] == 1
        assert counts["model.norm"] == 0
        assert state_of(model) == before

    def test_one_that_was_removed_inside_the_call_stays_removed(self, model):
        handle = streamlens.load(model)
        own = model.model.layers[0].register_forward_hook(lambda *_: own.remove())
        decompose(handle, IDS)
        assert not hooks_of(model.model.layers[0])["_forward_hooks"]

    def test_one_that_changes_a_write_is_in_the_books(self, model):
        """A steering hook on a branch: the write is what is really added."""
        handle = streamlens.load(model)
        plain = decompose(handle, IDS)
        model.model.layers[1].mlp.register_forward_hook(lambda _module, _args, output: 2 * output)
        steered = decompose(handle, IDS)
        row = plain.labels.index("L1.mlp")
        assert torch.equal(steered.writes[row], 2 * plain.writes[row])
        assert steered.in_order == 0.0
        assert not torch.equal(steered.stream, plain.stream)

    @pytest.mark.parametrize("layer", [0, 1, 2])
    def test_one_that_changes_the_stream_after_load_is_found_out(self, model, layer):
        handle = streamlens.load(model)
        block = model.model.layers[layer]
        own = block.register_forward_hook(lambda _module, _args, output: output + 0.01)
        before = state_of(model)
        with pytest.raises(ClosureError, match="The writes do not sum to the residual stream") as refused:
            decompose(handle, IDS)
        assert refused.value.hint == (
            "Something outside the wiring changes the stream: hooks of your own, or weights changed since load()."
        )
        assert state_of(model) == before
        own.remove()
        assert decompose(handle, IDS).in_order == 0.0

    def test_one_that_changes_the_stream_before_load_is_refused_there(self, model):
        block = model.model.layers[1]
        block.register_forward_hook(lambda _module, _args, output: output + 0.01)
        before = state_of(model)
        with pytest.raises(WiringError, match="does not close at block 1"):
            streamlens.load(model)
        assert state_of(model) == before

    def test_a_multiplier_changed_since_load_is_found_out(self):
        granite = zoo.build("granite")
        handle = streamlens.load(granite)
        granite.model.layers[1].residual_multiplier = 0.41
        with pytest.raises(ClosureError):
            decompose(handle, IDS)


def test_training_goes_on_after_a_capture(model):
    """Inference mode must not leak into the model's own tensors."""
    handle = streamlens.load(model.train())
    decompose(handle, IDS)
    model(torch.tensor(IDS)).logits.square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_call_inside_no_grad_leaves_the_callers_mode(model):
    with torch.no_grad():
        decompose(streamlens.load(model), IDS)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


class TestHookScope:
    def test_it_removes_its_own_hooks_and_no_others(self):
        layer = nn.Linear(2, 2)
        calls = []
        layer.register_forward_hook(lambda *_: calls.append("mine"))
        before = hooks_of(layer)
        with HookScope() as scope:
            scope.before(layer, lambda *_: calls.append("before"))
            scope.after(layer, lambda *_: calls.append("after"))
            other = layer.register_forward_hook(lambda *_: calls.append("other"))
            layer(torch.zeros(1, 2))
        layer(torch.zeros(1, 2))
        assert calls == ["before", "mine", "after", "other", "mine", "other"]
        other.remove()
        assert hooks_of(layer) == before

    def test_a_module_that_cannot_be_hooked_leaves_no_half_scope(self):
        layer, unhookable = nn.Linear(2, 2), nn.Linear(2, 2)
        unhookable.register_forward_hook = breaks
        before = hooks_of(layer)

        def attach_both():
            with HookScope() as scope:
                scope.after(layer, print)
                scope.after(unhookable, print)

        with pytest.raises(Broken):
            attach_both()
        assert hooks_of(layer) == before

    def test_a_returned_value_replaces_the_output(self):
        layer = nn.Linear(2, 2)
        with HookScope() as scope:
            scope.after(layer, lambda _module, _args, _kwargs, output: torch.ones_like(output))
            assert layer(torch.zeros(1, 2)).tolist() == [[1.0, 1.0]]
