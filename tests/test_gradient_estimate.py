"""Gradients at writes, held against central differences made by really editing; and what they may not touch."""

import pytest
import torch
from scipy import stats
from torch import nn

import streamlens
import zoo
from closeness import assert_close
from model_state import state_of
from streamlens import Edit, Reader, clean_run, sweep
from streamlens.errors import InputError, ModelError, StreamlensError, WiringError
from streamlens.experiments.estimates import Estimates, rank_correlation
from streamlens.frames import SCHEMAS
from streamlens.hooks.gradients.gradient import gradients

#: by wiring; the second number is the largest difference seen, relative to the largest effect, ten times over. The
#: models with 1e-5 compute in float64 throughout; the others cast to float32 inside their norms.
MODELS = {
    "gpt2": 1e-4,
    "falcon": 1e-4,  # parallel; adds in place to a module's own output
    "gpt_neox": 1e-5,  # parallel
    "openai-gpt": 1e-5,  # post-norm
    "opt:post-norm": 1e-5,
    "bert": 1e-5,
    "ctrl": 1e-5,  # multiplies the embedding in place
    "llama": 5e-3,
    "granite": 2e-2,  # multipliers
    "gemma2": 3e-2,  # norms on branches, softcap
    "granitemoeshared": 1e-2,  # two writes summed, then multiplied
    "jamba": 5e-2,  # mixers and experts
    "falcon_h1": 5e-3,  # mixer and attention in parallel, each with a multiplier
    "rwkv": 5e-3,
}


def loaded(name: str, dtype: torch.dtype = torch.float64):
    """A handle of the zoo's model, and six tokens for it."""
    return streamlens.load(zoo.build(name, dtype)), zoo.inputs(zoo.BY_NAME[name], batch=1, length=6)["input_ids"]


