"""Jacobians of the stream, against torch's own of plainly run blocks, and against really moving the stream."""

import math

import pytest
import torch
from torch import Tensor, nn

import streamlens
import zoo
from bare_model import BareModel
from closeness import relative
from model_state import state_of
from streamlens.errors import ClosureError, InputError, StreamlensError, WiringError
from streamlens.experiments.jacobian import jacobian, perturb
from streamlens.frames import SCHEMAS
from streamlens.hooks.gradients.derivatives import dense
from streamlens.hooks.gradients.nudge import Course, course_of
from streamlens.readouts.depth.spectrum import leading

#: one of each wiring: plain, learned positions, parallel, post-norm, multipliers, norms on branches, mixers, encoders
MODELS = [
    "llama",
    "gpt2",
    "gpt_neox",
    "falcon",
    "opt:post-norm",
    "openai-gpt",
    "granite",
    "gemma2",
    "jamba",
    "gemma4_text",
    "bert",
    "distilbert",
]
ENCODERS = ("bert", "distilbert")
#: the relative difference allowed between two ways to one Jacobian; norms that compute in float32 bring 1e-7
CLOSE = 1e-6
PLACE = 2


def tiny(name: str):
    """A handle in float64, and six tokens for it."""
    entry = zoo.BY_NAME[name]
    return streamlens.load(zoo.build(entry, torch.float64)), zoo.inputs(entry, batch=1, length=6)["input_ids"]


def replaced(args: tuple, kwargs: dict, change) -> tuple[tuple, dict]:
    """A block's arguments with the stream changed."""
    first = next(x for x in [*args, *kwargs.values()] if isinstance(x, Tensor) and x.is_floating_point())
    new = change(first)
    return tuple(new if x is first else x for x in args), {k: new if x is first else x for k, x in kwargs.items()}


