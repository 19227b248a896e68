"""The backward ledger: solved on paper, held against torch.autograd by the test's own hooks, and able to fail."""

import pytest
import torch
from torch import Tensor

import paper_model
import streamlens
import zoo
from closeness import assert_close
from model_state import state_of
from streamlens import BackwardLedger, Reader, backward, clean_run, sweep
from streamlens.errors import ClosureError, InputError, ModelError
from streamlens.frames import SCHEMAS

#: dm/du of the first coordinate of the final stream at the last token, by write, at both tokens; worked out with a
#: pencil from the last write (row -1) to the embedding
GRADIENT = [
    [[1.5, 2.5], [2.5, -0.5]],
    [[-2.5, 5.0], [2.5, -3.0]],
    [[0.0, 2.5], [1.0, -1.5]],
    [[0.0, 0.0], [1.5, -1.0]],
    [[0.0, 0.0], [1.0, 0.0]],
]
#: what each branch hands back: J^T times the gradient at its own write
CONTRIBUTIONS = [
    [[0.0, 0.0], [0.0, 0.0]],
    # z_0 = x0[0] of the first token through (0, 2), z_1 = x[1] through (1, 0): 10 - 6 and -2.5; 2.5
    [[4.0, -2.5], [0.0, 2.5]],
    # unit 1 alone is on, it reads (-1, 1) and writes (0, 1): 2.5 (-1, 1), -1.5 (-1, 1)
    [[-2.5, 2.5], [1.5, -1.5]],
    # head 0 reads (0, 1) of the first token, writes (1, -1): 2.5 to it; head 1 reads (1, 1), writes (0, .5): -.5
    [[0.0, 2.5], [-0.5, -0.5]],
    # both units are on: (.5 a - b, -.5 a)
    [[0.0, 0.0], [0.5, -1.0]],
]

PLAIN = ["gpt2", "gpt_neox:sequential", "llama", "gemma2", "granite", "mixtral"]
#: f64 roundings of two orders of addition
SAME = 1e-12


def loaded(name: str, *, batch: int = 1, dtype: torch.dtype = torch.float64):
    return streamlens.load(zoo.build(name, dtype)), zoo.inputs(zoo.BY_NAME[name], batch=batch, length=6)["input_ids"]