def reader_of(model) -> Reader:
    if model.wiring.head is not None:
        return Reader.logit_diff(model, 5, 7)
    vector = torch.randn(model.wiring.d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Reader.direction(vector, norm="final")


def effects(model, clean, factor: float, **options) -> torch.Tensor:
    return torch.tensor(sweep(model, clean, method=str(factor), **options).effects()["total"].to_numpy())


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_the_central_difference_of_real_edits(name: str) -> None:
    """d metric / d factor at factor 1, for every write and every head at one position, read at the last."""
    model, ids = loaded(name)
    clean = clean_run(model, ids)
    step = 1e-3
    for over in ("sublayers", "heads"):
        options = {"over": over, "position": 1, "read_at": -1, "readers": [reader_of(model)]}
        try:
            exact = (effects(model, clean, 1 + step, **options) - effects(model, clean, 1 - step, **options)) / (
                2 * step
            )
        except InputError:
            assert over == "heads"  # rwkv has none
            continue
        estimates = sweep(model, clean, estimate="gradient", method="1.5", **options)
        assert isinstance(estimates, Estimates)
        slope = estimates.values[0][:, 0, 0] / 0.5
        assert exact.abs().max() > 1e-3  # the edits do something
        assert (slope - exact).abs().max() <= MODELS[name] * exact.abs().max()


@pytest.mark.parametrize("name", ["gpt2", "opt:post-norm", "gpt_neox", "granite"])
def test_an_estimate_is_gradient_times_change_of_the_write(name: str) -> None:
    model, ids = loaded(name)
    clean = clean_run(model, ids)
    reader = reader_of(model)
    slopes = gradients(model, clean, reader, -1)
    rows = [row for row, write in enumerate(model.wiring.writes) if write.tap is not None]
    assert sorted(slopes) == rows  # a norm's bias is a constant and has none
    estimates = sweep(model, clean, position=2, read_at=-1, readers=[reader], estimate="gradient")
    inside = [row for row in rows if model.wiring.sites[row].layer is not None]
    by_hand = torch.stack([-(slopes[row][0, 2] @ clean.ledger.added[row, 0, 2].double()) for row in inside])
    assert_close(estimates.values[0][:, 0, 0], by_hand)


def test_as_the_change_shrinks_the_estimate_becomes_exact() -> None:
    model, ids = loaded("gpt_neox")
    clean = clean_run(model, ids)
    errors = []
    for factor in (0.9, 0.99, 0.999):
        options = {"position": 1, "read_at": -1, "readers": [reader_of(model)], "method": str(factor)}
        guess = sweep(model, clean, estimate="gradient", **options).values[0][:, 0, 0]
        exact = torch.tensor(sweep(model, clean, **options).effects()["total"].to_numpy())
        errors.append(float((guess - exact).abs().max() / exact.abs().max()))
    assert errors[0] > 5 * errors[1] > 25 * errors[2]  # the error is of second order, the effect of first
    assert errors[2] < 1e-2


def test_every_method_that_changes_a_tensor_can_be_estimated() -> None:
    """Small changes made in other ways than by a factor: replace and project."""
    model, ids = loaded("gpt2")
    clean = clean_run(model, ids)
    reader = reader_of(model)
    write = clean.ledger.added[3, 0, 1]
    nearby = write + 1e-4 * torch.randn(write.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    site = clean.ledger.labels[3]
    edits = [Edit(site, "replace", 1, nearby), [Edit(site, "scale", 1, 1.0001), Edit("L2.mlp", "scale", 1, 0.9999)]]
    exact = sweep(model, clean, over=edits, read_at=-1, readers=[reader]).effects()["total"].to_numpy()
    guess = sweep(model, clean, over=edits, read_at=-1, readers=[reader], estimate="gradient").effects()
    assert guess["estimate"].to_numpy() == pytest.approx(exact, rel=1e-2)
    gone = Edit(site, "project_out", 1, reader=reader)
    assert sweep(model, clean, over=[gone], readers=[reader], estimate="gradient").values[0].shape == (1, 1, 1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "openai-gpt"])
def test_a_batch_has_each_prompts_own_gradients(name: str) -> None:
    """Left padding included; gpt2's positions are one tensor for all prompts."""
    model, _ = loaded(name)
    long, short = [7, 30, 12, 50, 44], [9, 21, 33]
    reader = reader_of(model)
    ids, mask = torch.tensor([long, [0, 0, *short]]), torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    both = gradients(model, ids, reader, -1, attention_mask=mask)
    for row, (prompt, start) in enumerate([(long, 0), (short, 2)]):
        alone = gradients(model, torch.tensor([prompt]), reader, -1)
        for write, found in both.items():
            assert_close(found[row, start:], alone[write][0], like=torch.float32)
            assert not found[row, :start].any()


def test_several_rows_positions_and_kinds_of_reader() -> None:
    model, ids = loaded("gpt_neox")
    clean = clean_run(model, ids)
    vector = torch.randn(32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    readers = [
        Reader.logits(model, [5, 7]),
        Reader.logit_diff(model, 5, 7),
        Reader.direction(vector),
        Reader.direction(vector, norm="final", name="normed"),
    ]
    options = {"position": 1, "read_at": [2, 5], "readers": readers}
    estimates = sweep(model, clean, estimate="gradient", **options)
    assert [tuple(v.shape) for v in estimates.values] == [(6, 2, 2), (6, 2, 1), (6, 2, 1), (6, 2, 1)]
    assert_close(estimates.values[0][..., 0] - estimates.values[0][..., 1], estimates.values[1][..., 0])
    small = sweep(model, clean, method="0.9999", **options).effects()
    guess = sweep(model, clean, method="0.9999", estimate="gradient", **options).effects()
    assert guess["estimate"].to_numpy() == pytest.approx(small["total"].to_numpy(), rel=1e-2, abs=1e-8)
    assert list(guess.columns) == list(SCHEMAS["estimates"])
    names = ["variant", "position", "token_id", "reader"]
    assert guess[names].astype(str).equals(small[names].astype(str))
    assert guess["clean"].to_numpy() == pytest.approx(small["clean"].to_numpy())


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_nothing_is_touched_and_frozen_parameters_do_as_well(frozen: bool, around) -> None:
    model, ids = loaded("llama")
    wanted = gradients(model, ids, reader_of(model))
    model.model.requires_grad_(not frozen)
    model.model.train()
    next(model.model.parameters()).grad = torch.ones_like(next(model.model.parameters())) if not frozen else None
    kept = next(model.model.parameters()).grad
    before = state_of(model.model)
    with around():
        found = gradients(model, clean_run(model, ids), reader_of(model))
    assert state_of(model.model) == before
    assert next(model.model.parameters()).grad is kept
    assert kept is None or bool((kept == 1).all())
    for row, gradient in found.items():
        assert_close(gradient, wanted[row], like=torch.float32)
        assert not gradient.requires_grad


def test_nothing_is_left_when_the_model_raises_midway() -> None:
    class Broken(nn.Module):
        def forward(self, *_args, **_kwargs):
            raise ValueError("broken")

    model, ids = loaded("llama")
    clean, reader = clean_run(model, ids), reader_of(model)
    inner = model.model.model.layers[1].mlp
    inner.act_fn, kept = Broken(), inner.act_fn
    before = state_of(model.model)
    with pytest.raises(ValueError, match="broken"):
        gradients(model, clean, reader)
    assert state_of(model.model) == before
    inner.act_fn = kept
    assert gradients(model, clean, reader)


def test_a_forward_that_cannot_be_differentiated_is_said_to_be() -> None:
    class Rounded(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.numpy())

    model, ids = loaded("gpt_neox")
    clean, reader = clean_run(model, ids), reader_of(model)
    model.model.gpt_neox.final_layer_norm.register_forward_hook(lambda _m, _a, output: Rounded()(output))
    with pytest.raises(WiringError, match="cannot be differentiated: Can't call numpy"):
        gradients(model, clean, reader)


def test_refusals() -> None:
    model, ids = loaded("llama")
    reader = reader_of(model)
    with pytest.raises(InputError, match="An estimate is \"gradient\", or None for the exact sweep; got 'exact'"):
        sweep(model, ids, estimate="exact", readers=[reader])  # type: ignore[call-overload]
    with pytest.raises(InputError, match="holds nothing at its clean value"):
        sweep(model, ids, estimate="gradient", freeze="all", readers=[reader])
    with pytest.raises(InputError, match="A first-order estimate is of a reader; got none"):
        sweep(model, ids, estimate="gradient")
    with pytest.raises(InputError, match="An attention edge has no first-order estimate"):
        sweep(model, ids, estimate="gradient", over=["L1H0<0@3"], readers=[reader])
    with pytest.raises(InputError, match="has 1 rows, numbered from 0; got row 1"):
        gradients(model, ids, reader, row=1)
    with pytest.raises(InputError, match="A position is between 0 and 5; got 6"):
        gradients(model, ids, reader, 6)
    with pytest.raises(InputError, match="as wide as the stream, 32"):
        gradients(model, ids, Reader.direction([1.0, 2.0]))
    with pytest.raises(InputError, match="Variants are runs of one prompt; got 2"):
        sweep(model, ids.expand(2, -1), estimate="gradient", readers=[reader])


def test_rank_correlation_is_scipys() -> None:
    model, ids = loaded("gpt2")
    clean = clean_run(model, ids)
    options = {"over": "heads", "position": 1, "read_at": [3, 5], "readers": [reader_of(model)]}
    guess, exact = sweep(model, clean, estimate="gradient", **options), sweep(model, clean, **options)
    frame = rank_correlation(guess, exact)
    assert list(frame.columns) == list(SCHEMAS["rank_correlation"])
    assert frame["position"].tolist() == [3, 5]
    for place, row in frame.iterrows():
        one, other = guess.values[0][:, place, 0].numpy(), exact.effects().query("position == @row.position")["total"]
        assert row["spearman"] == pytest.approx(stats.spearmanr(one, other).statistic)
        assert row["pearson"] == pytest.approx(stats.pearsonr(one, other).statistic)
        assert row["variants"] == len(one)
    other = sweep(model, clean, over=["L0.attn"], readers=options["readers"])
    with pytest.raises(InputError, match="that both sweeps ran; got none"):
        rank_correlation(guess, other)


@pytest.mark.model
def test_on_the_default_model_small_changes_are_estimated_and_zeros_are_ranked(default_model, bank) -> None:
    """At zero the sublayers' estimates order the exact effects at 0.70, the heads' at 0.99 (measured)."""
    clean = clean_run(default_model, bank)
    options = {"position": " bank", "readers": [Reader.logit_diff(default_model, " river", " money")]}
    for over, method, least in [("sublayers", "0.9", 0.99), ("sublayers", "zero", 0.6), ("heads", "zero", 0.95)]:
        given = {**options, "over": over, "method": method}
        guess, exact = sweep(default_model, bank, estimate="gradient", **given), sweep(default_model, clean, **given)
        assert guess.effects()["clean"].unique().tolist() == pytest.approx([3.742], abs=5e-4)
        found = rank_correlation(guess, exact)["spearman"].item()
        assert least < found < 1, (over, method, found)


def test_a_model_that_cannot_be_read_raises_its_own_error() -> None:
    model, ids = loaded("bert")
    with pytest.raises(ModelError, match="no linear head"):
        sweep(model, ids, estimate="gradient", readers=[Reader.logit_diff(model, 5, 7)])
    assert issubclass(ModelError, StreamlensError)
