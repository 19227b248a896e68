"""How the stream at one position depends on itself further up: its Jacobian, and the same by really moving it.

1. The points between start and end are found (`hooks/gradients/points.py`); each step between two has its own Jacobian.
2. Dense: every row by one backward pass, many in a batch. Products over the steps and all singular values follow.
3. Lanczos: only products with vectors (`readouts/depth/spectrum.py`), for streams too wide for a matrix.
4. `perturb` adds a direction to the stream in several sizes, reruns, and sets the change beside J v.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.errors import ClosureError, InputError
from streamlens.hooks.gradients.derivatives import Linear, dense, linear
from streamlens.hooks.gradients.nudge import Course, course_of
from streamlens.hooks.gradients.points import Point, number_of, require_order
from streamlens.hooks.prompts import Prompt
from streamlens.hooks.writes.clean import Clean
from streamlens.models.handle import ModelHandle
from streamlens.readouts.depth.jacobian import Jacobian, JacobianStep, Perturbation
from streamlens.readouts.depth.spectrum import Leading, leading

#: a stream wider than this is not made into a matrix unless that is asked for
WIDE = 1024
#: relative difference above which the steps count as no chain; roundings reach 1e-6 in float32 (measured), and norms
#: that always compute in float32 bring 1e-7 into float64
CLOSES = {torch.float64: 1e-5, torch.float32: 1e-4}
SIZES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@typed
def jacobian(
    model: ModelHandle,
    prompt: Prompt | Clean,
    start: str | None = None,
    end: str | None = None,
    position: int | str = -1,
    *,
    others: str = "held",
    method: str | None = None,
    top: int = 8,
    seed: int = 0,
    **forward_kwargs: Any,
) -> Jacobian:
    """d x[end] / d x[start]: how the stream at one position answers to being moved there earlier.

    Every branch is differentiated, the norms in front of it included; a dimensionless matrix.

    Args:
        model: From `streamlens.load`.
        prompt: One prompt, or an earlier clean run of it.
        start: The stream is moved right after this write (and the norm that follows it, in a post-norm model); None
            for where the first block reads. Writes that read the same stream are one step, and each names its end.
        end: It is read right after this write; None for the end of the stream.
        position: Token text or index: the one position that is moved and read.
        others: "held" keeps every write at the other positions at its clean value; "free" lets them answer, and their
            answer come back. In a causal model none can, and the two agree; in an encoder they do not.
        method: "dense" for the whole matrix, "lanczos" for the `top` largest singular values by products alone; None
            for dense up to a width of 1024.
        top: How many singular vectors are kept, and how many values by "lanczos".
        seed: For the first vector of "lanczos".
        **forward_kwargs: As for `decompose`.

    Raises:
        InputError: A write, position or order that does not fit; more than one prompt.
        WiringError: The model's forward cannot be differentiated (for "lanczos": twice).
        ClosureError: The steps are no chain, so that their Jacobians do not multiply to the whole.

    Cost: dense: d_model copies of the prompt (of one position, where keys and values can be reused) forward once and
    backward twice, and an SVD a step. Lanczos: one forward, then two backward passes a product, some tens of products
    for each step.
    """
    course = course_of(model, prompt, position, others=others, **forward_kwargs)
    points = course.points
    first, last = number_of(points, start, default=0), number_of(points, end, default=len(points) - 1)
    require_order(points, first, last)
    width = course.clean.wiring.d_model
    if method not in (None, "dense", "lanczos"):
        raise InputError(f'A Jacobian is made "dense" or by "lanczos"; got {method!r}.')
    if top < 1:
        raise InputError(f"top is the number of singular vectors that are kept, at least 1; got {top}.")
    top = min(top, width)
    chosen = method or ("dense" if width <= WIDE else "lanczos")
    if chosen == "dense":
        found = _dense(course, first, last, top)
    else:
        found = _products(course, first, last, top, seed)
    if others == "held" and found["closure"] > CLOSES.get(model.dtype, 5e-2):
        raise ClosureError(
            f"The steps' Jacobians do not multiply to the whole: relative difference {found['closure']:.1e}.",
            hint="A write reads the stream from before an earlier step (per-layer inputs: the embedding); start later.",
        )
    return Jacobian(
        start=points[first].label,
        end=points[last].label,
        method=chosen,
        **_where(course),
        **found,
    )


def _where(course: Course) -> dict[str, Any]:
    """What a result says about where it was measured."""
    clean = course.clean
    return {
        "position": course.position,
        "token": clean.context[0][course.position],
        "others": course.others,
        "provenance": {
            **clean.model.provenance,
            "bos": clean.encoded.bos,
            "prompts": list(clean.encoded.prompts),
            "alone": course.alone,
        },
    }


def _dense(course: Course, first: int, last: int, top: int) -> dict[str, Any]:
    matrices, whole = dense(course, first, last)
    product = torch.eye(len(whole), dtype=torch.float64)
    steps = []
    for point, matrix in zip(course.points[first + 1 : last + 1], matrices, strict=True):
        product = matrix @ product
        sizes = torch.linalg.svdvals(matrix)
        steps.append(
            JacobianStep(
                label=point.label,
                site=point.sites[-1],
                matrix=matrix,
                largest=float(sizes[0]),
                smallest=float(sizes[-1]),
                branch=_branch(point, matrix),
                reached=float(torch.linalg.matrix_norm(product, 2)),
                rms=float(product.norm()) / len(whole) ** 0.5,
            )
        )
    u, values, vh = torch.linalg.svd(whole)
    closure = float((product - whole).norm() / whole.norm())
    return {
        "matrix": whole,
        "values": values,
        "left": u.T[:top],
        "right": vh[:top],
        "steps": tuple(steps),
        "closure": closure,
    }


def _branch(point: Point, matrix: Tensor) -> float:
    """The largest singular value of J_f in `carry (I + J_f)`."""
    if point.carry is None:
        return float("nan")
    return float(torch.linalg.matrix_norm(matrix / point.carry - torch.eye(len(matrix), dtype=torch.float64), 2))


def _products(course: Course, first: int, last: int, top: int, seed: int) -> dict[str, Any]:
    """The same by products with vectors; steps and what is reached with the others held."""
    width = course.clean.wiring.d_model
    own = linear(course)
    if course.others == "held" or course.alone:
        held = own
    else:
        held = linear(Course(clean=course.clean, position=course.position, others="held"))

    def largest(times: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], count: int = 1) -> Leading:
        return leading(times, back, width=width, top=count, seed=seed)

    steps = []
    for number in range(first + 1, last + 1):
        point = course.points[number]
        times, back = partial(own.times, number - 1, number), partial(own.transposed, number - 1, number)
        up, down = partial(held.times, first, number), partial(held.transposed, first, number)
        steps.append(
            JacobianStep(
                label=point.label,
                site=point.sites[-1],
                matrix=None,
                largest=float(largest(times, back).values[0]),
                smallest=float("nan"),
                branch=_branch_of(point, times, back, largest),
                reached=float(largest(up, down).values[0]),
                rms=float("nan"),
            )
        )
    found = largest(partial(own.times, first, last), partial(own.transposed, first, last), top)
    probe = torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chained = probe
    for number in range(first, last):
        chained = own.times(number, number + 1, chained)
    at_once = own.times(first, last, probe)
    return {
        "matrix": None,
        "values": found.values,
        "left": found.left,
        "right": found.right,
        "steps": tuple(steps),
        "closure": float((chained - at_once).norm() / at_once.norm()),
    }


def _branch_of(
    point: Point, times: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], largest: Callable[..., Leading]
) -> float:
    carry = point.carry
    if carry is None:
        return float("nan")
    return float(largest(lambda v: times(v) / carry - v, lambda u: back(u) / carry - u).values[0])


@typed
def perturb(
    model: ModelHandle,
    prompt: Prompt | Clean,
    start: str | None = None,
    position: int | str = -1,
    *,
    others: str = "held",
    direction: str | Float[Tensor, " d_model"] = "random",
    sizes: Sequence[float] = SIZES,
    seed: int = 0,
    **forward_kwargs: Any,
) -> Perturbation:
    """Really moves the stream at one position, by several sizes along one direction, and follows the change.

    Args:
        model: From `streamlens.load`.
        prompt: One prompt, or an earlier clean run of it.
        start: The stream is moved right after this write; None for where the first block reads.
        position: Token text or index.
        others: "held" or "free", as for `jacobian`.
        direction: "random" (a seeded normal vector), "top" (the one that grows most up to the end, to first order), or
            a vector.
        sizes: Lengths of what is added, relative to the length of the stream there.
        seed: For "random", and for the search of "top".
        **forward_kwargs: As for `decompose`.

    Returns:
        Growth at every later point, and its relative distance from what the Jacobian says. In float32 the roundings of
        two runs differ by a few hundredths of a change of size 1e-4 (measured at the end of the default model).

    Raises:
        InputError: What does not fit.
        WiringError: The model's forward cannot be differentiated twice.

    Cost: one forward of as many copies as there are sizes, and one of one copy with its graph.
    """
    course = course_of(model, prompt, position, others=others, **forward_kwargs)
    points = course.points
    first = number_of(points, start, default=0)
    require_order(points, first, len(points) - 1)
    if not sizes or any(not size > 0 for size in sizes):
        raise InputError(f"Sizes are numbers above 0, relative to the stream's length; got {list(sizes)}.")
    products = linear(course)
    name = direction if isinstance(direction, str) else "given"
    vector = _direction(course, products, first, direction, seed)
    norm = float(products.states[first].detach().double().norm())
    lengths = torch.tensor([0.0, *sizes], dtype=torch.float64) * norm
    nudge = (lengths[:, None] * vector).to(course.clean.model.device, course.clean.model.dtype)
    states = [state.double().cpu() for state in course.run({first: nudge})[first:]]
    predicted = [vector, *products.carried(first, vector)]
    real = torch.stack([(state[1:] - state[0]) / lengths[1:, None] for state in states], dim=1)
    guess = torch.stack(predicted)
    size = guess.norm(dim=-1)
    return Perturbation(
        start=points[first].label,
        direction=name,
        vector=vector,
        stream_norm=norm,
        sizes=tuple(sizes),
        labels=tuple(point.label for point in points[first:]),
        sites=tuple(point.sites[-1] for point in points[first:]),
        growth=real.norm(dim=-1),
        linear=size,
        error=(real - guess).norm(dim=-1) / size,
        **_where(course),
    )


def _direction(course: Course, products: Linear, first: int, direction: str | Tensor, seed: int) -> Tensor:
    """A unit vector."""
    width, end = course.clean.wiring.d_model, len(course.points) - 1
    if isinstance(direction, Tensor):
        vector = direction.detach().double().cpu()
        if tuple(vector.shape) != (width,) or not torch.isfinite(vector).all() or not vector.any():
            raise InputError(f"A direction is {width} finite numbers, not all zero; got shape {tuple(vector.shape)}.")
        return vector / vector.norm()
    if direction == "random":
        vector = torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return vector / vector.norm()
    if direction == "top":
        times, back = partial(products.times, first, end), partial(products.transposed, first, end)
        return leading(times, back, width=width, seed=seed).right[0]
    raise InputError(f'A direction is "random", "top" or a vector; got {direction!r}.')