def reader_of(model) -> Reader:
    if model.wiring.head is not None:
        return Reader.logit_diff(model, 5, 7)
    vector = torch.randn(model.wiring.d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Reader.direction(vector, norm="final" if model.wiring.final_norm else "none")


@pytest.fixture(scope="module")
def paper() -> BackwardLedger:
    model = streamlens.load(paper_model.PaperModel().double())
    return backward(model, torch.tensor(paper_model.PROMPT), Reader.direction([1.0, 0.0]))


class TestOnPaper:
    def test_gradients_and_contributions_are_those_of_the_pencil(self, paper: BackwardLedger) -> None:
        assert paper.labels == paper_model.LABELS
        assert_close(paper.gradient[:, 0], torch.tensor(GRADIENT, dtype=torch.float64))
        assert_close(paper.contributions[:, 0], torch.tensor(CONTRIBUTIONS, dtype=torch.float64))
        assert paper.value.tolist() == [1.0]  # the stream ends in (1, 7)

    def test_the_direct_route_is_the_same_at_every_depth(self, paper: BackwardLedger) -> None:
        assert paper.direct[:, 0].tolist() == [[[0.0, 0.0], [1.0, 0.0]]] * 5
        assert paper.reads == {1: 0, 2: 1, 3: 2, 4: 3}
        assert paper.branches.tolist() == [False, True, True, True, True]

    def test_words_for_it(self, paper: BackwardLedger) -> None:
        # L1.mlp hands (.5, -1) back beside the direct route (1, 0): it amplifies, at a cosine of .5 / sqrt(1.25)
        assert float(paper.alignment[4, 0, 1]) == pytest.approx(0.5 / 1.25**0.5)
        assert float(paper.cosine_direct[4, 0, 1]) == pytest.approx(0.5 / 1.25**0.5)
        # L0.mlp hands (1.5, -1.5) back beside (1, -1.5)
        assert float(paper.alignment[2, 0, 1]) == pytest.approx(3.75 / (4.5 * 3.25) ** 0.5)
        assert paper.cosine_direct[:, 0, 0].isnan().all()  # the direct route is 0 at the token that is not read
        # |total|^2 = 8.5 + 6.5; L0.attn brings (4, -2.5), (0, 2.5) to (1.5, 2.5), (2.5, -.5)
        assert paper.shares[1, 0].tolist() == pytest.approx([-0.25 / 15, -1.25 / 15])
        assert paper.direct_share[0].tolist() == pytest.approx([0, 2.5 / 15])
        # L1.attn writes (4, .625) at the last token, where the gradient is (1.5, -1)
        assert float(paper.effects[3, 0, 1]) == pytest.approx(6 - 0.625)
        assert paper.norms()[:, 0].tolist() == pytest.approx([15**0.5, 46.5**0.5, 9.5**0.5, 3.25**0.5, 1.0])
        assert repr(paper).startswith("BackwardLedger(direction: 4 branches, closes within")
        assert_close(paper.at("L1.attn"), paper.gradient[3])


@pytest.mark.parametrize("name", PLAIN)
def test_it_is_torch_autograds_gradient_of_what_each_block_receives(name: str) -> None:
    """Seen by the test's own hooks on a plain forward: dm/dx at the input of every block."""
    model, ids = loaded(name, batch=2)
    found = backward(model, ids, reader_of(model))
    inputs: list[Tensor] = []
    blocks = model.model.get_submodule(model.wiring.blocks)
    handles = [block.register_forward_pre_hook(lambda _m, args: inputs.append(args[0])) for block in blocks]
    try:
        logits = model.model(ids, use_cache=False).logits[:, -1].double()
    finally:
        for handle in handles:
            handle.remove()
    wanted = torch.autograd.grad((logits[:, 5] - logits[:, 7]).sum(), inputs)
    ends = [max(n for n, site in enumerate(found.sites) if site.layer in (None, layer)) for layer in range(-1, 2)]
    for row, gradient in zip(ends, wanted, strict=True):
        # what the block receives was scaled by nothing after its last write
        assert_close(found.gradient[row], gradient, like=torch.float32)
        assert_close(found.summed[row], gradient, like=torch.float32)


@pytest.mark.parametrize("name", PLAIN)
def test_it_telescopes(name: str) -> None:
    """g[s] = g[s + 1] + J_s^T g[s + 1], from the last write, where only the direct route is, to the first."""
    model, ids = loaded(name)
    found = backward(model, ids, reader_of(model))
    assert torch.equal(found.gradient[-1], found.direct[-1])
    for branch, read in found.reads.items():
        factor = model.wiring.factor_of(branch) / model.wiring.factor_of(read)
        assert_close(found.gradient[read], found.gradient[branch] / factor + found.contributions[branch])
    assert_close(found.direct[0] + found.contributions.sum(0), found.total)
    assert float(found.closure.max()) < SAME


def test_the_branches_of_a_parallel_block_read_at_one_place() -> None:
    model, ids = loaded("gpt_neox")
    found = backward(model, ids, reader_of(model))
    assert found.reads == {1: 0, 2: 0, 3: 2, 4: 2, 5: 4, 6: 4}
    for block in (1, 3, 5):
        both = found.contributions[block] + found.contributions[block + 1]
        assert_close(found.gradient[block - 1], found.gradient[block + 1] + both)
        assert_close(found.gradient[block], found.gradient[block + 1])


@pytest.mark.parametrize("name", ["opt:post-norm", "openai-gpt", "bert"])
def test_where_the_stream_is_normed_the_carries_are_its_real_derivatives(name: str) -> None:
    model, ids = loaded(name)
    found = backward(model, ids, reader_of(model))
    assert float(found.closure.max()) < SAME
    assert_close(found.direct[0] + found.arrived.sum(0), found.total)
    # the direct route passes every norm, and is another vector behind each
    lengths = found.norms("direct")[:, 0]
    assert len({round(float(size), 9) for size in lengths}) > 4
    assert (found.arrived - found.contributions).abs().max() > 1e-3
    assert float(found.rounding.norm() / found.total.norm()) < SAME


def test_a_route_beside_the_writes_is_found_out() -> None:
    """A later branch that reads an earlier write behind the stream's back: what passes there is in no contribution."""
    model, ids = loaded("llama")
    kept: list[Tensor] = []
    early, late = (model.model.model.layers[n].mlp for n in (0, 2))
    assert float(backward(model, ids, reader_of(model)).closure.max()) < SAME
    handles = [
        early.register_forward_hook(lambda _m, _a, output: kept.append(output)),
        late.register_forward_hook(lambda _m, _a, output: output + 0.1 * kept[-1]),
    ]
    try:
        with pytest.raises(ClosureError, match="contributions do not sum to the gradient: relative error"):
            backward(model, ids, reader_of(model))
    finally:
        for handle in handles:
            handle.remove()


class TestLoss:
    @pytest.mark.parametrize("position", [None, 2])
    def test_it_is_the_cross_entropy_of_the_next_token(self, position: int | None) -> None:
        model, ids = loaded("gpt2", batch=2)
        found = backward(model, ids, "loss", position)
        embedding: list[Tensor] = []
        handle = model.model.transformer.wte.register_forward_hook(lambda _m, _a, output: embedding.append(output))
        log_probs = model.model(ids).logits.log_softmax(-1)
        handle.remove()
        each = -log_probs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        loss = each.mean(-1) if position is None else each[:, position]
        assert_close(found.value, loss)
        assert_close(found.total, torch.autograd.grad(loss.sum(), embedding)[0])
        assert (found.metric, found.unit) == ("loss", "nats")
        assert found.places == ((tuple(range(5)) if position is None else (2,)),) * 2

    def test_a_named_token_that_should_follow(self) -> None:
        model, ids = loaded("gpt2")
        found = backward(model, ids, "loss", -1, target=9)
        log_probs = model.model(ids).logits.detach().log_softmax(-1)
        assert float(found.value[0]) == pytest.approx(-float(log_probs[0, -1, 9]))
        assert found.metric == "loss(⟨9⟩)"

    def test_refusals(self) -> None:
        model, ids = loaded("gpt2")
        with pytest.raises(InputError, match="position 5 is the last of 6") as refused:
            backward(model, ids, "loss")
        assert "target=" in refused.value.hint
        with pytest.raises(InputError, match="takes prompts of at least two"):
            backward(model, ids[:, :1], "loss", None)
        encoder, ids = loaded("bert")
        with pytest.raises(ModelError, match="no linear head"):
            backward(encoder, ids, "loss", 0)


@pytest.mark.parametrize("name", ["gpt2", "opt:post-norm"])
def test_a_batch_has_each_prompts_own(name: str) -> None:
    model, _ = loaded(name)
    long, short = [7, 30, 12, 50, 44], [9, 21, 33]
    ids, mask = torch.tensor([long, [0, 0, *short]]), torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    both = backward(model, ids, reader_of(model), attention_mask=mask)
    assert both.places == ((4,), (2,))
    for row, (prompt, start) in enumerate([(long, 0), (short, 2)]):
        alone = backward(model, torch.tensor([prompt]), reader_of(model))
        for part in ("gradient", "direct", "summed", "contributions", "arrived"):
            assert_close(getattr(both, part)[:, row, start:], getattr(alone, part)[:, 0], like=torch.float32)
            assert not getattr(both, part)[:, row, :start].any()
        assert_close(both.value[row : row + 1], alone.value)
    frame = both.to_frame()
    assert frame.groupby("prompt_id")["share"].sum().tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "granite"])
