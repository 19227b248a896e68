"""Scaled steps: 1 is the model bit for bit, 0 the embedding alone, and blocks really run twice at half strength."""

import math

import pytest
import torch
from torch import Tensor

import streamlens
import zoo
from bare_model import in_the_plane
from closeness import assert_close
from model_state import state_of
from streamlens import Edit, replay
from streamlens.errors import InputError, ModelError, WiringError
from streamlens.experiments.scale_steps import scale_steps
from streamlens.frames import SCHEMAS
from streamlens.hooks.runs.scaled import scaled_logits
from streamlens.hooks.writes.clean import start_run

#: one of each wiring; granite's multipliers and gemma2's norms on branches are where a factor of 1 could cost bits
MODELS = ["llama", "gpt2", "gpt_neox", "falcon", "opt:post-norm", "openai-gpt", "granite", "gemma2", "mixtral", "jamba"]
POST_NORM = ("opt:post-norm", "openai-gpt")
IDS = torch.tensor([[7, 30, 12, 50, 44, 9]])


def tiny(name: str, dtype: torch.dtype = torch.float32):
    return streamlens.load(zoo.build(name, dtype))


def plain(model, ids: Tensor = IDS) -> Tensor:
    with torch.inference_mode():
        return model.model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in MODELS]
    # the grouped product of experts takes no bfloat16 this narrow
    + [(name, torch.bfloat16) for name in MODELS if name not in ("mixtral", "jamba")],
)
def test_one_is_the_model_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    model = tiny(name, dtype)
    before = state_of(model.model)
    clean = start_run(model, IDS)
    assert torch.equal(scaled_logits(clean, range(model.wiring.n_layers), 1.0), plain(model))
    found = scale_steps(model, IDS, [1.0, 0.5])
    assert state_of(model.model) == before
    assert torch.equal(found.logits[0], plain(model)[0, -1])
    assert found.kl[0] == 0.0
    assert found.loss[0] == found.base_loss
    assert found.kl[1] > 1e-4  # the check can fail


@pytest.mark.parametrize("name", [name for name in MODELS if name not in POST_NORM])
def test_zero_is_the_embedding_alone(name: str) -> None:
    model = tiny(name)
    ledger = streamlens.decompose(model, IDS)
    embeddings = [w.site.label for w in model.wiring.writes if w.site.layer is None and w.tap is not None]
    wanted = model.logits_at(ledger.at(embeddings[-1]).stream)
    assert_close(scaled_logits(start_run(model, IDS), range(model.wiring.n_layers), 0.0), wanted)
    assert_close(scale_steps(model, IDS, 0.0).logits[0], wanted[0, -1])


def test_zero_by_hand() -> None:
    model = tiny("llama")
    inner = model.model.model
    with torch.inference_mode():
        wanted = model.model.lm_head(inner.norm(inner.embed_tokens(IDS)))
    assert_close(scaled_logits(start_run(model, IDS), range(3), 0.0), wanted)


@pytest.mark.parametrize("name", MODELS)
def test_any_factor_is_a_scaling_of_every_write(name: str) -> None:
    """Against `replay`, for all layers and for a range of them."""
    model = tiny(name)
    for layers in (None, range(1, 3), 2):
        named = range(model.wiring.n_layers) if layers is None else [layers] if isinstance(layers, int) else layers
        sites = [w.site for w in model.wiring.writes if w.tap is not None and w.site.layer in named]
        edits = [Edit(site=site, method="scale", value=0.6) for site in sites]
        logits = replay(model, IDS, edits).logits
        assert logits is not None
        found = scale_steps(model, IDS, 0.6, layers=layers)
        assert_close(found.logits[0], logits[0, -1], like=torch.float32)
        own = plain(model)[0].double().log_softmax(-1)
        there = logits[0].double().log_softmax(-1)
        assert found.kl[0] == pytest.approx(float((own[-1].exp() * (own[-1] - there[-1])).sum()), rel=1e-3)
        assert found.loss[0] == pytest.approx(-float(there[:-1].gather(1, IDS[0, 1:, None]).mean()), abs=1e-5)
        assert found.layers == tuple(named)


