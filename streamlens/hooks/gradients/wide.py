"""A model in float64 throughout, on a copy.

1. The module tree is copied and its parameters and buffers cast; the model itself stays as it is.
2. Many models cast to float32 inside (norms, softmax, rotary tables). `wide` makes such casts float64 while it lasts.
3. Fused experts know no float64; where a model can be told to run its experts one by one, the copy is.

For sums whose terms are thousands of times as large as the sum: float32 leaves nothing of it.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from streamlens.errors import WiringError
from streamlens.models.handle import ModelHandle
from streamlens.turns import in_turn

_NARROW = (torch.float32, torch.bfloat16, torch.float16)


@in_turn  # so that the copy has no hooks, and no other order of blocks, of a call in another thread
def widened(model: ModelHandle) -> ModelHandle:
    """The model in float64: a copy, or itself if it is. Cost: eight bytes per parameter.

    Raises:
        WiringError: The module cannot be copied.
    """
    if model.dtype == torch.float64:
        return model
    try:
        twin: Any = copy.deepcopy(model.model)
    except RuntimeError as error:  # a module that keeps a tensor of its last forward
        said = str(error).partition(". ")[0]
        raise WiringError(f"{model.name} cannot be copied to float64: {said}.") from error
    if getattr(twin, "_can_set_experts_implementation", lambda: False)():
        twin.set_experts_implementation("eager")
    return replace(model, model=twin.double())


class _Wide(TorchFunctionMode):
    """Every float type that a function is asked for is float64."""

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            func = torch.Tensor.double
        given = {name: _widest(value) for name, value in (kwargs or {}).items()}
        return func(*map(_widest, args), **given)


def _widest(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


@contextmanager
def wide() -> Iterator[None]:
    """Casts to float32 and below are to float64 inside."""
    with _Wide():
        yield
