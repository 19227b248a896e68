"""A wrong sum is never returned: a model that adds something no module outputs is refused, by name."""

import pytest
import torch
from torch import Tensor, nn

import streamlens
from closeness import assert_close
from hidden_model import WIDTH, HiddenModel, Mlp, Wrapped, in_order
from streamlens import Reader, decompose, read
from streamlens.errors import ModelError, StreamlensError, WiringError

IDS = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 24, 25]])

#: what the block's code adds, and no module outputs; beside each the honest block it was made from
HIDDEN = {
    "the stream of the token before": lambda x, a, m: x + a + m + 0.3 * x.roll(1, 1),
    "the stream, its channels moved": lambda x, a, m: x + a + m + 0.3 * x.roll(1, -1),
    "a nonlinearity of the stream": lambda x, a, m: x + a + m + 0.3 * x.tanh(),
    "a product of the branches": lambda x, a, m: x + a + m + 0.3 * a * m,
    "a branch's other half": lambda x, a, m: x + a + m + 0.5 * m.flip(-1),
    "the mean over the tokens": lambda x, a, m: x + a + m + 0.3 * x.mean(1, keepdim=True),
    "a thousandth of it": lambda x, a, m: x + a + m + 1e-3 * x.roll(1, -1),
    "a ten thousandth of it": lambda x, a, m: x + a + m + 1e-4 * x.roll(1, -1),
    "a number": lambda x, a, m: x + a + m + 0.3,
    "a multiplier for each token": lambda x, a, m: x + a * x[..., :1].sigmoid() + m,
    "a gate of the whole stream": lambda x, a, m: (x + a + m) * x[..., :1].sigmoid(),
    "a branch clipped": lambda x, a, m: x + a.clamp(-0.1, 0.1) + m,
}