def test_minus_the_effect_is_the_estimate_of_zeroing(name: str) -> None:
    model, ids = loaded(name)
    clean, reader = clean_run(model, ids), reader_of(model)
    found = backward(model, clean, reader)
    for position in (2, 5):
        guess = sweep(model, clean, estimate="gradient", position=position, read_at=-1, readers=[reader])
        assert_close(-found.effects[found.branches][:, 0, position], guess.values[0][:, 0, 0])


def test_the_frame_has_the_committed_schema_and_its_shares_sum_to_one() -> None:
    model, ids = loaded("gpt2")
    found = backward(model, ids, reader_of(model), 3)
    frame = found.to_frame()
    types = {column: str(kind) for column, kind in frame.dtypes.items()}
    assert types == {column: kind for column, (kind, _) in SCHEMAS["backward"].items()}
    assert frame["share"].sum() == pytest.approx(1, abs=1e-12)
    assert list(frame["component"].cat.categories) == [*found.labels, "direct", "rounding"]
    assert frame.attrs["places"] == [[3]]
    assert frame.attrs["metric"] == found.metric
    assert (frame.loc[frame["position"] > 3, "gradient"].dropna() == 0).all()  # a causal model
    row = frame[(frame["component"] == "L1.attn") & (frame["position"] == 2)].iloc[0]
    number = found.labels.index("L1.attn")
    assert row["gradient"] == pytest.approx(float(found.gradient[number, 0, 2].norm()), rel=1e-6)
    assert row["contribution"] == pytest.approx(float(found.contributions[number, 0, 2].norm()), rel=1e-6)
    assert row["effect"] == pytest.approx(float(found.effects[number, 0, 2]), rel=1e-6)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_nothing_is_touched(around) -> None:
    model, ids = loaded("llama")
    wanted = backward(model, ids, reader_of(model))
    model.model.requires_grad_(False)
    model.model.train()
    before = state_of(model.model)
    with around():
        found = backward(model, ids, reader_of(model))
    assert state_of(model.model) == before
    assert_close(found.gradient, wanted.gradient, like=torch.float32)
    assert_close(found.contributions, wanted.contributions, like=torch.float32)
    assert not found.gradient.requires_grad
    assert not found.contributions.requires_grad


