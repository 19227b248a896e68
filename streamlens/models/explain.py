"""Explaining a tensor as a sum: which outputs, times which constants, were added to what, in which order.

    target = a * base + sum of c_i * output_i

1. Plain sums come first: every small set of outputs, added to a base as they are, in every order of additions and in
   the model's own dtype. The one that gives the target bit for bit is the model's.
2. Otherwise the coefficients are measured. Every token weighs the same, whatever its norm: an attention sink must not
   drown the others. The Gram matrix of all columns is formed once, in float64; every subset of outputs is then a tiny
   least squares problem, and all subsets of one size are solved together. The smallest size that fits wins.
3. Near-singular systems are refused (a wrapper whose output already contains the base makes one), and so are terms too
   small to be measured and sums that do not contain the base.
4. Coefficients are snapped to numbers the model can have meant: 1, a config value, a one-element parameter, a short
   decimal; and the sum is again repeated in every order. A fit that no order makes exact is used only where its error
   is at rounding level and no larger subset is exact.

Pure tensor algebra: no module and no hook is in reach.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: relative residual under which a subset is looked at, and under which an inexact fit is accepted:
#: roundings of a few additions reach 1e-7 in float32 and 4e-3 in bfloat16 (measured on tiny models)
LOOSE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}
#: how large a plain sum may be before it is left to least squares
MAX_PLAIN = 3
STRICT = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
#: smallest eigenvalue of the columns' correlation matrix under which a system counts as singular
SINGULAR = 1e-5
MAX_TERMS = 4


@dataclass(frozen=True, order=True)
class Group:
    """Outputs that are summed first, each times its coefficient; the sum times `factor` is added to the stream."""

    terms: tuple[tuple[int, float], ...]
    factor: float = 1.0


@dataclass(frozen=True)
class Explanation:
    """How a target is made.

    Attributes:
        base: The number of the base it starts from; None if it starts from nothing.
        groups: Additions in order.
        factor: What the stream is multiplied by.
        factor_first: Whether that happens before the additions rather than after.
        exact: Whether this order gave the target bit for bit.
        residual: Relative error of the sum.
    """

    base: int | None
    groups: tuple[Group, ...]
    factor: float
    factor_first: bool
    exact: bool
    residual: float


def explain(
    target: Tensor,
    bases: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    numbers: Sequence[float] = (),
    max_terms: int = MAX_TERMS,
) -> Explanation | None:
    """The fewest outputs that, added to one of the bases, give the target; None if nothing fits.

    Args:
        target: The tensor to explain, in the model's dtype.
        bases: What it may start from, in order of preference; empty if it starts from nothing.
        outputs: What may have been added, all of the target's shape.
        numbers: Constants that coefficients may be snapped to.
        max_terms: How many outputs may be added.

    Cost: O((outputs)^terms) tiny solves, for at most `max_terms` terms.
    """
    plain = _plain_sum(target, bases, outputs, min(max_terms, MAX_PLAIN))
    if plain is not None:
        return plain
    dtype = target.dtype
    weight = target.double().norm(dim=-1, keepdim=True).clamp_min(1e-300).reciprocal()
    columns = torch.stack([(t.double() * weight).flatten() for t in [*bases, *outputs, target]])
    gram = columns @ columns.T
    inexact: Explanation | None = None
    scaled: Explanation | None = None
    for terms in range(0 if bases else 1, max_terms + 1):
        if math.comb(len(outputs), terms) > 200_000:
            break
        for fit in _fits(gram, len(bases), terms, LOOSE[dtype]):
            found = _in_model_order(fit, target, bases, outputs, numbers)
            if not found.exact and found.residual >= STRICT[dtype]:
                continue
            if found.factor != 1.0:
                # 2 y - x also sums, with a y that holds the stream; a sum with the stream as it is says more
                scaled = scaled or found
            elif found.exact:
                return found
            else:
                inexact = inexact or found
    return inexact or scaled


def _plain_sum(
    target: Tensor, bases: Sequence[Tensor], outputs: Sequence[Tensor], max_terms: int
) -> Explanation | None:
    """The fewest outputs that give the target bit for bit when they are added as they are; None if none do."""
    # one token decides quickly that a set is wrong; its sums are compared all at once before any order is tried
    small = [o.flatten(0, -2)[-1] for o in outputs]
    goal = target.flatten(0, -2)[-1]
    stacked = torch.stack([t.double() for t in small]) if small else goal.new_zeros(0, len(goal), dtype=torch.float64)
    for terms in range(0 if bases else 1, min(max_terms, len(outputs)) + 1):
        sets = list(itertools.combinations(range(len(outputs)), terms))
        sums = stacked[torch.tensor(sets, dtype=torch.long)].sum(1)
        for number, base in enumerate(bases) if bases else ((None, None),):
            start = None if base is None else base.flatten(0, -2)[-1]
            wanted = goal.double() if start is None else goal.double() - start.double()
            size = goal.double().norm() + (0 if start is None else start.double().norm())
            near = (sums - wanted).norm(dim=-1) <= LOOSE[target.dtype] * size
            for chosen in (sets[n] for n in near.nonzero()[:, 0].tolist()):
                for groups in _orders(tuple((i, 1.0) for i in chosen)):
                    if not torch.equal(_evaluate(start, groups, small, 1.0, True), goal):
                        continue
                    if torch.equal(_evaluate(base, groups, outputs, 1.0, True), target):
                        return Explanation(number, groups, 1.0, True, True, 0.0)
    return None


@dataclass(frozen=True)
class _Fit:
    base: int | None
    outputs: tuple[int, ...]
    on_base: float
    coefficients: tuple[float, ...]
    shares: tuple[float, ...]  # how large each term is beside the target


def _fits(gram: Tensor, n_bases: int, terms: int, tolerance: float) -> Iterator[_Fit]:
    """All subsets of `terms` outputs whose least squares error is under `tolerance`, best first."""
    n_outputs = gram.shape[0] - n_bases - 1
    norms = gram.diagonal().sqrt().clamp_min(1e-300)
    scaled = gram / norms / norms[:, None]  # correlations: columns of unit norm
    subsets = list(itertools.combinations(range(n_bases, n_bases + n_outputs), terms))
    found: list[tuple[tuple[bool, float], _Fit]] = []
    for base in range(n_bases) if n_bases else (None,):
        rows = [subset if base is None else (base, *subset) for subset in subsets]
        if not rows:
            continue
        index = torch.tensor(rows)
        if index.shape[1] == 0:
            continue
        for chunk in index.split(20_000):
            system = scaled[chunk[:, :, None], chunk[:, None, :]]
            right = scaled[chunk, -1]
            regular = torch.linalg.eigvalsh(system)[:, 0] > SINGULAR
            chunk, system, right = chunk[regular], system[regular], right[regular]
            if not len(chunk):
                continue
            solution = torch.linalg.solve(system, right[..., None])[..., 0]
            error = (1 - (solution * right).sum(-1)).clamp_min(0).sqrt()
            # roundings average out over many numbers: a term far smaller than they are is still measured
            matters = solution.abs().min(-1).values > max(tolerance / 30, 1e-3 if base is not None else 0)
            for hit in torch.nonzero((error < max(tolerance, 1e-7)) & matters)[:, 0].tolist():
                values = (solution[hit] * norms[-1] / norms[chunk[hit]]).tolist()
                picked = tuple(int(i) - n_bases for i in chunk[hit].tolist()[0 if base is None else 1 :])
                on_base, coefficients = (1.0, values) if base is None else (values[0], values[1:])
                rank = (abs(on_base - 1) > 1e-3, float(error[hit]))
                shares = solution[hit].abs().tolist()[-len(picked) :] if picked else []
                found.append((rank, _Fit(base, picked, on_base, tuple(coefficients), tuple(shares))))
    yield from (fit for _, fit in sorted(found, key=lambda pair: pair[0]))


def _in_model_order(
    fit: _Fit, target: Tensor, bases: Sequence[Tensor], outputs: Sequence[Tensor], numbers: Sequence[float]
) -> Explanation:
    """The order of additions and the snapped coefficients that come closest to the target, exact if any is."""
    base = None if fit.base is None else bases[fit.base]
    tolerance = max(1e-6, LOOSE[target.dtype] / 4)
    # the smaller a term, the less exactly its coefficient is measured
    widths = [max(tolerance, min(0.05, STRICT[target.dtype] / 4 / share)) for share in fit.shares]
    best: Explanation | None = None
    for factor in snap(fit.on_base, numbers, tolerance):
        # with factor 1 there is nothing to place; otherwise the whole sum, or only the base, was scaled
        for first in (True,) if factor == 1.0 else (False, True):
            measured = [c if first else c / factor for c in fit.coefficients]
            for chosen in itertools.product(*(snap(c, numbers, t) for c, t in zip(measured, widths, strict=True))):
                terms = tuple(zip(fit.outputs, chosen, strict=True))
                for groups in _orders(terms):
                    value = _evaluate(base, groups, outputs, factor, first)
                    exact = torch.equal(value, target)
                    wrong = float((value.double() - target.double()).norm() / target.double().norm())
                    found = Explanation(fit.base, groups, factor, first, exact, wrong)
                    if exact:
                        return found
                    # where no order is exact, roundings do not decide: the order of the calls stands
                    if best is None or wrong < best.residual / 2:
                        best = found
    assert best is not None
    return best


def _evaluate(
    base: Tensor | None,
    groups: Sequence[Group],
    outputs: Sequence[Tensor],
    factor: float,
    factor_first: bool,
) -> Tensor:
    stream = base if base is None or factor == 1.0 or not factor_first else base * factor
    for group in groups:
        parts = [outputs[i] if c == 1.0 else outputs[i] * c for i, c in group.terms]
        update = parts[0]
        for part in parts[1:]:
            update = update + part
        update = update if group.factor == 1.0 else update * group.factor
        stream = update if stream is None else stream + update
    assert stream is not None
    return stream if factor_first or factor == 1.0 else stream * factor


def _orders(terms: tuple[tuple[int, float], ...]) -> list[tuple[Group, ...]]:
    """Every order of additions, one after another first: (x + a) + m before x + (a + m) before x + (a + m) c."""
    orders: set[tuple[Group, ...]] = set()
    for permutation in itertools.permutations(terms):
        for cuts in range(2 ** max(len(terms) - 1, 0)):
            places = [0, *(i for i in range(1, len(terms)) if not cuts >> (i - 1) & 1), len(terms)]
            pieces = [permutation[a:b] for a, b in itertools.pairwise(places)] if terms else []
            orders.add(tuple(map(Group, pieces)))
            orders.add(tuple(map(_jointly, pieces)))
    return sorted(orders, key=lambda groups: (-len(groups), any(group.factor != 1.0 for group in groups), groups))


def _jointly(terms: tuple[tuple[int, float], ...]) -> Group:
    """Terms with one coefficient in common, multiplied after they are summed."""
    common = {c for _, c in terms}
    if len(terms) < 2 or len(common) > 1 or common == {1.0}:
        return Group(terms)
    return Group(tuple((i, 1.0) for i, _ in terms), common.pop())


def snap(value: float, numbers: Sequence[float], tolerance: float) -> list[float]:
    """What a measured coefficient can have meant: 1, known numbers near it, a short decimal, itself."""
    near = [n for n in (1.0, -1.0, *numbers) if n and abs(value - n) <= tolerance * abs(n)]
    if near and near[0] == 1.0:
        return [1.0]
    decimals = (float(f"{value:.{digits}g}") for digits in range(1, 8))
    short = [s for s in decimals if abs(s - value) <= tolerance * abs(value)][:1]
    return list(dict.fromkeys([*sorted(near, key=lambda n: abs(n - value))[:3], *short, value]))
