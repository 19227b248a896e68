"""What calls leave behind: hooks, tensors, objects, memory.

1. `Left.now` counts, after a garbage collection: the hooks of every kind on every module of a model and torch's global
   ones; the tensors that are alive and the bytes they hold; all objects the collector knows.
2. A call is made often enough that every cache is full, then `calls` times more; what has grown since is left behind.
3. Memory is the process's resident set, after the allocator has given back what it can.
"""

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from model_state import hooks_of


@dataclass(frozen=True, kw_only=True)
class Left:
    """Counts at one moment, or the growth between two."""

    hooks: int
    tensors: int
    objects: int

    @classmethod
    def now(cls, module: nn.Module) -> "Left":
        gc.collect()
        known = gc.get_objects()
        tensors = sum(issubclass(type(each), torch.Tensor) for each in known)  # never asks a lazy object what it is
        return cls(hooks=hooks_on(module), tensors=tensors, objects=len(known))

    def __sub__(self, other: "Left") -> "Left":
        return Left(
            hooks=self.hooks - other.hooks,
            tensors=self.tensors - other.tensors,
            objects=self.objects - other.objects,
        )


def hooks_on(module: nn.Module) -> int:
    """How many hooks of any kind there are on a model's modules, and on all modules of the process."""
    own = sum(len(hooks) for m in module.modules() for hooks in hooks_of(m).values() if hasattr(hooks, "__len__"))
    everyones = vars(nn.modules.module)
    return own + sum(len(hooks) for name, hooks in everyones.items() if name.startswith("_global_") and "hooks" in name)


def growth(module: nn.Module, call: Callable[[], Any], *, calls: int, warm: int = 10) -> Left:
    """What `calls` calls leave behind, after `warm` ones that fill caches."""
    for _ in range(warm):
        call()
    before = Left.now(module)
    for _ in range(calls):
        call()
    return Left.now(module) - before


def resident() -> float:
    """MiB of this process in memory (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
