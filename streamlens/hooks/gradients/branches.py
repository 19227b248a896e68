"""The backward pass branch by branch, over a graph that is cut at every write.

1. `direct` is the gradient of the metric along the stream alone: past every branch, through every carry.
2. `through` takes the gradient at a branch's write back through that branch to the stream it read, and from there along
   the stream to every write before it.
3. `backward_pass` walks back over the branches. When it comes to one, all later ones have handed back what passes
   through them, so the sum at its write is the whole gradient there.

Nothing is asked of an architecture: a branch is a write whose graph reaches an earlier one, and it reads the stream
right behind the latest that it reaches. The two branches of a parallel block read at one place.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.errors import WiringError
from streamlens.hooks.gradients.graph import Graph

#: by row of the wiring
Rows = dict[int, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class BackwardPass:
    """One backward pass in parts; float64, at every position of the run, per unit of the write as it is added.

    Attributes:
        direct: Along the stream alone, at each write, [batch, run, d_model].
        total: The sum of all routes at each write.
        reads: For each branch the write right behind which it reads the stream.
        own: What each branch hands back there: J^T g.
        arrived: The same at the first write, through the carries between.
    """

    direct: Rows
    total: Rows
    reads: Mapping[int, int]
    own: Rows
    arrived: Rows


def backward_pass(graph: Graph, metric: Float[Tensor, " batch"]) -> BackwardPass:
    """The gradient of a number per prompt in parts, under `differentiating`.

    Args:
        graph: Cut at every write.
        metric: Made of the graph's ends.

    Cost: one backward in pieces, and O(branches^2) additions of a stream.
    """
    scales = {row: graph.clean.wiring.writes[row].scale for row in graph.writes}
    first = min(graph.leaves)
    along = direct(graph, metric)
    sums = Sums(graph.leaves)
    total: Rows = {}
    reads: dict[int, int] = {}
    own: Rows = {}
    arrived: Rows = {}
    for row in sorted(graph.writes, reverse=True):
        handed = sums.at(row)
        total[row] = along[row] if handed is None else along[row] + handed
        back = through(graph, row, total[row])
        if back:
            reads[row] = max(back)
            own[row] = back[reads[row]] / scales[reads[row]]
            arrived[row] = back[first] / scales[first] if first in back else torch.zeros_like(own[row])
            sums.add(back)
    return BackwardPass(
        direct={row: gradient / scales[row] for row, gradient in along.items()},
        total={row: gradient / scales[row] for row, gradient in total.items()},
        reads=reads,
        own=own,
        arrived=arrived,
    )


class Sums:
    """What branches have handed back to each write so far, on a walk from the last write to the first.

    Where every carry between them is the identity, a branch hands one and the same tensor to all writes before it: it
    is added once, to a sum that goes along with the walk.
    """

    def __init__(self, rows: Iterable[int], add: Callable[[Tensor, Tensor], Tensor] = torch.add) -> None:
        self._known = tuple(rows)
        self._plus = add
        self._rows: Rows = {}
        self._from: Rows = {}  # to be added at this write and at all before it
        self._walking: Tensor | None = None

    def add(self, back: Rows) -> None:
        """Adds what one branch hands back."""
        latest = max(back)
        steady = len(back) == sum(row <= latest for row in self._known) and len(set(map(id, back.values()))) == 1
        for row, gradient in [(latest, back[latest])] if steady else back.items():
            table = self._from if steady else self._rows
            table[row] = self._plus(table[row], gradient) if row in table else gradient

    def at(self, row: int) -> Tensor | None:
        """The sum at a write, once the walk has come to it; None where nothing has come back."""
        started = self._from.pop(row, None)
        if started is not None:
            self._walking = started if self._walking is None else self._plus(self._walking, started)
        own = self._rows.pop(row, None)
        if own is None or self._walking is None:
            return self._walking if own is None else own
        return self._plus(own, self._walking)


def direct(graph: Graph, metric: Float[Tensor, " batch"]) -> Rows:
    """The gradient at every tap's leaf that passes no branch, [batch, run, d_model], in float64."""
    rows, leaves = list(graph.leaves), list(graph.leaves.values())
    found = torch.autograd.grad(metric.sum(), leaves, retain_graph=True, allow_unused=True)
    nothing = torch.zeros_like(graph.streamed(leaves[0].detach()))
    return dict.fromkeys(rows, nothing) | _streams(graph, rows, found)


def through(graph: Graph, row: int, gradient: Float[Tensor, "batch run d_model"]) -> Rows:
    """What one write's branch makes of the gradient at its tap: at every tap before it, along the stream.

    Returns:
        By row, [batch, run, d_model], float64; nothing for a write that reads no stream.

    Raises:
        WiringError: The branch reads a write that comes after it in the stream.
    """
    write = graph.writes[row]
    others = [other for other in graph.leaves if other != row]
    if write.grad_fn is None or not others:
        return {}
    leaves = [graph.leaves[other] for other in others]
    given = gradient.to(write.dtype)
    found = torch.autograd.grad(graph.laid_out(write), leaves, given, retain_graph=True, allow_unused=True)
    back = _streams(graph, others, found)
    if back and max(back) > row:
        sites = graph.clean.wiring.sites
        raise WiringError(f"{sites[row]} reads {sites[max(back)]}, which comes after it in the stream.")
    return back


def _streams(graph: Graph, rows: list[int], found: tuple[Tensor | None, ...]) -> Rows:
    """In float64; what autograd handed out as one tensor stays one."""
    made: dict[tuple, Tensor] = {}
    streams: Rows = {}
    for row, each in zip(rows, found, strict=True):
        if each is not None:
            key = each.data_ptr(), each.shape, each.stride()
            made[key] = streams[row] = made[key] if key in made else graph.streamed(each)
    return streams
