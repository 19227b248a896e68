"""A run whose graph is still there, whole or cut at every write.

1. The run is made again with autograd on. At each tap the tensor is kept and a copy goes on into the model, so that a
   model that adds in place does not change what was kept. Where no graph has begun yet (frozen parameters: at the
   embedding), the kept tensor becomes its beginning.
2. A cut graph ends at given writes: what goes on into the model is a new beginning with the same numbers, a leaf. Cut
   at every write, the graph of one reaches the leaves before it along the stream alone, never through another branch.
3. A metric is a number per prompt, made of the model's own output: a reader at a position, or a loss.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens.errors import InputError, WiringError
from streamlens.hooks.scope import HookScope, quiet_eval, stream_output, with_stream_output
from streamlens.hooks.taps import Listener, as_stream, attach, first_floating
from streamlens.hooks.writes.clean import Clean
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Projection, Tap

Tables = tuple[dict[int, Tensor], dict[int, Tensor] | None]  # what is kept, and where its leaf goes


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
        leaves: Where the graph is cut, what went on into the model instead: the beginning of all that follows.
        inputs: What each projection read (heads and neurons), in its own layout, by the row of its write.
        ends: The run's "stream", "normed" and "logits" as far as they exist, [batch, pos, ...].
    """

    clean: Clean
    writes: dict[int, Tensor] = field(default_factory=dict)
    leaves: dict[int, Tensor] = field(default_factory=dict)
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

    def loss(self, positions: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Float[Tensor, " batch"]:
        """The mean cross entropy of given tokens at some positions of each prompt, in nats; float64."""
        losses = []
        for logits, places, ids in zip(self.ends["logits"], positions, targets, strict=True):
            log_probs = logits[list(places)].double().log_softmax(-1)
            losses.append(-log_probs[torch.arange(len(ids)), list(ids)].mean())
        return torch.stack(losses)

    def laid_out(self, tensor: Tensor) -> Float[Tensor, "batch run d_model"]:
        """A tensor in a module's own layout as [batch, pos, d_model], at every position of the run."""
        return as_stream(tensor, self.clean.wiring, self.clean.batch)

    def streamed(self, tensor: Tensor) -> Float[Tensor, "batch run d_model"]:
        """The same in float64."""
        return self.laid_out(tensor).double()


def graph_of(clean: Clean, *, inputs: Sequence[int] = (), cut: Collection[int] = ()) -> Graph:
    """Makes a run again, keeping its graph.

    Args:
        clean: The run.
        inputs: Rows of writes whose projections' inputs are kept too: for heads and neurons.
        cut: Rows of writes at which the graph ends; see `every_write`.

    Raises:
        WiringError: The model's forward cannot be run with autograd.

    Cost: one forward that keeps its activations.
    """
    model, wiring = clean.model, clean.wiring
    graph = Graph(clean=clean)
    taps: list[tuple[Tap, Tables, int]] = [
        (write.tap, (graph.writes, graph.leaves if row in cut else None), row)
        for row, write in enumerate(wiring.writes)
        if write.tap is not None
    ]
    makers = model.projections(wiring.stream) if inputs else {}
    for row in inputs:
        maker = makers[row]
        assert isinstance(maker, Projection)
        taps.append((Tap(module=maker.tap.module, call=maker.tap.call, side="input"), (graph.inputs, None), row))
    ends = [Listener(wiring.final, partial(_put, graph.ends, "stream"), all_positions=True)]
    if wiring.final_norm is not None:
        ends.append(Listener(wiring.final_norm.tap, partial(_put, graph.ends, "normed"), all_positions=True))
    with quiet_eval(model.model), differentiating(model), HookScope() as scope:
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


def every_write(clean: Clean) -> range:
    """The rows at which a graph is cut so that branches come apart."""
    return range(len(clean.wiring.writes))


@contextmanager
def differentiating(model: ModelHandle) -> Iterator[None]:
    """Autograd on, whatever the caller's mode; says whose fault it is when it refuses."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        raise WiringError(
            f"The forward of {model.name} cannot be differentiated: {said}",
            hint="Rerun it with edits instead: ablate() and sweep() need no gradient.",
        ) from error


def _put(table: dict[str, Tensor], key: str, tensor: Tensor) -> None:
    table[key] = tensor.clone()


def _keep(scope: HookScope, clean: Clean, taps: Sequence[tuple[Tap, Tables, int]]) -> None:
    """Hooks that keep the tensor at each tap and hand a copy of it on."""
    by_module: dict[tuple[str, str], list[tuple[Tap, Tables, int]]] = defaultdict(list)
    for entry in taps:
        by_module[entry[0].module, entry[0].side].append(entry)
    for (name, side), entries in by_module.items():
        module = clean.model.modules[name]
        if side == "input":
            scope.before(module, _input_keeper(entries, clean))
        else:
            scope.after(module, _output_keeper(entries, clean))


def _output_keeper(entries: Sequence[tuple[Tap, Tables, int]], clean: Clean) -> Callable:
    calls = 0

    def hook(_module: nn.Module, _args: tuple, _kwargs: dict, output: Any) -> Any:
        nonlocal calls
        mine = [(tables, row) for tap, tables, row in entries if tap.call == calls]
        calls += 1
        tensor = stream_output(output) if mine else None
        return None if tensor is None else with_stream_output(output, _kept(tensor, mine, clean))

    return hook


def _input_keeper(entries: Sequence[tuple[Tap, Tables, int]], clean: Clean) -> Callable:
    calls = 0

    def hook(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        nonlocal calls
        mine = [(tables, row) for tap, tables, row in entries if tap.call == calls]
        calls += 1
        tensor = first_floating(args, kwargs) if mine else None
        if tensor is None:
            return None
        new = _kept(tensor, mine, clean)
        return tuple(new if a is tensor else a for a in args), {k: new if v is tensor else v for k, v in kwargs.items()}

    return hook


def _kept(tensor: Tensor, entries: Sequence[tuple[Tables, int]], clean: Clean) -> Tensor:
    """Keeps a tensor under its rows; returns what the model goes on with."""
    stream = as_stream(tensor, clean.wiring, clean.batch)
    # one tensor for all prompts (positions) would mix their gradients
    kept = tensor if tensor.numel() == stream.numel() else stream
    if not kept.requires_grad:
        kept = kept.detach().clone().requires_grad_()
    on = kept
    for (table, leaves), row in entries:
        table[row] = kept
        if leaves is not None:
            leaves[row] = on = kept.detach().clone().requires_grad_()
    return on.clone()
