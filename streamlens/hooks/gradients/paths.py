"""Gradients along paths: by how many branches a path goes through, all 2^S of them in one walk.

1. The prompt runs as a batch of equal rows over a graph that is cut at every write, so that each row can carry another
   gradient back: a row per length.
2. On the walk from the last branch to the first, the vectors of a branch's write, one per length, go back through the
   branch in one batch, and join those that pass it one length up: G[k] <- C^T G[k] + J^T G[k - 1].
3. What may be gone through, and what counts, can be some branches only: a path through another is left out, or goes on
   at its length.
4. The number of paths of each length is counted by the same recursion. It is the binomial where branches follow one
   another; no path goes through both branches of a parallel block.
5. `sampled_norms` follows single paths instead, drawn at random, a row each (Veit et al. 2016).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.hooks.gradients.branches import Rows, Sums, direct, through
from streamlens.hooks.gradients.graph import Graph, differentiating, every_write, graph_of
from streamlens.hooks.runs.variants import repeated_batch
from streamlens.hooks.writes.clean import Clean

#: tokens whose graph is kept at a time: enough for fast products, few enough that not many rows run empty
TOKENS = 160

#: makes one number per row of a graph's batch
Measure = Callable[[Graph, int], Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class CutRun:
    """A prompt's rows, cut at every write, and the gradient that goes past all branches.

    Attributes:
        graph: The run.
        rows: How many equal rows it has.
        along: The direct route at each write, [run, d_model].
    """

    graph: Graph
    rows: int
    along: Rows

    @property
    def first(self) -> int:
        """The write at which paths end: the embedding."""
        return min(self.graph.leaves)

    @property
    def scale(self) -> float:
        """What a gradient at its tap is divided by."""
        return self.graph.clean.wiring.writes[self.first].scale

    def through(self, row: int, gradients: Float[Tensor, "rows run d_model"]) -> Rows:
        """Any number of gradients back through one branch; what is one tensor stays one."""
        if self.graph.writes[row].grad_fn is None:
            return {}
        parts = []
        for some in gradients.split(self.rows):
            filled = torch.cat([some, some.new_zeros(self.rows - len(some), *some.shape[1:])])
            parts.append(through(self.graph, row, filled))
        made: dict[tuple[int, ...], Tensor] = {}
        back: Rows = {}
        for earlier in parts[0]:
            pieces = [part[earlier] for part in parts]
            key = tuple(map(id, pieces))
            if key not in made:
                made[key] = torch.cat(pieces)[: len(gradients)]
            back[earlier] = made[key]
        return back


@contextmanager
def cut_run(clean: Clean, measure: Measure, *, rows: int) -> Iterator[CutRun]:
    """The prompt's rows with their graph, for the length of the block, in which autograd is on.

    Args:
        clean: The run, of one prompt without padding.
        measure: The metric of every row, given the graph and how many rows it has.
        rows: How many gradients are to go back at once; fewer where a graph of so many would be too large.
    """
    length = clean.batch.run_mask.shape[1]
    rows = max(1, min(rows, TOKENS // length))
    with differentiating(clean.model):
        batch = repeated_batch(clean, rows, list(range(length)))
        graph = graph_of(replace(clean, batch=batch), cut=every_write(clean))
        along = {row: gradient[0] for row, gradient in direct(graph, measure(graph, rows)).items()}
        yield CutRun(graph=graph, rows=rows, along=along)


@dataclass(frozen=True, eq=False, kw_only=True)
class Walk:
    """What one walk from the last branch to the embedding found.

    Attributes:
        vectors: The gradient at the embedding by number of branches gone through, [length, run, d_model].
        ways: For each write, how many paths of each length lead from it to the end.
        reads: For each branch the write right behind which it reads.
    """

    vectors: Float[Tensor, "length run d_model"]
    ways: dict[int, list[int]]
    reads: dict[int, int]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many paths of each length there are."""
        return tuple(self.ways[min(self.ways)])

    def draw(self, length: int, chance: Random) -> set[int]:
        """One path of a length, each with equal chances: the rows of its branches."""
        here, path = min(self.ways), set()
        for left in range(length, 0, -1):
            choices = [row for row, read in self.reads.items() if read >= here and len(self.ways[row]) >= left]
            (here,) = chance.choices(choices, [self.ways[row][left - 1] for row in choices])
            path.add(here)
        return path


def walk_paths(
    run: CutRun, *, traversed: Collection[int] | None = None, counted: Collection[int] | None = None
) -> Walk:
    """The gradient at the embedding by number of branches gone through, and how many paths there are of each.

    Args:
        run: The cut run.
        traversed: Rows of the branches that paths may go through; None for all.
        counted: Rows of the branches that count; None for all.

    Cost: branches^2 / 2 vector-Jacobian products of one branch.
    """
    handed = Sums(run.graph.leaves, _added)
    ways = {row: [1] for row in run.graph.leaves}
    reads: dict[int, int] = {}
    stack = run.along[run.first][None]
    for row in sorted(run.graph.writes, reverse=True):
        come = handed.at(row)
        stack = run.along[row][None] if come is None else _added(run.along[row][None], come)
        if traversed is not None and row not in traversed:
            continue
        back = run.through(row, stack)
        if not back:
            continue
        reads[row] = max(back)
        longer = counted is None or row in counted
        handed.add(dict(_longer(back)) if longer else back)
        for earlier in ways:
            if earlier <= reads[row]:
                ways[earlier] = _sum(ways[earlier], [0] * longer + ways[row])
    return Walk(vectors=stack / run.scale, ways=ways, reads=reads)


def sampled_norms(run: CutRun, paths: Sequence[Collection[int]]) -> Float[Tensor, " path"]:
    """The norm of the gradient that each of some single paths brings to the embedding, over all positions.

    Args:
        run: The cut run.
        paths: The rows of the branches that each goes through.
    """
    here: list[Rows] = [run.along] * len(paths)
    for row in sorted(run.graph.writes, reverse=True):
        mine = [n for n, path in enumerate(paths) if row in path]
        if not mine:
            continue
        nothing = torch.zeros_like(run.along[row])
        back = run.through(row, torch.stack([here[n].get(row, nothing) for n in mine]))
        for place, n in enumerate(mine):
            here[n] = {earlier: each[place] for earlier, each in back.items()}
    ends = [arrived[run.first].norm() if run.first in arrived else torch.zeros(()) for arrived in here]
    return torch.stack([end.double().cpu() for end in ends]) / abs(run.scale)


def _sum(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]


def _added(one: Tensor, other: Tensor) -> Tensor:
    """The sum of two stacks, the shorter filled up with zeros."""
    short, long = sorted((one, other), key=len)
    summed = long.clone()
    summed[: len(short)] += short
    return summed


def _longer(rows: Rows) -> Iterator[tuple[int, Tensor]]:
    """Every length one up; what is one tensor stays one."""
    made: dict[int, Tensor] = {}
    for row, each in rows.items():
        if id(each) not in made:
            made[id(each)] = torch.cat([torch.zeros_like(each[:1]), each])
        yield row, made[id(each)]