#: constant coefficients on module outputs: what measurement must accept, or the refusals above mean nothing
HONEST = {
    "one after the other": in_order,
    "parallel": lambda x, a, m: x + (a + m),
    "attention after the MLP": lambda x, a, m: (x + m) + a,
    "one branch": lambda x, a, m: x + m,
    "a multiplier": lambda x, a, m: x + 0.22 * a + 0.22 * m,
    "two multipliers": lambda x, a, m: x + a * 0.7 + m * 1.3,
    "subtracted": lambda x, a, m: x - a + m,
    "the whole stream scaled": lambda x, a, m: (x + a + m) * 0.6,
    "the carry scaled": lambda x, a, m: x * 0.6 + a + m,
    "nothing added": lambda x, _a, _m: x,
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_hidden_addition_is_refused_and_its_block_named(name, layer):
    with pytest.raises(WiringError) as refused:
        streamlens.load(HiddenModel(HIDDEN[name], layer=layer))
    assert refused.value.message == (
        f"The residual stream does not close at block {layer} (layers): its output is not its input plus "
        "constant multiples of the outputs of modules inside it."
    )
    assert f"layers.{layer}.attn" in refused.value.hint
    assert f"layers.{layer}.mlp" in refused.value.hint


@pytest.mark.parametrize("name", HONEST)
def test_the_right_version_of_the_same_module_is_accepted(name):
    combine = HONEST[name]
    model = HiddenModel(combine)
    ledger = decompose(streamlens.load(model), IDS)
    assert ledger.in_order == 0.0
    seen = []
    model.norm.register_forward_pre_hook(lambda _module, args: seen.append(args[0].clone()))
    model(IDS)
    assert torch.equal(ledger.stream, seen[0])
    assert_close(ledger.writes.sum(0), seen[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_in_other_precisions_too(dtype):
    assert decompose(streamlens.load(HiddenModel().to(dtype)), IDS).in_order == 0.0
    hides = HIDDEN["the stream of the token before"]
    with pytest.raises(WiringError, match=r"does not close at block 1 \(layers\)"):
        streamlens.load(HiddenModel(hides).to(dtype))


class TestASecondAdditionAroundABlock:
    """A wrapped module: the block inside is honest, what wraps it adds once more."""

    def wrapped(self, extra) -> HiddenModel:
        model = HiddenModel()
        model.layers[1] = Wrapped(model.layers[1], extra)
        return model

    @pytest.mark.parametrize(
        "extra",
        [
            lambda x, y: y + 0.3 * x.roll(1, 1),
            lambda x, y: y + 0.1 * (y - x).relu(),
            lambda x, y: y * (1 + 0.1 * torch.sign(x)),
        ],
    )
    def test_it_is_refused_by_name(self, extra):
        with pytest.raises(WiringError, match=r"does not close at block 1 \(layers\)"):
            streamlens.load(self.wrapped(extra))

    def test_a_wrapper_that_adds_nothing_is_accepted(self):
        model = self.wrapped(lambda _x, y: y)
        ledger = decompose(streamlens.load(model), IDS)
        assert ledger.labels == decompose(streamlens.load(HiddenModel()), IDS).labels
        assert ledger.in_order == 0.0

    @pytest.mark.parametrize(
        ("extra", "share"),
        [
            (lambda x, y: y + (y - x), 2.0),
            (lambda x, y: x + 0.5 * (y - x), 0.5),
            (lambda x, y: 0.5 * x + 0.5 * y, 0.5),
            (lambda x, y: y + 0.5 * (y - x), 1.5),
        ],
    )
    def test_the_block_inside_is_no_write_since_it_holds_the_stream(self, extra, share):
        """`2 y - x` does sum, with y = x + a + m as the write; but then x is counted as something written."""
        plain = decompose(streamlens.load(HiddenModel()), IDS)
        written = sum(plain.writes[plain.labels.index(label)] for label in ("L1.attn", "L1.mlp"))
        try:
            ledger = decompose(streamlens.load(self.wrapped(extra)), IDS)
        except WiringError:
            return
        rows = [w for w, site in zip(ledger.writes, ledger.sites, strict=True) if site.layer == 1]
        assert_close(sum(rows), share * written)


class TestOutsideTheBlocks:
    def test_an_addition_between_two_blocks_is_refused_and_its_place_named(self):
        model = HiddenModel(around=lambda layer, x: x + 0.3 * x.roll(1, 1) if layer == 2 else x)
        with pytest.raises(WiringError, match=r"does not close at the input of block 2 \(layers\)"):
            streamlens.load(model)

    def test_an_addition_before_the_final_norm_is_never_attributed(self):
        """What the head reads is then not the final stream, so no sum of writes is its logit."""
        model = HiddenModel(around=lambda layer, x: x + 0.3 * x.roll(1, 1) if layer == 3 else x)
        with pytest.raises((WiringError, ModelError)):
            read_logits(model)
        assert len(read_logits(HiddenModel()).labels) == 9

    def test_an_addition_to_the_logits_is_never_attributed(self):
        model = HiddenModel()
        plain = model.head.forward
        model.head.forward = lambda h: plain(h) + 0.1 * h.norm(dim=-1, keepdim=True)
        with pytest.raises((WiringError, ModelError)):
            read_logits(model)

    def test_a_model_without_blocks_is_refused(self):
        model = HiddenModel()
        model.layers = nn.ModuleList()
        with pytest.raises(WiringError, match="No list of blocks is called with one stream"):
            streamlens.load(model)


def read_logits(model: nn.Module):
    handle = streamlens.load(model)
    return read(decompose(handle, IDS), Reader.logits(handle, [5]))


class TestNamesThatLie:
    """A write is what is added, whatever it is called."""

    def test_a_module_called_mlp_that_adds_nothing_is_no_write(self):
        model = HiddenModel()
        block = model.layers[1]
        block.helper = Mlp()
        block.combine = lambda x, a, _m: x + a + block.helper(x)
        seen = {}
        block.helper.register_forward_hook(lambda _module, _args, output: seen.update(helper=output.clone()))
        handle = streamlens.load(model)
        ledger = decompose(handle, IDS)
        taps = [write.tap.module for write in handle.wiring.writes if write.site.layer == 1]
        assert taps == ["layers.1.attn", "layers.1.helper"]
        written = torch.stack([w for w, s in zip(ledger.writes, ledger.sites, strict=True) if s.layer == 1])
        assert torch.equal(written[1], seen["helper"])

    @pytest.mark.parametrize("name", ["post_attention_layernorm", "norm_of_something"])
    def test_the_write_is_taken_behind_a_branchs_norm(self, name):
        """As in Gemma 2 and OLMo 2, where the same name means the norm before the MLP in Llama."""
        model = HiddenModel()
        block = model.layers[1]
        block.add_module(name, nn.LayerNorm(WIDTH))
        block.combine = lambda x, a, m: x + block.get_submodule(name)(a) + m
        with torch.no_grad():
            block.get_submodule(name).weight.mul_(0.7)
            block.get_submodule(name).bias.add_(0.1)
        seen = {}
        block.get_submodule(name).register_forward_hook(lambda _module, _args, out: seen.update(write=out.clone()))
        handle = streamlens.load(model)
        ledger = decompose(handle, IDS)
        assert torch.equal(ledger.writes[ledger.labels.index("L1.attn")], seen["write"])
        assert ledger.in_order == 0.0

    def test_swapped_names_change_labels_and_no_number(self):
        class Swapped(nn.Module):
            def __init__(self, block: nn.Module) -> None:
                super().__init__()
                self.mlp, self.attn = block.attn, block.mlp
                self.attn_norm, self.mlp_norm = block.attn_norm, block.mlp_norm

            def forward(self, x: Tensor) -> Tensor:
                x = x + self.mlp(self.attn_norm(x))
                return x + self.attn(self.mlp_norm(x))

        model = HiddenModel()
        plain = decompose(streamlens.load(model), IDS)
        model.layers[1] = Swapped(model.layers[1])
        swapped = decompose(streamlens.load(model), IDS)
        assert torch.equal(swapped.writes, plain.writes)
        assert swapped.in_order == 0.0


class TestWhatOneProbeCannotSee:
    """On one set of tokens a multiplier made of the data is a constant; another set tells."""

    @pytest.mark.parametrize(
        "combine",
        [
            lambda x, a, m: x + a * (1 + x.mean()) + m,
            lambda x, a, m: (x + a + m) * (1 + 0.1 * x.mean().sin()),
            lambda x, a, m: x + a * (x.std() > 1e9) + m * x.abs().max(),
        ],
    )
    def test_a_multiplier_made_of_the_data_is_refused(self, combine):
        with pytest.raises(WiringError):
            streamlens.load(HiddenModel(combine))

    def test_an_addition_that_comes_with_the_prompt_alone_is_found_at_the_prompt(self):
        """No probe has a token 49 times; whatever gets past load() is caught by the ledger's own sum."""
        model = HiddenModel()

        def only_sometimes(x: Tensor, a: Tensor, m: Tensor) -> Tensor:
            return x + a + m + (0.1 if x.shape[1] > 40 else 0.0)

        model.layers[1].combine = only_sometimes
        handle = streamlens.load(model)
        assert decompose(handle, IDS).in_order == 0.0
        with pytest.raises(StreamlensError, match="The writes do not sum to the residual stream"):
            decompose(handle, torch.arange(45)[None])
