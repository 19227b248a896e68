"""Gradients of what a reader sees, at every write: one forward with a graph, one backward per number.

1. The run is made again with autograd on. At each tap the tensor is kept and a copy goes on into the model, so that a
   model that adds in place does not change what was kept. Where no graph has begun yet (frozen parameters: at the
   embedding), the kept tensor becomes its beginning.
2. The metric is the reader on the model's own output at a position: its logits, its normed stream, or its stream.
3. `torch.autograd.grad` is asked for the kept tensors alone: no `.grad` is written, no flag is changed.
4. A write is `scale` times what its tap gives, so its gradient is the tap's divided by `scale`.

The gradient at a write is dm/du through everything after it: the direct route and all later branches. In a pre-norm
model it is the gradient of the stream right after the write, dm/dx[s + 1].
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens.errors import InputError, WiringError
from streamlens.hooks.action import Action
from streamlens.hooks.clean import Clean, start_run
from streamlens.hooks.prompts import Prompt, kept_positions
from streamlens.hooks.scope import HookScope, quiet_eval, stream_output, with_stream_output
from streamlens.hooks.taps import Listener, as_stream, attach, first_floating
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Projection, Tap


@runtime_checkable
class Readable(Protocol):
    """What a gradient needs of a reader: rows, and what they read."""

    @property
    def name(self) -> str: ...
    @property
    def matrix(self) -> Tensor: ...
    @property
    def bias(self) -> Tensor: ...
    @property
    def norm(self) -> str: ...
    @property
    def vocabulary(self) -> Any: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """A run whose graph is still there. Holds every activation of the run until it is let go.

    Attributes:
        clean: The run without edits that it repeats.
        writes: What each tapped write's tap gave, in the module's own layout, by row.
        inputs: What each projection read (heads and neurons), in its own layout, by the row of its write.
        ends: The run's "stream", "normed" and "logits" as far as they exist, [batch, pos, ...].
    """

    clean: Clean
    writes: dict[int, Tensor] = field(default_factory=dict)
    inputs: dict[int, Tensor] = field(default_factory=dict)
    ends: dict[str, Tensor] = field(default_factory=dict)

    def metric(self, reader: Readable, positions: Sequence[int]) -> Float[Tensor, "batch reader"]:
        """The reader on the model's own output at one position of each prompt, its constant left out; float64.

        A reader may have been made in inference mode; such tensors cannot enter a graph, copies can.
        """
        vocabulary = reader.vocabulary
        rows = torch.arange(len(positions))
        if vocabulary is not None and "logits" in self.ends:
            logits = self.ends["logits"][rows, list(positions)][:, list(vocabulary.ids)]
            return logits.double() @ vocabulary.mix.to(logits.device).clone().T
        end = self.ends["stream" if reader.norm == "none" else "normed"][rows, list(positions)]
        width = reader.matrix.shape[-1]
        if width != end.shape[-1]:
            raise InputError(f"A reader is as wide as the stream, {end.shape[-1]}; {reader.name!r} is {width} wide.")
        return end.double() @ reader.matrix.to(end.device).clone().T

    def value(self, reader: Readable, positions: Sequence[int]) -> Float[Tensor, "batch reader"]:
        """The reader's own value there, its constant included, without a graph; float64, on the CPU."""
        value = self.metric(reader, positions).detach().cpu()
        from_logits = reader.vocabulary is not None and "logits" in self.ends  # which have it already
        return value if from_logits else value + reader.bias

    def gradients(self, reader: Readable, positions: Sequence[int], row: int = 0) -> "Gradients":
        """The gradients of one row of a reader at one position of each prompt. Cost: one backward.

        Raises:
            WiringError: The model's forward cannot be differentiated.
        """
        kept = [*self.writes.values(), *self.inputs.values()]
        with torch.inference_mode(False), torch.enable_grad(), _differentiable(self.clean.model):
            value = self.metric(reader, positions)[:, row].sum()  # prompts do not see each other
            found = torch.autograd.grad(value, kept, retain_graph=True, allow_unused=True)
        streams = [
            as_stream(torch.zeros_like(tensor) if grad is None else grad, self.clean.wiring, self.clean.batch).double()
            for tensor, grad in zip(kept, found, strict=True)
        ]
        scales = [self.clean.wiring.writes[n].scale for n in self.writes]
        writes = {n: grad / scale for n, scale, grad in zip(self.writes, scales, streams, strict=False)}
        return Gradients(
            graph=self, writes=writes, inputs=dict(zip(self.inputs, streams[len(self.writes) :], strict=True))
        )


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
    found = graph_of(run).gradients(reader, [places[0] for places in kept], row).writes
    padding = ~run.batch.mask[..., None]
    return {n: run.batch.keep(each).masked_fill(padding.to(each.device), 0.0) for n, each in found.items()}