def test_a_block_called_twice_at_half_strength_is_eulers_half_step() -> None:
    """The loop of blocks written out: every block twice, each of its writes halved, from the stream it left."""
    model = tiny("llama", torch.float64)
    inner = model.model.model
    for calls, layers in [(2, range(3)), (3, [1])]:
        handles = []
        for number in layers:
            for branch in (inner.layers[number].self_attn, inner.layers[number].mlp):
                handles.append(
                    branch.register_forward_hook(
                        lambda _m, _a, out, k=calls: (out[0] / k, *out[1:]) if isinstance(out, tuple) else out / k
                    )
                )
        with torch.inference_mode():
            x = inner.embed_tokens(IDS)
            places = torch.arange(IDS.shape[1])[None]
            shared = {
                "position_embeddings": inner.rotary_emb(x, places),
                "position_ids": places,
                "attention_mask": None,
            }
            for number, block in enumerate(inner.layers):
                for _ in range(calls if number in layers else 1):
                    out = block(x, **shared)
                    x = out[0] if isinstance(out, tuple) else out
            wanted = model.model.lm_head(inner.norm(x))
        for handle in handles:
            handle.remove()
        assert_close(scaled_logits(start_run(model, IDS), layers, 1.0, calls=calls), wanted, like=torch.float32)
        assert not torch.allclose(wanted, plain(model))


def test_euler_by_hand() -> None:
    """Two steps of h multiply x by (1 - k h)^2; each in n calls by (1 - k h / n)^(2 n), towards exp(-2 k h)."""
    k = 0.5
    model = streamlens.load(in_the_plane(*[-k * torch.eye(2)] * 2))  # dx/dt = -k x, two Euler steps of length 1
    found = scale_steps(model, [[1, 0]], [0.0, 0.5, 1.0, 2.0, 3.0], calls=[1, 2, 64])
    for h, calls, logits in zip(found.h, found.calls, found.logits, strict=True):
        factor = (1 - k * h / calls) ** (2 * calls)
        assert logits.tolist() == pytest.approx([2 * factor, factor], rel=1e-4)
        if calls == 64:
            assert factor == pytest.approx(math.exp(-2 * k * h), abs=1e-2)


@pytest.mark.parametrize("name", [*POST_NORM, "gemma4_text"])
def test_smaller_steps_need_a_stream_that_nothing_else_changes(name: str) -> None:
    with pytest.raises(WiringError, match="goes through norms or factors"):
        scale_steps(tiny(name), IDS, 1.0, calls=2)


def test_refusals_and_the_frame() -> None:
    model = tiny("llama")
    with pytest.raises(InputError, match="h is at least one finite factor; got"):
        scale_steps(model, IDS, [])
    with pytest.raises(InputError, match="h is at least one finite factor; got"):
        scale_steps(model, IDS, float("nan"))
    with pytest.raises(InputError, match=r"The layers are 0 to 2; got \[3\]"):
        scale_steps(model, IDS, layers=3)
    with pytest.raises(InputError, match="at least one call; got calls="):
        scale_steps(model, IDS, calls=0)
    with pytest.raises(InputError, match="one prompt at a time; got 2"):
        scale_steps(model, IDS.expand(2, -1))
    with pytest.raises(InputError, match="A position is between 0 and 5"):
        scale_steps(model, IDS, position=9)
    with pytest.raises(ModelError, match="no such head"):
        scale_steps(tiny("bert"), IDS)
    frame = scale_steps(model, IDS, [0.5, 1.0], calls=[1, 2]).to_frame()
    assert {c: str(t) for c, t in frame.dtypes.items()} == {c: t for c, (t, _) in SCHEMAS["scale_steps"].items()}
    assert frame[["h", "calls"]].to_numpy().tolist() == [[0.5, 1], [1.0, 1], [0.5, 2], [1.0, 2]]
    assert frame["tokens"].tolist() == [5] * 4
    assert math.isnan(scale_steps(model, IDS[:, :1], 0.5).loss[0])  # one token predicts none of its own


@pytest.mark.model
def test_on_the_default_model(default_model, bank) -> None:
    """Norms in front of every branch hide the stream's size, so a quarter of every write does little, and none much."""
    found = scale_steps(default_model, bank, [0.0, 0.25, 1.0])
    own = default_model.model(**start_run(default_model, bank).batch.inputs).logits[0, -1]
    assert torch.equal(found.logits[2], own)
    assert found.kl == pytest.approx([102.92, 0.159, 0.0], abs=5e-2)
    assert found.base_loss == pytest.approx(4.090, abs=2e-3)
    assert found.loss[1] - found.base_loss == pytest.approx(0.141, abs=2e-3)
    assert found.top[0] == "bank"  # the embedding alone says nearly its own token: the two matrices are tied
