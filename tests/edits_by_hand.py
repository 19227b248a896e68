"""Edited runs made by hand, to hold ours against: plain hooks on the modules that a wiring names, one prompt at a time.

1. A `Change` says what becomes of one module's output (a whole write) or of its input (a head or neuron): at which
   tokens, in which columns, and a function of what is there. An `EdgeChange` says by what an attention edge is
   multiplied.
2. `run` hooks every module of the wiring once, makes the changes, and writes down what the modules hand on, the stream
   and the logits. With one prompt at a time every tensor, flat or time-major, is a table [token, width].
3. An edge is cut without looking at patterns: attention is computed a second time without the source token's value,
   and the difference is what a head takes from there.

Nothing of `streamlens.hooks` is used here.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature, unwrap
from typing import Any

import torch
from torch import Tensor, nn

from streamlens.models.wiring import Projection, Tap, Wiring

#: how transformers' model files call, in the end, their function of eager attention
EAGER = "eager_attention_forward"


@dataclass(frozen=True, eq=False, kw_only=True)
class Change:
    """At a tap, some tokens' numbers, in some columns, become `make` of them."""

    tap: Tap
    positions: Sequence[int]
    columns: slice | None = None
    make: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeChange:
    """What a head takes from one token, at some tokens, times a factor."""

    projection: Tap
    head: int
    positions: Sequence[int]
    source: int
    factor: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen:
    """One run.

    Attributes:
        outputs: What the module of each tapped write handed on, by row, [token, d_model]: before any multiplier.
        inputs: What each projection read, by row, [token, width].
        stream: The stream at the end, [token, d_model].
        logits: [token, vocab]; None if the model makes none.
    """

    outputs: dict[int, Tensor]
    inputs: dict[int, Tensor]
    stream: Tensor
    logits: Tensor | None


def run(
    model: nn.Module,
    wiring: Wiring,
    projections: dict[int, Projection],
    given: dict[str, Tensor],
    changes: Sequence[Change] = (),
    edges: Sequence[EdgeChange] = (),
) -> Seen:
    """One prompt, with the changes made. `model` attends eagerly where edges are changed."""
    writes = {row: write.tap for row, write in enumerate(wiring.writes) if write.tap is not None}
    inputs = {row: Tap(module=p.tap.module, call=p.tap.call, side="input") for row, p in projections.items()}
    taps = [*writes.values(), *inputs.values(), wiring.final]
    length = given["decoder_input_ids" if wiring.stream == "decoder" else "input_ids"].shape[1]
    seen: dict[tuple[str, int, str], Tensor] = {}
    handles = []

    def edited(name: str, call: int, side: str, tensor: Tensor) -> Tensor:
        new = tensor.contiguous().clone()
        table = new.view(-1, new.shape[-1])
        for change in changes:
            if (change.tap.module, change.tap.call, change.tap.side) == (name, call, side):
                at = list(change.positions), change.columns or slice(None)
                table[at] = change.make(table[at]).to(table.dtype)
        seen[name, call, side] = table[:length].clone()
        return new

    for name in {tap.module for tap in taps}:
        calls: Counter[str] = Counter()

        def before(_module: nn.Module, args: tuple, kwargs: dict, *, name=name, calls=calls) -> tuple[tuple, dict]:
            calls["input"] += 1
            if args:
                return (edited(name, calls["input"] - 1, "input", args[0]), *args[1:]), kwargs
            key = next(key for key, value in kwargs.items() if isinstance(value, Tensor))
            return args, kwargs | {key: edited(name, calls["input"] - 1, "input", kwargs[key])}

        def after(_module: nn.Module, _args: tuple, output: Any, *, name=name, calls=calls) -> Any:
            calls["output"] += 1
            return _replaced(output, lambda tensor: edited(name, calls["output"] - 1, "output", tensor))

        sides = {tap.side for tap in taps if tap.module == name}
        module = model.get_submodule(name)
        handles += [module.register_forward_pre_hook(before, with_kwargs=True)] if "input" in sides else []
        handles += [module.register_forward_hook(after)] if "output" in sides else []
    try:
        with torch.no_grad(), cut_edges(model, edges):
            # without a cache: FSMT leaves its causal mask out where it may keep one
            cache = {"use_cache": False} if "use_cache" in signature(type(model).forward).parameters else {}
            output = model(**given, **cache)
    finally:
        for handle in handles:
            handle.remove()
    logits = getattr(output, "logits", None)
    return Seen(
        outputs={row: seen[tap.module, tap.call, tap.side] for row, tap in writes.items()},
        inputs={row: seen[tap.module, tap.call, tap.side] for row, tap in inputs.items()},
        stream=seen[wiring.final.module, wiring.final.call, wiring.final.side],
        logits=None if wiring.head is None or logits is None else logits[0],
    )


def _replaced(output: Any, edited: Callable[[Tensor], Tensor]) -> Any:
    """A module's output with its tensor, or its first one, edited."""
    if isinstance(output, Tensor):
        return edited(output)
    if isinstance(output, dict):
        key = next(iter(output))
        output[key] = edited(output[key])
        return output
    first = _replaced(output[0], edited)
    return type(output)([first, *output[1:]])


@contextmanager
def cut_edges(model: nn.Module, edges: Sequence[EdgeChange]) -> Iterator[None]:
    """Inside, the eager attention of the model's own module files makes the changes of edges."""
    if not edges:
        yield
        return
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    originals = {(file, name): getattr(file, name) for file in files for name in vars(file) if name.endswith(EAGER)}
    names = {id(module): name for name, module in model.named_modules()}
    calls: Counter[str] = Counter()
    attending = [name for name, _ in model.named_modules() if _attends(model, name)]
    wanted = {edge: max(attending, key=lambda name, edge=edge: _near(name, edge.projection.module)) for edge in edges}

    def wrapped(original: Callable) -> Callable:
        def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            output, pattern = original(module, query, key, value, *args, **kwargs)
            name = names[id(module)]
            new = output.contiguous().clone()
            for edge, place in wanted.items():
                if place == name and edge.projection.call == calls[name]:
                    without = value.clone()
                    without[:, :, edge.source] = 0
                    taken = output - original(module, query, key, without, *args, **kwargs)[0]
                    heads = (*output.shape[:2], query.shape[1], -1)
                    at = list(edge.positions)
                    new.view(heads)[:, at, edge.head] += (edge.factor - 1) * taken.reshape(heads)[:, at, edge.head]
            calls[name] += 1
            return new, pattern

        return attend

    try:
        for (file, name), original in originals.items():
            setattr(file, name, wrapped(original))
        yield
    finally:
        for (file, name), original in originals.items():
            setattr(file, name, original)


def _attends(model: nn.Module, name: str) -> bool:
    """Whether a module is one that calls eager attention: its forward names the function."""
    forward: Any = unwrap(type(model.get_submodule(name)).forward)
    return any(name.endswith(EAGER) for name in forward.__code__.co_names)


def _near(name: str, other: str) -> int:
    """How many leading parts two dotted names share."""
    pairs = zip(name.split("."), other.split("."), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(name.count("."), other.count(".")) + 1)
