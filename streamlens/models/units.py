"""What a branch reads the stream with besides queries, keys and values: gates, neurons, routers.

1. As many outputs as a mixture has experts are its "router".
2. A call that keeps a shape acts on some outputs. If what it makes of them, times as many others, is what a later
   linear map reads, they are the "gate" and the others the "up" of a gated MLP, both in the order of its neurons.
3. What is left is the "in" of a branch, or "read" beside an attention's heads and a mixture's experts. Where it has as
   many rows as the branch's last linear map takes in, these are its neurons.
"""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from streamlens.hooks.record import Event
from streamlens.models.ending import is_affine
from streamlens.models.heads import NEAR, locate
from streamlens.models.linears import Linear, laid_out
from streamlens.models.recorded import same
from streamlens.models.wiring import Experts, Projection, Read, Tap
from streamlens.sites import Site


def unit_reads(
    site: Site,
    linears: Sequence[Linear],
    heads: Sequence[Read],
    inside: Sequence[Event],
    maker: Projection | Experts | str | None,
    modules: Mapping[str, nn.Module],
) -> Iterator[Read]:
    """The rows that are no head's, in parts.

    Args:
        site: The branch's write.
        linears: What it reads the stream with.
        heads: The queries, keys and values found.
        inside: All calls of its block.
        maker: What makes the write.
        modules: The model's modules by name.
    """
    left = _without([(linear, list(range(linear.output.shape[-1]))) for linear in linears], heads)
    if isinstance(maker, Experts):
        count = _experts(modules[maker.tap.module])
        for linear, rows in left:
            if len(rows) == count:
                yield linear.read("router", (tuple(rows),))
        left = [(linear, rows) for linear, rows in left if len(rows) != count]
    gated = _gated(left, inside, modules)
    yield from gated
    left = _without(left, gated)
    # an MLP without a last linear map is a mixture whose experts were not found: what is read may be its router
    untold = isinstance(maker, Experts) or (site.kind == "mlp" and isinstance(maker, str))
    whole = not heads and not gated and not untold and site.kind not in ("attn", "cross_attn")
    for linear, rows in left:
        neurons = whole and isinstance(maker, Projection) and len(left) == 1 and len(rows) == maker.width
        yield linear.read("in" if whole else "read", (tuple(rows),), neurons=neurons)


def _without(left: Sequence[tuple[Linear, list[int]]], reads: Sequence[Read]) -> list[tuple[Linear, list[int]]]:
    """Linear maps and rows of theirs, without those that these reads have; without a map that has none left."""
    taken: dict[Tap, set[int]] = {}
    for read in reads:
        taken.setdefault(read.tap, set()).update(*read.rows)
    rest = [(linear, [row for row in rows if row not in taken.get(linear.tap, ())]) for linear, rows in left]
    return [(linear, rows) for linear, rows in rest if rows]


def _gated(
    left: Sequence[tuple[Linear, list[int]]], inside: Sequence[Event], modules: Mapping[str, nn.Module]
) -> tuple[Read, ...]:
    """Gate and up of a gated MLP; nothing if it is none."""
    for event in inside:
        acted = event.inputs[0] if event.inputs else None
        if event.output is None or acted is None or acted.shape != event.output.shape:
            continue
        for linear, rows in left:
            gate = _rows(linear, rows, acted)
            if gate is None or same(acted, event.output):
                continue
            acting = set(gate)
            rest = [row for row in rows if row not in acting]
            others = [(linear, rest), *(other for other in left if other[0] is not linear)]
            for other, up in others:
                if len(up) != len(gate):
                    continue
                made = laid_out(event.output, other.output).double() * other.output[..., up]
                if any(_reads(e, made) and is_affine(modules[e.module], e) for e in inside):
                    parts = ((linear, "gate", gate), (other, "up", up))
                    return tuple(one.read(part, (tuple(r),), neurons=True) for one, part, r in parts)
    return ()


def _rows(linear: Linear, rows: list[int], acted: Tensor) -> list[int] | None:
    """Which of these outputs a call acted on, in its order; None if it acted on something else."""
    width, tokens = acted.shape[-1], linear.output[..., 0].numel()
    if acted.numel() != width * tokens or width not in (len(rows), len(rows) // 2):
        return None
    outputs = linear.output if len(rows) == linear.output.shape[-1] else linear.output[..., list(rows)]
    if width == len(rows):
        return rows if same(laid_out(acted, outputs), outputs) else None
    at = locate(_tokens(laid_out(acted, outputs)), _tokens(outputs), NEAR[acted.dtype])
    return None if at is None else [rows[n] for n in at.tolist()]


def _reads(event: Event, value: Tensor) -> bool:
    """Whether a call's input is this tensor, up to the rounding of a product."""
    given = event.inputs[0] if event.inputs else None
    if given is None or given.numel() != value.numel():
        return False
    near = NEAR[given.dtype]
    return bool((laid_out(given, value).double() - value).norm() < near * value.norm())


def _tokens(value: Tensor) -> Tensor:
    return value.reshape(-1, value.shape[-1]).double()


def _experts(module: nn.Module) -> int:
    """How many experts a module holds: the first axis of its tensors, or its children."""
    tensors = [p for p in module.parameters(recurse=False) if p.dim() == 3]
    return len(tensors[0]) if tensors else len(list(module.children()))
