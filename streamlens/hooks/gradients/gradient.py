"""Gradients of what a reader sees, at every write: one forward with a graph, one backward per number.

1. The run is made again with its graph (`graph.py`), and every write's tensor kept.
2. The metric is the reader on the model's own output at a position: its logits, its normed stream, or its stream.
3. `torch.autograd.grad` is asked for the kept tensors alone: no `.grad` is written, no flag is changed.
4. A write is `scale` times what its tap gives, so its gradient is the tap's divided by `scale`.

The gradient at a write is dm/du through everything after it: the direct route and all later branches. In a pre-norm
model it is the gradient of the stream right after the write, dm/dx[s + 1].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.errors import InputError
from streamlens.hooks.edits.action import Action
from streamlens.hooks.gradients.graph import Graph, Readable, differentiating, graph_of
from streamlens.hooks.prompts import Prompt, kept_positions
from streamlens.hooks.taps import as_stream
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.models.handle import ModelHandle


@dataclass(frozen=True, eq=False, kw_only=True)
class Gradients:
    """The gradient of one number at every kept tensor, float64.

    Attributes:
        graph: The run.
        writes: dm/du by row, [batch, pos, d_model].
        inputs: dm/dz of what a projection reads, by the row of its write, [batch, pos, width].
    """

    graph: Graph
    writes: Mapping[int, Float[Tensor, "batch pos d_model"]]
    inputs: Mapping[int, Float[Tensor, "batch pos width"]]

    def estimate(self, actions: Sequence[Action]) -> float:
        """The first-order effect of some actions: gradient times (edited - clean), summed.

        Raises:
            InputError: An attention edge, whose change is no change of a tensor that is kept.
        """
        total = 0.0
        for action in actions:
            if action.source is not None:
                raise InputError("An attention edge has no first-order estimate here.", hint="Sweep it exactly.")
            graph = self.graph
            whole = action.columns is None
            kept = graph.writes[action.row] if whole else graph.inputs[action.row]
            here = as_stream(kept.detach(), graph.clean.wiring, graph.clean.batch)
            gradient = self.writes[action.row] if whole else self.inputs[action.row]
            columns = slice(None) if action.columns is None else action.columns
            before = here[action.rows, action.positions][:, columns] * action.scale
            change = action.change(before).double() - before.double()
            total += float((gradient[action.rows, action.positions][:, columns] * change).sum())
        return total


def read_gradients(graph: Graph, reader: Readable, positions: Sequence[int], row: int = 0) -> Gradients:
    """The gradients of one row of a reader at one position of each prompt. Cost: one backward.

    Raises:
        WiringError: The model's forward cannot be differentiated.
    """
    with differentiating(graph.clean.model):
        return gradients_of(graph, graph.metric(reader, positions)[:, row])


def gradients_of(graph: Graph, metric: Float[Tensor, " batch"]) -> Gradients:
    """The gradients of a number per prompt, made of the graph's ends under `differentiating`. Cost: one backward."""
    kept = [*graph.writes.values(), *graph.inputs.values()]
    found = torch.autograd.grad(metric.sum(), kept, retain_graph=True, allow_unused=True)  # prompts see only themselves
    streams = [
        graph.streamed(torch.zeros_like(tensor) if grad is None else grad)
        for tensor, grad in zip(kept, found, strict=True)
    ]
    scales = [graph.clean.wiring.writes[n].scale for n in graph.writes]
    writes = {n: grad / scale for n, scale, grad in zip(graph.writes, scales, streams, strict=False)}
    return Gradients(
        graph=graph, writes=writes, inputs=dict(zip(graph.inputs, streams[len(graph.writes) :], strict=True))
    )


def gradients(
    model: ModelHandle,
    clean: Prompt | Clean,
    reader: Readable,
    position: int | str = -1,
    *,
    row: int = 0,
    **forward_kwargs: Any,
) -> dict[int, Float[Tensor, "batch pos d_model"]]:
    """The gradient of what a reader sees at a position, at every write and position.

    Args:
        model: From `streamlens.load`.
        clean: Prompts, or an earlier clean run of them.
        reader: What is read off the model's own output: logits, normed stream or stream.
        position: Where it reads, in each prompt.
        row: Which of the reader's rows.
        **forward_kwargs: As for `decompose`.

    Returns:
        For the row of each tapped write (constants have none) dm/du, [batch, pos, d_model], float64, laid out as the
        ledger's `added`, in the reader's unit per unit of the write as it is added. 0 at padding, and where the write
        cannot reach the reader.

    Raises:
        InputError: A reader or position that does not fit.
        WiringError: The model's forward cannot be differentiated.

    Cost: one forward that keeps its activations, and one backward.
    """
    run = clean if isinstance(clean, Clean) else start_run(model, clean, **forward_kwargs)
    if not 0 <= row < len(reader.matrix):
        raise InputError(f"{reader.name!r} has {len(reader.matrix)} rows, numbered from 0; got row {row}.")
    kept = kept_positions(run.context, position)
    assert kept is not None
    found = read_gradients(graph_of(run), reader, [places[0] for places in kept], row).writes
    padding = ~run.batch.mask[..., None]
    return {n: run.batch.keep(each).masked_fill(padding.to(each.device), 0.0) for n, each in found.items()}