def through_blocks(model, ids: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The plain reference: blocks first..last as the model runs them, d output / d input at one position.

    The stream that enters block `first` is replaced at the position; the output of block `last` is read there.
    """
    blocks = model.modules[model.wiring.blocks]
    seen: dict[str, Tensor] = {}

    def entering(_module, args, kwargs):
        return replaced(args, kwargs, lambda x: seen.setdefault("x", x.detach().clone()))

    with torch.no_grad():
        handle = blocks[first].register_forward_pre_hook(entering, with_kwargs=True)
        model.model(input_ids=ids)
        handle.remove()

    def f(moved: Tensor) -> Tensor:
        found: list[Tensor] = []

        def enter(_module, args, kwargs):
            def put(x: Tensor) -> Tensor:
                return torch.cat([x[:, :PLACE], moved[None, None], x[:, PLACE + 1 :]], dim=1)

            return replaced(args, kwargs, put)

        def leave(_module, _args, output):
            found.append(output[0] if isinstance(output, tuple | list) else output)

        handles = [
            blocks[first].register_forward_pre_hook(enter, with_kwargs=True),
            blocks[last].register_forward_hook(leave),
        ]
        try:
            model.model(input_ids=ids)
        finally:
            for handle in handles:
                handle.remove()
        return found[0][0, PLACE]

    start = seen["x"][0, PLACE]
    found = torch.autograd.functional.jacobian(f, start)
    assert isinstance(found, Tensor)
    return found, start


def end_of(model, layer: int) -> str:
    return [w.site.label for w in model.wiring.writes if w.tap is not None and w.site.layer == layer][-1]


@pytest.mark.parametrize("name", MODELS)
def test_it_is_torchs_own_jacobian_of_the_blocks(name: str) -> None:
    """From block 1 to the end, the others free; and held, as the product of the blocks' own."""
    model, ids = tiny(name)
    last = model.wiring.n_layers - 1
    whole, _ = through_blocks(model, ids, 1, last)
    free = jacobian(model, ids, end_of(model, 0), end_of(model, last), PLACE, others="free")
    assert free.matrix is not None
    assert relative(free.matrix, whole) < CLOSE
    wanted = torch.linalg.svdvals(whole)
    assert float((free.values - wanted).abs().max() / wanted[0]) < CLOSE
    held = jacobian(model, ids, end_of(model, 0), end_of(model, last), PLACE)
    product = torch.eye(len(whole), dtype=torch.float64)
    for layer in range(1, last + 1):
        product = through_blocks(model, ids, layer, layer)[0] @ product
    assert held.matrix is not None
    assert relative(held.matrix, product) < CLOSE
    assert held.closure < CLOSE


@pytest.mark.parametrize("name", MODELS)
def test_held_and_free_agree_where_nothing_can_come_back(name: str) -> None:
    """Every position run, so that it is measured; and the position alone, upon reused keys and values."""
    model, ids = tiny(name)
    found = {}
    for others in ("held", "free"):
        course = course_of(model, ids, PLACE, others=others)
        assert not (name in ENCODERS and course.alone)
        steps, found[others, "quick"] = dense(course, 0, len(course.points) - 1)
        slow = Course(clean=course.clean, position=PLACE, others=course.others)
        slow.__dict__["alone"] = False
        again, found[others, "slow"] = dense(slow, 0, len(course.points) - 1)
        assert all(relative(a, b) < CLOSE for a, b in zip(steps, again, strict=True))
    assert relative(found["free", "quick"], found["free", "slow"]) < CLOSE
    apart = relative(found["free", "slow"], found["held", "slow"])
    assert apart > 1e-2 if name in ENCODERS else apart < CLOSE


def test_a_cache_is_used_where_there_is_one() -> None:
    for name, alone in [("llama", True), ("gpt_neox", True), ("opt:post-norm", True), ("jamba", False)]:
        model, ids = tiny(name)
        assert course_of(model, ids, PLACE, others="held").alone is alone


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gemma4_text"])
def test_steps_multiply_to_the_whole_and_bound_it(name: str) -> None:
    model, ids = tiny(name)
    found = jacobian(model, ids, position=PLACE)
    assert found.closure < CLOSE
    frame = found.to_frame()
    assert {c: str(t) for c, t in frame.dtypes.items()} == {c: t for c, (t, _) in SCHEMAS["jacobian"].items()}
    assert frame["reached"].iloc[-1] == pytest.approx(float(found.values[0]), rel=1e-6)
    assert (frame["reached"] <= frame["bound"] * (1 + 1e-9)).all()
    assert frame["reached"].iloc[-1] < 0.9 * found.bound  # the bound is no equality
    assert found.bound == pytest.approx(math.prod(step.largest for step in found.steps))
    assert found.matrix is not None
    assert float(found.matrix.norm()) / found.matrix.shape[0] ** 0.5 == pytest.approx(frame["rms"].iloc[-1], rel=1e-6)
    for row, value in zip(found.right, found.values, strict=False):
        assert float((found.matrix @ row).norm()) == pytest.approx(float(value), rel=1e-6)


def test_a_step_is_the_identity_plus_its_branch() -> None:
    model, ids = tiny("gpt2")
    found = jacobian(model, ids, position=PLACE)
    for step in found.steps:
        assert step.matrix is not None
        branch = step.matrix - torch.eye(len(step.matrix), dtype=torch.float64)
        assert float(torch.linalg.svdvals(branch)[0]) == pytest.approx(step.branch)
        assert abs(step.largest - 1) <= step.branch
    after_norm = jacobian(*tiny("openai-gpt"), position=PLACE)
    assert all(math.isnan(step.branch) for step in after_norm.steps)


def test_writes_that_read_one_stream_are_one_step() -> None:
    parallel = jacobian(*tiny("gpt_neox"), position=PLACE)
    assert parallel.start == "embed"
    assert [step.label for step in parallel.steps] == [f"L{n}.attn + L{n}.mlp" for n in range(3)]
    model, ids = tiny("gpt2")
    one = jacobian(model, ids, "embed", "L1.attn", PLACE)  # the embedding's terms too: each names the point after them
    assert one.start == "embed + pos_embed"
    assert [step.label for step in one.steps] == ["L0.attn", "L0.mlp", "L1.attn"]
    assert [step.label for step in jacobian(*tiny("opt:post-norm"), position=PLACE).steps][:2] == ["L0.attn", "L0.mlp"]


@pytest.mark.parametrize(
    ("name", "others"), [("gpt2", "held"), ("granite", "held"), ("bert", "held"), ("bert", "free")]
)
def test_products_alone_give_the_same_values(name: str, others) -> None:
    model, ids = tiny(name)
    options = {"position": PLACE, "others": others}
    exact = jacobian(model, ids, method="dense", **options)
    found = jacobian(model, ids, method="lanczos", top=4, **options)
    assert found.matrix is None
    assert found.values.tolist() == pytest.approx(exact.values[:4].tolist(), rel=1e-6)
    for few, all_ in zip(found.steps, exact.steps, strict=True):
        assert few.largest == pytest.approx(all_.largest, rel=1e-6)
        assert few.reached == pytest.approx(all_.reached, rel=1e-6)
        assert few.branch == pytest.approx(all_.branch, rel=1e-6, nan_ok=True)
    assert abs(float(found.right[0] @ exact.right[0])) == pytest.approx(1, abs=1e-6)
    assert (found.closure > 1e-2) is (others == "free")


def test_leading_values_of_known_matrices() -> None:
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 40, generator=draw, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrix)
    found = leading(lambda v: matrix @ v, lambda w: matrix.T @ w, width=40, top=5)
    assert found.values.tolist() == pytest.approx(s[:5].tolist(), rel=1e-10)
    assert (found.left @ u[:, :5]).abs().diagonal().tolist() == pytest.approx([1] * 5, abs=1e-5)
    assert (found.right @ vh[:5].T).abs().diagonal().tolist() == pytest.approx([1] * 5, abs=1e-5)
    falling = u @ torch.diag(0.5 ** torch.arange(40, dtype=torch.float64)) @ vh
    quick = leading(lambda v: falling @ v, lambda w: falling.T @ w, width=40, top=2)
    assert quick.values.tolist() == pytest.approx([1, 0.5], rel=1e-8)
    assert quick.products < 20
    whole = leading(lambda v: matrix @ v, lambda w: matrix.T @ w, width=40, top=40)
    assert whole.values.tolist() == pytest.approx(s.tolist(), rel=1e-8, abs=1e-10)
    one = torch.outer(u[:, 0], vh[0])
    assert leading(lambda v: one @ v, lambda w: one.T @ w, width=40, top=1).values.tolist() == pytest.approx([1])


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "opt:post-norm", "bert"])
@pytest.mark.parametrize("direction", ["random", "top"])
def test_a_small_move_is_linear_and_a_large_one_is_not(name: str, direction: str) -> None:
    """These models compute in float64 throughout: the distance from linear falls in step with the size."""
    model, ids = tiny(name)
    found = perturb(model, ids, position=PLACE, others="free", direction=direction)
    exact = jacobian(model, ids, position=PLACE, others="free")
    assert exact.matrix is not None
    assert float(found.linear[-1]) == pytest.approx(float((exact.matrix @ found.vector).norm()), rel=1e-6)
    if direction == "top":
        assert float(found.linear[-1]) == pytest.approx(float(exact.values[0]), rel=1e-6)
    end = found.error[:, -1].tolist()
    assert end[0] < 1e-2
    assert end[1] / end[0] == pytest.approx(10, rel=0.1)
    assert end[-1] > 0.1
    assert found.growth[0].tolist() == pytest.approx(found.linear.tolist(), rel=1e-2)
    assert found.growth[:, 0].tolist() == pytest.approx([1] * 5)  # where it was added
    frame = found.to_frame()
    assert {c: str(t) for c, t in frame.dtypes.items()} == {c: t for c, (t, _) in SCHEMAS["perturbation"].items()}
    assert len(frame) == 5 * len(found.labels)