def test_refusals() -> None:
    model, ids = loaded("llama")
    reader = reader_of(model)
    with pytest.raises(InputError, match="A metric is a reader or \"loss\"; got 'logit'"):
        backward(model, ids, "logit")
    with pytest.raises(InputError, match="has 1 rows, numbered from 0; got row 1"):
        backward(model, ids, reader, row=1)
    with pytest.raises(InputError, match="A position is between 0 and 5; got 6"):
        backward(model, ids, reader, 6)
    with pytest.raises(InputError, match="as wide as the stream, 32"):
        backward(model, ids, Reader.direction([1.0, 2.0]))
    with pytest.raises(InputError, match='A reader has one position; only the "loss" takes None'):
        backward(model, ids, reader, None)
    with pytest.raises(InputError, match='A reader has no target; only the "loss" takes one'):
        backward(model, ids, reader, target=3)
    with pytest.raises(InputError, match="A site is"):
        backward(model, ids, reader).at("L9.nothing")


@pytest.mark.model
def test_on_the_default_model(default_model, bank: str) -> None:
    """10 and 128 tokens: it closes, and the direct route is a small part of the gradient at the embedding."""
    reader = Reader.logit_diff(default_model, " river", " money")
    for prompt in (bank, default_model.tokenizer(bank * 13, return_tensors="pt")["input_ids"][:, :128]):
        found = backward(default_model, prompt, reader)
        assert float(found.closure.max()) < 1e-5
        assert len(found.reads) == 60
    found = backward(default_model, bank, reader)
    assert float(found.value[0]) == pytest.approx(3.742, abs=5e-4)
    assert found.norms()[[0, -1], 0].tolist() == pytest.approx([21.24, 0.1699], rel=1e-3)
    assert found.norms("direct")[:, 0].tolist() == pytest.approx([0.1699] * 61, rel=1e-3)
    assert int((found.alignment[:, 0, -1] < 0).sum()) == 45


@pytest.mark.model
def test_on_minilm() -> None:
    model = streamlens.load("minilm-l6")
    vector = torch.randn(model.wiring.d_model, generator=torch.Generator().manual_seed(0))
    found = backward(model, "She rested on the bank of the river.", Reader.direction(vector), 0)
    assert float(found.closure.max()) < 1e-5
    assert len(found.reads) == 12
