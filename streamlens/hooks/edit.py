"""EDIT: from edits as data to hooks that make them.

1. `resolve` checks every edit against the model and the prompt and turns it into actions, before anything runs: which
   module, which side, which prompts and positions, which columns, and a function of what is there.
2. A whole write is changed at the output that makes it; a head or a neuron at its projection's *input*, so that the
   projection's bias stays and only that part goes; an attention edge inside attention itself.
3. `attach_actions` puts them on. They are attached before the capture's hooks, so that what is captured is the
   edited run.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from streamlens.edits import Edit
from streamlens.errors import InputError, WiringError
from streamlens.hooks.forward import Batch
from streamlens.hooks.patterns import Attended, behind, watched_attention
from streamlens.hooks.scope import HookScope, stream_output, with_stream_output
from streamlens.hooks.taps import as_stream, first_floating
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Projection, Tap, Wiring
from streamlens.sites import Site, find

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Action:
    """One change, ready to be made.

    Attributes:
        row: The write it belongs to.
        tap: Where it acts; the input side for heads and neurons.
        rows: The prompts of the run it acts on, one per position.
        positions: The run's positions it acts on.
        columns: For a head or neuron: which columns of the projection's input.
        scale: The write's multiplier: the change speaks of the write, not of the module's output.
        change: From what is there, [n, width], to what shall be there.
        source: For an attention edge: the source position; then `columns` are the head's and `change` gives the
            factor.
        head: For an attention edge: the head.
    """

    row: int
    tap: Tap
    rows: Tensor
    positions: Tensor
    columns: slice | None = None
    scale: float = 1.0
    change: Change
    source: int | None = None
    head: int | None = None

    def at(self, *, row: int, start: int) -> "Action":
        """The same action on another prompt of a batch whose run begins at position `start`."""
        return Action(**{**vars(self), "rows": torch.full_like(self.rows, row), "positions": self.positions - start})


def site_of(model: ModelHandle, wiring: Wiring, edit: Edit) -> tuple[int, Site]:
    """The row of an edit's write, and the site.

    Raises:
        InputError: No such site in this model; the nearest are named.
        WiringError: A head or neuron of a write that has no such parts.
    """
    site = edit.site if isinstance(edit.site, Site) else Site.parse(edit.site)
    if not site.fine:
        found = find(site, wiring.sites)
        return wiring.sites.index(found), found
    row = wiring.sites.index(find(site.sublayer, wiring.sites))
    maker = model.projections(wiring.stream).get(row)
    if not isinstance(maker, Projection):
        why = maker if isinstance(maker, str) else f"{site.sublayer} has no such parts."
        raise WiringError(why, hint=f"Edit the whole write: {site.sublayer}.")
    count, kind = (maker.heads, "heads") if site.head is not None else (maker.width, "neurons")
    number = site.head if site.head is not None else site.neuron
    if number is None or not 0 <= number < count:
        raise InputError(f"{site.sublayer} has {count} {kind}, numbered from 0; got {site.label}.")
    return row, site


def make_action(
    model: ModelHandle,
    wiring: Wiring,
    edit: Edit,
    change: Change,
    *,
    rows: Tensor,
    positions: Tensor,
    source: int | None,
) -> Action:
    """The action of an edit whose method has become a function and whose positions have become numbers."""
    row, site = site_of(model, wiring, edit)
    write = wiring.writes[row]
    if not site.fine:
        if write.tap is None:
            raise InputError(f"{site} is a constant of the model, not a branch's write, and cannot be edited.")
        return Action(row=row, tap=write.tap, rows=rows, positions=positions, scale=write.scale, change=change)
    maker = model.projections(wiring.stream)[row]
    assert isinstance(maker, Projection)
    if site.head is not None:
        size = maker.width // maker.heads
        columns = slice(site.head * size, (site.head + 1) * size)
    else:
        assert site.neuron is not None
        columns = slice(site.neuron, site.neuron + 1)
    tap = Tap(module=maker.tap.module, call=maker.tap.call, side="input")
    return Action(
        row=row, tap=tap, rows=rows, positions=positions, columns=columns, change=change, source=source, head=site.head
    )


@contextmanager
def attach_actions(model: ModelHandle, wiring: Wiring, batch: Batch, actions: Sequence[Action]) -> Iterator[None]:
    """Makes the actions in every forward inside the block."""
    edges = [a for a in actions if a.source is not None]
    by_module: dict[str, list[Action]] = defaultdict(list)
    for action in actions:
        if action.source is None:
            by_module[action.tap.module].append(action)
    with HookScope() as scope:
        for name, group in by_module.items():
            outputs = [a for a in group if a.tap.side == "output"]
            inputs = [a for a in group if a.tap.side == "input"]
            if outputs:
                scope.after(model.modules[name], _output_hook(outputs, wiring, batch))
            if inputs:
                scope.before(model.modules[name], _input_hook(inputs, wiring, batch))
        if not edges:
            yield
            return
        done: set[int] = set()
        with watched_attention(model.model, _edge_hook(edges, done)):
            yield
        if len(done) < len(edges):
            raise WiringError(
                "An attention edge needs attention that goes through transformers' attention interface, and this "
                "model's does not.",
                hint="Edit the whole head.",
            )


def _output_hook(actions: Sequence[Action], wiring: Wiring, batch: Batch) -> Callable:
    calls = 0

    def hook(_module: nn.Module, _args: tuple, _kwargs: dict, output: Any) -> Any:
        nonlocal calls
        mine = [a for a in actions if a.tap.call == calls]
        calls += 1
        tensor = stream_output(output) if mine else None
        return None if tensor is None else with_stream_output(output, _changed(tensor, mine, wiring, batch))

    return hook


def _input_hook(actions: Sequence[Action], wiring: Wiring, batch: Batch) -> Callable:
    calls = 0

    def hook(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        nonlocal calls
        mine = [a for a in actions if a.tap.call == calls]
        calls += 1
        tensor = first_floating(args, kwargs) if mine else None
        if tensor is None:
            return None
        new = _changed(tensor, mine, wiring, batch)
        return tuple(new if a is tensor else a for a in args), {k: new if v is tensor else v for k, v in kwargs.items()}

    return hook


def _changed(tensor: Tensor, actions: Sequence[Action], wiring: Wiring, batch: Batch) -> Tensor:
    """A copy of a module's tensor with the actions made, in the module's own layout."""
    stream = as_stream(tensor, wiring, batch)
    own = stream.shape[0] == len(tensor) or tensor.numel() == stream.numel()
    copy = tensor.clone() if own else stream.clone()
    view = as_stream(copy, wiring, batch) if own else copy
    for action in actions:
        columns = action.columns or slice(None)
        before = view[action.rows, action.positions][:, columns]
        after = action.change(before * action.scale if action.scale != 1.0 else before)
        after = after / action.scale if action.scale != 1.0 else after
        if action.columns is None:
            view[action.rows, action.positions] = after.to(view.dtype)
        else:
            view[action.rows, action.positions, columns] = after.to(view.dtype)
    return copy


def _edge_hook(edges: Sequence[Action], done: set[int]) -> Callable:
    def on_attention(name: str, call: int, attended: Attended, output: Tensor) -> Tensor:
        mine = [a for a in edges if a.tap.call == call and name in behind(a.tap.module, [name])]
        if not mine:
            return output
        heads = attended.pattern.shape[1]
        new = output.clone()
        view = new.view(*new.shape[:2], heads, -1) if new.dim() == 3 else new
        for action in mine:
            done.add(id(action))
            rows, targets = action.rows, action.positions
            weight = attended.pattern[rows, action.head, targets, action.source]
            taken = weight[:, None] * attended.values[rows, action.head, action.source]
            kept = action.change(taken)
            view[rows, targets, action.head] += (kept - taken).to(view.dtype)
        return new

    return on_attention


def changes_of(actions: Sequence[Action], shape: Sequence[int], index: Tensor) -> Tensor:
    """Which writes are edited where, [write, batch, pos], at the kept positions of a batch."""
    edited = torch.zeros(tuple(shape), dtype=torch.bool)
    for action in actions:
        for row, position in zip(action.rows.tolist(), action.positions.tolist(), strict=True):
            edited[action.row, row] |= index[row] == position
    return edited
