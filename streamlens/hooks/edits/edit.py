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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from streamlens.edits import Edit
from streamlens.errors import InputError, WiringError
from streamlens.hooks.edits.action import Action, Change
from streamlens.hooks.edits.edges import attention_of, change_edges
from streamlens.hooks.forward import Batch
from streamlens.hooks.scope import HookScope, stream_output, with_stream_output
from streamlens.hooks.taps import as_stream, first_floating
from streamlens.hooks.writes.patterns import watched_attention
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Projection, Wiring, Write
from streamlens.sites import Site, find


@dataclass(frozen=True, eq=False, kw_only=True)
class Place:
    """What an edit names, looked up in a model.

    Attributes:
        row: The row of its write.
        site: The write, or its head or neuron.
        write: The write.
        maker: For a head or neuron: the projection that makes the write of it.
    """

    row: int
    site: Site
    write: Write
    maker: Projection | None = None

    @property
    def columns(self) -> slice | None:
        """A head's or neuron's columns of the projection's input; None for a whole write."""
        if self.maker is None:
            return None
        if self.site.head is None:
            assert self.site.neuron is not None
            return slice(self.site.neuron, self.site.neuron + 1)
        size = self.maker.width // self.maker.heads
        return slice(self.site.head * size, (self.site.head + 1) * size)

    def attention(self, model: ModelHandle) -> str:
        """The module in which a head attends.

        Raises:
            WiringError: Its attention cannot be read.
        """
        assert self.maker is not None
        return attention_of(model, self.site, self.maker)


def place_of(model: ModelHandle, wiring: Wiring, edit: Edit) -> Place:
    """The write that an edit names.

    Raises:
        InputError: No such site in this model (the nearest are named), or one that cannot be edited.
        WiringError: A head or neuron of a write that has no such parts.
    """
    site = edit.site if isinstance(edit.site, Site) else Site.parse(edit.site)
    whole = site.sublayer if site.fine else site
    row = wiring.sites.index(whole if whole in wiring.sites else find(whole, wiring.sites))
    write = wiring.writes[row]
    if not site.fine:
        if write.tap is None:
            raise InputError(f"{site} is a constant of the model, not a branch's write, and cannot be edited.")
        if edit.source is not None:
            raise InputError(f"An attention edge belongs to a head; {site} is a whole write.")
        return Place(row=row, site=site, write=write)
    maker = model.projections(wiring.stream).get(row)
    if not isinstance(maker, Projection):
        why = maker if isinstance(maker, str) else f"{whole} has no such parts."
        raise WiringError(why, hint=f"Edit the whole write: {whole}.")
    count, kind = (maker.heads, "heads") if site.head is not None else (maker.width, "neurons")
    if bool(maker.heads) != (site.head is not None):
        raise WiringError(f"{whole} has no {kind}.", hint=f"Edit the whole write: {whole}.")
    number = site.head if site.head is not None else site.neuron
    if number is None or not 0 <= number < count:
        raise InputError(f"{whole} has {count} {kind}, numbered from 0; got {site.label}.")
    if edit.source is not None and site.head is None:
        raise InputError(f"An attention edge belongs to a head; {site} is none.")
    return Place(row=row, site=site, write=write, maker=maker)


def make_action(
    place: Place,
    change: Change,
    *,
    rows: Tensor,
    positions: Tensor,
    source: Tensor | None = None,
    attention: str = "",
) -> Action:
    """The action of an edit whose method has become a function and whose positions have become numbers."""
    if place.maker is None:
        assert place.write.tap is not None
        tap, scale = place.write.tap, place.write.scale
    else:
        tap, scale = replace(place.maker.tap, side="input"), 1.0
    return Action(
        row=place.row,
        tap=tap,
        rows=rows,
        positions=positions,
        columns=place.columns,
        scale=scale,
        change=change,
        source=source,
        head=place.site.head,
        attention=attention,
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
        with watched_attention(model.model, change_edges(edges)):
            yield


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
    own = tensor.numel() == stream.numel()  # else it is one row for all prompts (positions)
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


def changes_of(actions: Sequence[Action], shape: Sequence[int], index: Tensor) -> Tensor:
    """Which writes are edited where, [write, batch, pos], at the kept positions of a batch."""
    edited = torch.zeros(tuple(shape), dtype=torch.bool)
    for action in actions:
        for row, position in zip(action.rows.tolist(), action.positions.tolist(), strict=True):
            edited[action.row, row] |= index[row] == position
    return edited