def test_a_direction_of_ones_own_and_a_seed() -> None:
    model, ids = tiny("gpt2")
    own = perturb(model, ids, position=PLACE, direction=torch.ones(32), sizes=[0.01])
    assert own.direction == "given"
    assert own.vector.tolist() == pytest.approx([32**-0.5] * 32)
    one, same, other = (perturb(model, ids, position=PLACE, sizes=[0.01], seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.growth, same.growth)
    assert not torch.equal(one.growth, other.growth)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_nothing_is_touched(frozen: bool, around) -> None:
    model, ids = tiny("llama")
    model.model.requires_grad_(not frozen)
    model.model.train()
    wanted = jacobian(model, ids, position=PLACE)
    before = state_of(model.model)
    with around():
        found = jacobian(model, ids, position=PLACE)
        perturb(model, ids, position=PLACE)
    assert state_of(model.model) == before
    assert found.matrix is not None
    assert wanted.matrix is not None
    assert relative(found.matrix, wanted.matrix) < CLOSE


def test_padding_is_no_part_of_it() -> None:
    model, ids = tiny("gpt2")
    padded, mask = torch.nn.functional.pad(ids, (2, 0)), torch.nn.functional.pad(torch.ones_like(ids), (2, 0))
    found = jacobian(model, padded, position=PLACE, attention_mask=mask)
    alone = jacobian(model, ids, position=PLACE)
    assert found.position == PLACE
    assert found.values.tolist() == pytest.approx(alone.values.tolist(), rel=1e-9)


def test_refusals() -> None:
    model, ids = tiny("llama")
    cases = [
        (InputError, "No write is called 'L7.attn'", {"start": "L7.attn"}),
        (
            InputError,
            "The end comes after the start in the stream; got L1.mlp to L1.attn",
            {"start": "L1.mlp", "end": "L1.attn"},
        ),
        (InputError, "A position is between 0 and 5; got 6", {"position": 6}),
        (InputError, '"held" or "free"; got \'still\'', {"others": "still"}),
        (InputError, '"dense" or by "lanczos"; got \'qr\'', {"method": "qr"}),
        (InputError, "at least 1; got 0", {"top": 0}),
    ]
    for error, said, options in cases:
        with pytest.raises(error, match=said):
            jacobian(model, ids, **options)
    with pytest.raises(InputError, match="one prompt at a time; got 2"):
        jacobian(model, ids.expand(2, -1))
    with pytest.raises(InputError, match="Sizes are numbers above 0"):
        perturb(model, ids, sizes=[0.0])
    with pytest.raises(InputError, match=r"A direction is 32 finite numbers, not all zero; got shape \(3,\)"):
        perturb(model, ids, direction=torch.ones(3))
    with pytest.raises(InputError, match='"random", "top" or a vector; got \'bottom\''):
        perturb(model, ids, direction="bottom")
    model.model.model.norm.register_forward_hook(lambda _m, _a, output: torch.from_numpy(output.detach().numpy()))
    inner = model.model.model.layers[1].mlp
    inner.register_forward_hook(lambda _m, _a, output: torch.from_numpy(output.numpy()))
    with pytest.raises(WiringError, match="cannot be differentiated: Can't call numpy"):
        jacobian(model, ids)
    assert issubclass(WiringError, StreamlensError)


@pytest.mark.model
def test_on_the_default_model(default_model, bank) -> None:
    """The last layer by products alone; a small move at the embedding is linear to the end, a large one is not."""
    found = jacobian(default_model, bank, "L28.mlp", position=" bank", method="lanczos", top=2)
    assert found.closure < 1e-5
    assert [step.label for step in found.steps] == ["L29.attn", "L29.mlp"]
    assert [step.largest for step in found.steps] == pytest.approx([2.04, 6.03], abs=5e-3)
    assert float(found.values[0]) < found.bound
    moved = perturb(default_model, bank, position=" bank", sizes=[1e-3, 1.0])
    assert moved.labels[2] == "L0.mlp"
    assert float(moved.linear[2]) == pytest.approx(20.54, abs=5e-2)  # a random direction grows twentyfold in one write
    assert float(moved.error[0, -1]) < 2e-2
    assert float(moved.error[1, -1]) > 1


class Skipping(nn.Module):
    """A block whose last branch reads the stream from before its first: its writes are no chain of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        moved = x + self.one(x)
        return moved + self.two(moved) + self.three(x)


def test_writes_that_are_no_chain_are_refused() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = streamlens.load(BareModel(nn.Embedding(9, 4), [Skipping(), Skipping()], nn.Linear(4, 9, bias=False)))
    with pytest.raises(ClosureError, match="The steps' Jacobians do not multiply to the whole"):
        jacobian(model, [[1, 2, 3]])
    model, ids = tiny("gemma4_text")  # each layer has an input of its own, made of the embedding
    with pytest.raises(ClosureError, match="do not multiply to the whole"):
        jacobian(model, ids, position=PLACE)
    assert jacobian(model, ids, "L0.mlp", position=PLACE).closure < CLOSE
