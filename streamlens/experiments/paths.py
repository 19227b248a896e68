"""The gradient by path length, in float64.

1. Terms of middle lengths are thousands of times as large as their sum. In float32 roundings alone would be as large as
   the total, so the paths are followed on a float64 copy of the model (`hooks/gradients/wide.py`), whose gradient
   differs from the model's own by the roundings of its dtype; that difference is reported.
2. One run, cut at every write, gives all families (`hooks/gradients/paths.py`).
3. Each family's sum is compared with a gradient that one backward gives: of the whole model, or of the model whose
   other branches are held constant. Where it is another, `ClosureError`.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from torch import Tensor

from streamlens.arguments import typed
from streamlens.errors import ClosureError, InputError, WiringError
from streamlens.experiments.metric import Asked, Metric, metric_of
from streamlens.hooks.gradients.gradient import gradients_of
from streamlens.hooks.gradients.graph import Graph, differentiating, graph_of
from streamlens.hooks.gradients.paths import CutRun, Walk, cut_run, sampled_norms, walk_paths
from streamlens.hooks.gradients.wide import wide, widened
from streamlens.hooks.prompts import Prompt
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.models.handle import ModelHandle
from streamlens.readouts.depth.paths import Lengths, Paths

#: kinds of branches that are counted apart; a mixer takes attention's place
KINDS = {"attn": ("attn", "cross_attn", "mixer"), "mlp": ("mlp",)}
#: relative closing error above which a sum counts as wrong
CLOSES = 1e-5


@typed
def paths(
    model: ModelHandle,
    prompt: Prompt | Clean,
    reader: Asked,
    position: str | int | None = -1,
    *,
    row: int = 0,
    target: str | int | None = None,
    samples: int = 0,
    seed: int = 0,
    precision: str = "float64",
    **forward_kwargs: Any,
) -> Paths:
    """Takes the total gradient at the embedding apart by the number of branches that it went through.

    Args:
        model: From `streamlens.load`.
        prompt: One prompt, or an earlier clean run of it.
        reader: What is differentiated, as for `backward`.
        position: Where it is read, as for `backward`.
        row: Which of the reader's rows.
        target: As for `backward`.
        samples: How many single paths of each length are drawn and measured: the effective path length of Veit et al.
            2016 needs them.
        seed: For the draw.
        precision: "float64" follows the paths on a float64 copy of the model; "model" in the model itself, for
            architectures that know no float64. There the sum can be lost in roundings: see `closure`.
        **forward_kwargs: As for `decompose`.

    Returns:
        One vector per token and length, for all paths and by kind of branch; the lengths sum to the gradient.

    Raises:
        InputError: Several prompts, or a reader, position or number that does not fit.
        WiringError: The model's forward cannot be differentiated, or not in float64.
        ClosureError: In float64, the lengths do not sum to autograd's gradient.

    Cost: about branches^2 / 2 vector-Jacobian products of one branch, and 1.5 times as many for the families by kind:
    10 s of one core for the 60 branches of the default model at 10 tokens; 2 s more per sample. It grows with the
    length. Memory: a float64 copy of the model, and the graph of 160 tokens.
    """
    if precision not in ("float64", "model"):
        raise InputError(f'The precision is "float64" or "model"; got {precision!r}.')
    if samples < 0:
        raise InputError(f"samples is a number of paths per length, 0 for none; got {samples}.")
    own = prompt if isinstance(prompt, Clean) else start_run(model, prompt, keep_logits=False, **forward_kwargs)
    if len(own.context) != 1:
        raise InputError(f"Paths are of one prompt; got {len(own.context)}.")
    own = own.unpadded
    metric = metric_of(own, reader, position, row=row, target=target)
    as_it_is, value = _gradient(own, metric)
    tapped = [n for n, write in enumerate(own.wiring.writes) if write.tap is not None]
    with _followed_in(own, precision) as clean:
        total, _ = _gradient(clean, metric)
        found: dict[str, Lengths] = {}
        with cut_run(clean, _of_rows(metric), rows=len(tapped)) as run:
            every = walk_paths(run)
            found["all"] = _lengths(every, total)
            for name, kinds in KINDS.items():
                mine = {n for n in tapped if own.wiring.sites[n].kind in kinds}
                if mine:
                    found[name] = _lengths(walk_paths(run, counted=mine), total)
                    others = {n for n in tapped if n != run.first} - mine
                    held, _ = _gradient(clean, metric, cut=others)
                    found[f"{name} only"] = _lengths(walk_paths(run, traversed=mine, counted=mine), held)
            single = _single(run, every, samples, seed) if samples else None
    made = Paths(
        ledger=own.ledger,
        metric=metric.name,
        unit=metric.unit,
        value=value,
        place=metric.places[0],
        families=found,
        single=single,
        drift=float((as_it_is - total).norm() / total.norm().clamp_min(1e-300)),
        precision=precision,
    )
    if precision == "float64" and not made.closure <= CLOSES:
        raise ClosureError(
            f"The path lengths do not sum to the gradient: relative error {made.closure:.1e}.",
            hint="Something in the model passes gradients by another way than its writes.",
        )
    return made


@contextmanager
def _followed_in(own: Clean, precision: str) -> Iterator[Clean]:
    """The run in which paths are followed: of the model itself, or of its float64 copy."""
    if precision == "model":
        yield own
        return
    try:
        with wide():
            yield replace(own, model=widened(own.model))
    except WiringError as error:
        raise WiringError(
            error.message, hint='precision="model" follows the paths in the model\'s own dtype.'
        ) from error


def _gradient(clean: Clean, metric: Metric, cut: Collection[int] = ()) -> tuple[Tensor, float]:
    """The gradient at the embedding from one backward, past the cut writes, [pos, d_model]; and the metric's value."""
    with differentiating(clean.model):
        graph = graph_of(clean, cut=cut)
        first = min(graph.writes)
        return gradients_of(graph, metric.of(graph)).writes[first][0], float(metric.value(graph)[0])


def _of_rows(metric: Metric) -> Any:
    """The metric of each of several equal rows."""

    def measure(graph: Graph, rows: int) -> Tensor:
        return replace(metric, places=metric.places * rows, targets=metric.targets * rows).of(graph)

    return measure


def _lengths(walk: Walk, target: Tensor) -> Lengths:
    return Lengths(vectors=walk.vectors, counts=walk.counts, target=target)


def _single(run: CutRun, walk: Walk, samples: int, seed: int) -> Tensor:
    """The norms of single paths, drawn with equal chances from those of each length, [length, sample]."""
    chance, lengths = Random(seed), len(walk.counts)
    drawn = [walk.draw(length, chance) for length in range(lengths) for _ in range(samples)]
    return sampled_norms(run, drawn).reshape(lengths, samples)
