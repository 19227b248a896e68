"""Paths by length: every subset of branches by brute force, the derivative expansion, and the default model."""

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import streamlens
import zoo
from closeness import assert_close
from model_state import state_of
from streamlens import Reader, backward, paths
from streamlens.errors import ClosureError, InputError, WiringError
from streamlens.frames import SCHEMAS
from streamlens.hooks.gradients.wide import wide, widened

#: six branches each: sequential, parallel, added in place, normed streams, multipliers, two branches of one norm
TINY = ["gpt2", "gpt_neox", "falcon", "opt:post-norm", "bert", "granite", "llama", "gemma2"]


def loaded(name: str):
    return streamlens.load(zoo.build(name, torch.float64)), zoo.inputs(zoo.BY_NAME[name], batch=1, length=5)[
        "input_ids"
    ]


def direction(model) -> Reader:
    vector = torch.randn(model.wiring.d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return Reader.direction(vector, norm="none")


@contextmanager
def scaled(model, factors: Mapping[int, float]) -> Iterator[list[Tensor]]:
    """The test's own hooks: a branch's derivative times a factor, its value as it is. Yields embedding and end."""
    seen: list[Tensor] = []

    def embedding(_module: Any, _args: tuple, output: Tensor) -> Tensor:
        seen.append(output.detach().clone().requires_grad_())
        return seen[0].clone()

    def branch(factor: float) -> Any:
        def hook(_module: Any, _args: tuple, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            held = first.detach() + factor * (first - first.detach())
            return (held, *output[1:]) if isinstance(output, tuple) else held

        return hook

    writes = model.wiring.writes
    module = model.model.get_submodule
    handles = [module(writes[0].tap.module).register_forward_hook(embedding)]
    handles += [module(writes[row].tap.module).register_forward_hook(branch(f)) for row, f in factors.items()]
    final = module(model.wiring.final.module)
    keep = final.register_forward_hook(lambda _m, _a, o: seen.append(o[0] if isinstance(o, tuple) else o))
    try:
        with wide():
            yield seen
    finally:
        for handle in [*handles, keep]:
            handle.remove()


def gradient(model, ids: Tensor, reader: Reader, factors: Mapping[int, float]) -> Tensor:
    """Torch's gradient at the embedding, [pos, d_model], with every branch's derivative scaled."""
    with scaled(model, factors) as seen:
        model.model(ids)
        embedding, end = seen
        end = end if end.dim() == 3 else end.reshape(1, *end.shape)
        (found,) = torch.autograd.grad((end[0, -1] * reader.matrix[0]).sum(), embedding)
    return found[0] / model.wiring.writes[0].scale


def branches_of(model) -> list[int]:
    return [n for n, w in enumerate(model.wiring.writes) if w.tap is not None and w.site.layer is not None]


@pytest.mark.parametrize("name", TINY)
def test_they_are_the_sums_over_all_subsets_of_branches(name: str) -> None:
    """A path's term by inclusion and exclusion over the 64 gradients with some branches held constant."""
    model, ids = loaded(name)
    reader, branches = direction(model), branches_of(model)
    assert len(branches) == 6
    subsets = [frozenset(s) for k in range(7) for s in itertools.combinations(branches, k)]
    held = {subset: gradient(model, ids, reader, {row: float(row in subset) for row in branches}) for subset in subsets}
    terms = {
        path: sum((-1) ** len(path - inner) * held[inner] for inner in subsets if inner <= path) for path in subsets
    }
    found = paths(model, ids, reader)
    kinds = {row: model.wiring.sites[row].kind for row in branches}

    def wanted(count: str | None, only: bool) -> list[Tensor]:
        sums = [torch.zeros_like(found.total) for _ in range(7)]
        for path, term in terms.items():
            counted = [row for row in path if count in (None, kinds[row])]
            if not only or len(counted) == len(path):
                sums[len(counted)] = sums[len(counted)] + term
        return sums

    size = found.total.norm()
    for family, count, only in (
        ("all", None, False),
        *(("attn", "attn", False), ("mlp", "mlp", False)),
        *(("attn only", "attn", True), ("mlp only", "mlp", True)),
    ):
        vectors = found.families[family].vectors
        for length, vector in enumerate(wanted(count, only)):
            mine = vectors[length] if length < len(vectors) else torch.zeros_like(vector)
            assert (mine - vector).norm() < 1e-10 * size, (family, length)
        assert found.families[family].closure < 1e-12
    assert_close(found.total, held[frozenset(branches)])
    assert_close(found.families["attn only"].target, held[frozenset(r for r in branches if kinds[r] == "attn")])


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "opt:post-norm"])
def test_they_are_the_coefficients_of_scaling_every_branchs_derivative(name: str) -> None:
    """With J -> t J the gradient is a polynomial in t; its coefficients are the lengths."""
    model, ids = loaded(name)
    reader, branches = direction(model), branches_of(model)
    found = paths(model, ids, reader).families["all"].vectors
    for t in (0.0, 0.3, 0.9, -1.0, 2.0):
        powers = torch.tensor([t**k for k in range(len(found))], dtype=torch.float64)
        wanted = gradient(model, ids, reader, dict.fromkeys(branches, t))
        assert_close((powers[:, None, None] * found).sum(0), wanted, like=torch.float32)
    # and length 1 is the slope at t = 0, by a central difference
    small = 1e-4
    ends = [gradient(model, ids, reader, dict.fromkeys(branches, t)) for t in (small, -small)]
    assert_close((ends[0] - ends[1]) / (2 * small), found[1], like=torch.float32)


