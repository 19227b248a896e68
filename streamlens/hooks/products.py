"""Queries, keys and values as attention really used them: the operands of its two products, seen from outside.

1. While a forward runs, torch shows each matrix product and each fused attention it is asked for
   (`TorchFunctionMode`). Nothing is changed.
2. A fused attention is handed query, key and value.
3. Without one there are two products: scores = query @ key^T, and pattern @ value, where the pattern is no less than 0,
   sums to at most 1 and has the scores' shape.

Nothing here knows a model: whoever asks finds out where these numbers came from.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: how many products back the scores of a pattern may lie: what stands between them is one attention's own arithmetic
BACK = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class Attention:
    """What one attention multiplied, positions and head width last: [..., pos, width]."""

    query: Tensor
    key: Tensor
    value: Tensor


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Attention] = []
        self._products: deque[tuple[Tensor, Tensor, torch.Size]] = deque(maxlen=BACK)

    def __torch_function__(self, func: Any, _types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _OPERANDS and isinstance(result, Tensor) and result.dim() > 2:
            names = _OPERANDS[func]
            operands = [*args, *(v for k, v in (kwargs or {}).items() if k in names)][: len(names)]
            if func is F.scaled_dot_product_attention:
                query, key, value = operands
                self._attended(query, key, value)
            else:
                left, right = operands[-2:]
                self._product(left, right, result)
        return result

    def _product(self, left: Tensor, right: Tensor, result: Tensor) -> None:
        if left.dim() < 3 or right.dim() < 3:
            return
        for query, key, shape in reversed(self._products):
            # heads may have an axis of their own by now
            if left.numel() == shape.numel() and left.shape[-2:] == shape[-2:] and _is_pattern(left):
                self._attended(query, key.transpose(-1, -2), right)
                self._products.clear()
                return
        self._products.append((left.clone(), right.clone(), result.shape))

    def _attended(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.found.append(Attention(query=query.clone(), key=key.clone(), value=value.clone()))


@contextmanager
def watched_products() -> Iterator[list[Attention]]:
    """Collects every attention that is computed inside, in order. Cost: a copy of its operands."""
    with _Watch() as watch:
        yield watch.found


def _is_pattern(left: Tensor) -> bool:
    """Whether these can be attention probabilities; a sink outside the sum may take a share."""
    return bool((left >= 0).all()) and bool((left.sum(-1) < 1 + 1e-2).all())


#: fused attention and the batched products, with the names of what they are called with, in order
_OPERANDS: dict[Any, tuple[str, ...]] = {
    F.scaled_dot_product_attention: ("query", "key", "value"),
    torch.matmul: ("input", "other"),
    Tensor.matmul: ("self", "other"),
    Tensor.__matmul__: ("self", "other"),
    torch.bmm: ("input", "mat2"),
    Tensor.bmm: ("self", "mat2"),
    torch.baddbmm: ("input", "batch1", "batch2"),
    Tensor.baddbmm: ("self", "batch1", "batch2"),
}