def graph_of(clean: Clean, *, inputs: Sequence[int] = ()) -> Graph:
    """Makes a run again, keeping its graph.

    Args:
        clean: The run.
        inputs: Rows of writes whose projections' inputs are kept too: for heads and neurons.

    Raises:
        WiringError: The model's forward cannot be run with autograd.

    Cost: one forward that keeps its activations.
    """
    model, wiring = clean.model, clean.wiring
    graph = Graph(clean=clean)
    taps: list[tuple[Tap, dict[int, Tensor], int]] = [
        (write.tap, graph.writes, row) for row, write in enumerate(wiring.writes) if write.tap is not None
    ]
    makers = model.projections(wiring.stream) if inputs else {}
    for row in inputs:
        maker = makers[row]
        assert isinstance(maker, Projection)
        taps.append((Tap(module=maker.tap.module, call=maker.tap.call, side="input"), graph.inputs, row))
    ends = [Listener(wiring.final, partial(_put, graph.ends, "stream"), all_positions=True)]
    if wiring.final_norm is not None:
        ends.append(Listener(wiring.final_norm.tap, partial(_put, graph.ends, "normed"), all_positions=True))
    with (
        quiet_eval(model.model),
        torch.inference_mode(False),
        torch.enable_grad(),
        HookScope() as scope,
        _differentiable(model),
    ):
        _keep(scope, clean, taps)
        attach(scope, model.modules, wiring, clean.batch, ends)
        # tensors made in a user's inference mode cannot enter a graph; their copies can
        given = {k: v.clone() if isinstance(v, Tensor) else v for k, v in clean.batch.inputs.items()}
        output = model.model(**given)
    graph.ends.setdefault("normed", graph.ends["stream"])
    logits = getattr(output, "logits", None)
    if wiring.head is not None and isinstance(logits, Tensor):
        graph.ends["logits"] = logits
    return graph


def _put(table: dict[str, Tensor], key: str, tensor: Tensor) -> None:
    table[key] = tensor.clone()


@contextmanager
def _differentiable(model: ModelHandle) -> Iterator[None]:
    """Says whose fault it is when autograd refuses."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        raise WiringError(
            f"The forward of {model.name} cannot be differentiated: {said}", hint="Leave estimate= out."
        ) from error


def _keep(scope: HookScope, clean: Clean, taps: Sequence[tuple[Tap, dict[int, Tensor], int]]) -> None:
    """Hooks that keep the tensor at each tap and hand a copy of it on."""
    by_module: dict[tuple[str, str], list[tuple[Tap, dict[int, Tensor], int]]] = defaultdict(list)
    for entry in taps:
        by_module[entry[0].module, entry[0].side].append(entry)
    for (name, side), entries in by_module.items():
        module = clean.model.modules[name]
        if side == "input":
            scope.before(module, _input_keeper(entries, clean))
        else:
            scope.after(module, _output_keeper(entries, clean))


def _output_keeper(entries: Sequence[tuple[Tap, dict[int, Tensor], int]], clean: Clean) -> Callable:
    calls = 0

    def hook(_module: nn.Module, _args: tuple, _kwargs: dict, output: Any) -> Any:
        nonlocal calls
        mine = [(table, row) for tap, table, row in entries if tap.call == calls]
        calls += 1
        tensor = stream_output(output) if mine else None
        return None if tensor is None else with_stream_output(output, _kept(tensor, mine, clean))

    return hook


def _input_keeper(entries: Sequence[tuple[Tap, dict[int, Tensor], int]], clean: Clean) -> Callable:
    calls = 0

    def hook(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        nonlocal calls
        mine = [(table, row) for tap, table, row in entries if tap.call == calls]
        calls += 1
        tensor = first_floating(args, kwargs) if mine else None
        if tensor is None:
            return None
        new = _kept(tensor, mine, clean)
        return tuple(new if a is tensor else a for a in args), {k: new if v is tensor else v for k, v in kwargs.items()}

    return hook


def _kept(tensor: Tensor, entries: Sequence[tuple[dict[int, Tensor], int]], clean: Clean) -> Tensor:
    """Keeps a tensor under its rows; returns what the model goes on with."""
    stream = as_stream(tensor, clean.wiring, clean.batch)
    # one tensor for all prompts (positions) would mix their gradients
    kept = tensor if tensor.numel() == stream.numel() else stream
    if not kept.requires_grad:
        kept = kept.detach().clone().requires_grad_()
    for table, row in entries:
        table[row] = kept
    return kept.clone()