@pytest.mark.parametrize(
    "name",
    [
        *("falcon_h1", "granitemoeshared", "mixtral", "gemma4_text", "cohere2", "rwkv", "jamba", "mamba2"),
        *("olmo2", "bloom:post-norm-residual", "minimax", "xlnet", "longformer", "xmod", "deberta", "nanochat"),
        *("bart", "t5", "switch_transformers"),
    ],
)
def test_lengths_sum_whatever_the_wiring(name: str) -> None:
    """Float32 models, each followed on its float64 copy; two streams by their decoder."""
    model = streamlens.load(zoo.build(name))
    given = zoo.inputs(zoo.BY_NAME[name], batch=1, length=7, seed=5)
    reader = direction(model)
    found = paths(model, given.pop("input_ids"), reader, **given)
    assert found.closure < 1e-10
    assert found.drift < 1e-5
    assert float(found.families["all"].shares.sum()) == pytest.approx(1)


def test_the_number_of_paths() -> None:
    sequential = paths(*loaded("gpt2"), Reader.logit_diff(loaded("gpt2")[0], 5, 7)).families
    assert sequential["all"].counts == (1, 6, 15, 20, 15, 6, 1)
    assert sequential["attn"].counts == (8, 24, 24, 8)  # each with any of the 2^3 sets of MLPs
    assert sequential["attn only"].counts == (1, 3, 3, 1)
    assert sequential["all"].path_shares.tolist() == [math.comb(6, k) / 64 for k in range(7)]
    model, ids = loaded("gpt_neox")
    parallel = paths(model, ids, direction(model), samples=3)
    # (1 + 2 t)^3: no path goes through both branches of a parallel block
    assert parallel.families["all"].counts == (1, 6, 12, 8)
    assert len(parallel.families["all"].vectors) == 4
    assert (parallel.single > 0).all()  # none is drawn that does not exist


def test_length_0_is_the_direct_route_and_length_1_what_one_branch_makes_of_it() -> None:
    model, ids = loaded("gpt2")
    reader = direction(model)
    found, ledger = paths(model, ids, reader), backward(model, ids, reader)
    assert_close(found.families["all"].vectors[0], ledger.direct[0, 0])
    assert_close(found.total, ledger.total[0])
    assert found.value == pytest.approx(float(ledger.value[0]))
    assert found.drift < 1e-12


def test_single_paths_are_measured_one_by_one() -> None:
    """Each length with one path alone is exact; the mean over all paths of a length is what the draw estimates."""
    model, ids = loaded("gpt2")
    reader = direction(model)
    found = paths(model, ids, reader, samples=200)
    single, family = found.single, found.families["all"]
    assert single.shape == (7, 200)
    assert single[0].tolist() == pytest.approx([float(family.norms[0])] * 200)
    assert single[6].tolist() == pytest.approx([float(family.norms[6])] * 200)
    branches = branches_of(model)
    one = [gradient(model, ids, reader, {r: float(r == row) for r in branches}) for row in branches]
    sizes = sorted({float((g - family.vectors[0]).norm()) for g in one})
    assert sorted(set(single[1].tolist())) == pytest.approx(sizes)  # six paths, all drawn
    mean, low, high = found.effective_length()
    assert low <= mean <= high
    weights = found.single_shares
    assert float(weights.sum()) == pytest.approx(1)
    assert mean == pytest.approx(float((weights * torch.arange(7)).sum()))
    assert torch.equal(paths(model, ids, reader, samples=200).single, single)
    assert not torch.equal(paths(model, ids, reader, samples=200, seed=1).single, single)


def test_the_range_leaves_out_a_share_at_both_ends() -> None:
    model, ids = loaded("gpt2")
    found = paths(model, ids, direction(model))
    weights = found.families["all"].norm_shares
    mean, low, high = found.effective_length(0.5)
    assert mean == pytest.approx(float((weights * torch.arange(7)).sum()))
    assert float(weights[:low].sum()) < 0.25 <= float(weights[: low + 1].sum())
    assert float(weights[:high].sum()) < 0.75 <= float(weights[: high + 1].sum())


def test_a_long_prompt_goes_in_smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = loaded("gpt2")
    whole = paths(model, ids, direction(model))
    monkeypatch.setattr("streamlens.hooks.gradients.paths.TOKENS", 10)  # two rows of five tokens
    parts = paths(model, ids, direction(model))
    for name, family in whole.families.items():
        assert_close(parts.families[name].vectors, family.vectors)


