"""Hooks that a test sets by hand on a zoo model: what a module was given and handed on, or zeros in its place."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def zeroed(module: nn.Module, call: int) -> Iterator[None]:
    """One forward in which one call of the module hands on zeros."""
    calls = itertools.count()

    def zero(_module: nn.Module, _args: tuple, _kwargs: dict[str, Any], output: Any) -> Any:
        return _with_zeros(output) if next(calls) == call else output

    with hooks_on(module, after=zero):
        yield


def _with_zeros(output: Any) -> Any:
    """The output with its first tensor replaced by zeros, in a container of its own."""
    if isinstance(output, Tensor):
        return torch.zeros_like(output)
    if isinstance(output, tuple | list):
        return type(output)([_with_zeros(output[0]), *output[1:]])
    first = next(iter(output))
    return type(output)(**{**output, first: _with_zeros(output[first])})


def first_tensor(output: Any) -> Tensor:
    """The first tensor of whatever a module hands on."""
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


@contextmanager
def hooks_on(*modules: nn.Module, before: Any = None, after: Any = None) -> Iterator[None]:
    """Hooks before or after each of the modules, for the length of the block."""
    handles = []
    for module in dict.fromkeys(modules):
        if before is not None:
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        if after is not None:
            handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