class TestWide:
    """A float32 model is followed in float64, on a copy."""

    def test_the_copy_computes_in_float64_throughout(self) -> None:
        model = streamlens.load(zoo.build("llama"))
        before = state_of(model.model)
        ids = torch.tensor([[5, 9, 11, 30]])
        found = paths(model, ids, Reader.logit_diff(model, 5, 7))
        assert state_of(model.model) == before
        assert found.closure < 1e-12
        assert 1e-9 < found.drift < 1e-5  # the model's own float32 roundings
        own = backward(model, ids, Reader.logit_diff(model, 5, 7)).total[0]
        assert_close(found.total, own, like=torch.float32)
        twin = widened(model)
        norm = twin.model.model.layers[0].input_layernorm
        hidden = torch.randn(1, 2, 32, dtype=torch.float64)
        with wide():
            wide_output = norm(hidden)
        by_hand = norm.weight * hidden / (hidden.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
        assert_close(wide_output, by_hand)
        assert (norm(hidden) - by_hand).abs().max() > 1e-9  # left to itself it computes in float32

    def test_what_knows_no_float64_is_told_what_to_do(self) -> None:
        for name, said in (("xglm", "cannot be differentiated"), ("recurrent_gemma", "cannot be copied to float64")):
            model = streamlens.load(zoo.build(name))
            reader = Reader.logit_diff(model, 5, 7)
            with pytest.raises(WiringError, match=said) as refused:
                paths(model, torch.tensor([[5, 9, 11]]), reader)
            assert 'precision="model"' in refused.value.hint
            assert paths(model, torch.tensor([[5, 9, 11]]), reader, precision="model").closure < 1e-5

    def test_in_the_models_own_dtype(self) -> None:
        model = streamlens.load(zoo.build("mamba"))
        ids = torch.tensor([[5, 9, 11, 30]])
        found = paths(model, ids, Reader.logit_diff(model, 5, 7), precision="model")
        assert found.closure < 1e-5
        assert set(found.families) == {"all", "attn", "attn only"}  # mixers stand in attention's place
        assert (found.precision, found.drift) == ("model", 0.0)


def test_loss_positions_and_padding() -> None:
    model, ids = loaded("gpt2")
    found = paths(model, ids, "loss", None)
    assert_close(found.total, backward(model, ids, "loss", None).total[0])
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    padded = paths(model, ids, direction(model), attention_mask=mask)
    assert_close(padded.total, paths(model, ids[:, 2:], direction(model)).total)
    assert padded.place == (2,)


def test_the_frame() -> None:
    model, ids = loaded("gpt2")
    found = paths(model, ids, direction(model), samples=2)
    frame = found.to_frame()
    types = {column: str(kind) for column, kind in frame.dtypes.items()}
    assert types == {column: kind for column, (kind, _) in SCHEMAS["paths"].items()}
    for _, rows in frame.groupby("family", observed=True):
        assert rows[["share", "norm_share", "path_share"]].sum().tolist() == pytest.approx([1, 1, 1])
    every = frame[frame["family"] == "all"]
    assert every["paths"].tolist() == [1, 6, 15, 20, 15, 6, 1]
    assert every["norm"].tolist() == pytest.approx(found.families["all"].norms.tolist())
    assert every["single_share"].sum() == pytest.approx(1)
    assert frame[frame["family"] == "attn"]["single"].isna().all()
    assert frame.attrs["sums"]["all"] == pytest.approx(float(found.total.norm()))
    assert frame.attrs["effective_length"] == pytest.approx(found.effective_length()[0])


def test_a_sum_that_is_not_the_gradient_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = loaded("gpt2")
    from streamlens.hooks.gradients import paths as module

    exact = module.through

    def off(graph: Any, row: int, given: Tensor) -> dict[int, Tensor]:
        return {n: each * 1.001 for n, each in exact(graph, row, given).items()}

    monkeypatch.setattr(module, "through", off)
    with pytest.raises(ClosureError, match="path lengths do not sum to the gradient: relative error"):
        paths(model, ids, direction(model))


def test_refusals() -> None:
    model, ids = loaded("gpt2")
    reader = direction(model)
    with pytest.raises(InputError, match="Paths are of one prompt; got 2"):
        paths(model, ids.expand(2, -1), reader)
    with pytest.raises(InputError, match='The precision is "float64" or "model"; got \'half\''):
        paths(model, ids, reader, precision="half")
    with pytest.raises(InputError, match="samples is a number of paths per length, 0 for none; got -1"):
        paths(model, ids, reader, samples=-1)


@pytest.mark.model
def test_on_the_default_model(default_model, bank: str) -> None:
    """60 branches: the lengths are a thousand times the total and cancel; they sum to it all the same."""
    found = paths(default_model, bank, Reader.logit_diff(default_model, " river", " money"))
    every = found.families["all"]
    assert found.closure < 1e-9
    assert found.drift < 1e-5
    assert every.counts == tuple(math.comb(60, k) for k in range(61))
    assert float(found.total.norm()) == pytest.approx(21.24, rel=1e-3)
    assert float(every.norms.max()) > 1000 * float(found.total.norm())
    assert int(every.norms.argmax()) == 18
    assert found.effective_length()[0] == pytest.approx(15.55, abs=0.01)
