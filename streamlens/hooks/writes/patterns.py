"""Reading attention patterns and values off the model's own eager attention.

1. For the length of one call every config of the model says "eager", so that attention is computed step by step
   with a pattern; what each said before is restored.
2. transformers asks one function which attention to use. It is wrapped for that time: what it returns is called as
   it is, and its pattern and values are written down.
3. They count only if pattern times values is what the function returned: a head whose output is made otherwise
   has no source tokens.

Models whose attention does not go through transformers' attention interface cannot be read this way; they leave
nothing behind. The wrapping and the configs are the whole process's, so whoever does it has the turn (`turns.py`), and
calls from other threads are not shown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens import turns


@dataclass(frozen=True, eq=False)
class Attended:
    """One call of one attention module.

    Attributes:
        pattern: Attention probabilities, [batch, head, target, source], in float64.
        values: What is attended to, already repeated to the query heads, [batch, head, source, head_dim].
        linear: Whether pattern times values is what attention returned (1e-3 leaves room for bfloat16).
    """

    pattern: Float[Tensor, "batch head target source"]
    values: Float[Tensor, "batch head source head_dim"]
    linear: bool


#: called with the attention module's dotted name, which of its calls it is, what it attended to, and its output;
#: returns the output to use instead, and the pattern where that is another one too
OnAttention = Callable[[str, int, Attended, Tensor], Tensor | tuple[Tensor, Tensor]]


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[str, list[Attended]]]:
    """Collects, by the attention module's dotted name, what each of its calls attended to."""
    found: dict[str, list[Attended]] = {}

    def note(name: str, _call: int, attended: Attended, output: Tensor) -> Tensor:
        found.setdefault(name, []).append(attended)
        return output

    with watched_attention(model, note):
        yield found


@contextmanager
def watched_attention(model: nn.Module, on_attention: OnAttention) -> Iterator[None]:
    """Runs the model's own eager attention inside, and shows each call to `on_attention`, which may change it."""
    from transformers.modeling_utils import AttentionInterface

    names = {id(module): name for name, module in model.named_modules()}
    calls: Counter[str] = Counter()
    here = get_ident()

    def get_interface(self: Any, attn_implementation: str, default: Callable) -> Callable:
        attend = original(self, attn_implementation, default)
        if get_ident() != here:
            return attend

        def watched(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any):
            output, pattern = attend(module, query, key, value, *args, **kwargs)
            name = names.get(id(module))
            if name is not None and isinstance(pattern, Tensor) and pattern.dim() == 4:
                made = on_attention(name, calls[name], _attended(pattern, value, output), output)
                output, pattern = made if isinstance(made, tuple) else (made, pattern)
                calls[name] += 1
            return output, pattern

        return watched

    with turns.TURN, _eager(model):
        original = AttentionInterface.get_interface
        AttentionInterface.get_interface = get_interface
        try:
            yield
        finally:
            AttentionInterface.get_interface = original


def behind(projection: str, names: Iterable[str]) -> list[str]:
    """Which of these attention modules may have made what a projection reads: the nearest around it first."""
    around = [".".join(projection.split(".")[:n]) for n in range(projection.count("."), 0, -1)][:2]
    return [n for outer in around for n in names if n == outer or n.startswith(f"{outer}.")]


def _attended(pattern: Tensor, value: Tensor, output: Tensor) -> Attended:
    if value.dim() == 4 and pattern.shape[1] % value.shape[1] == 0:
        value = value.repeat_interleave(pattern.shape[1] // value.shape[1], dim=1)
    sources = min(value.shape[-2], pattern.shape[-1])  # GPT-OSS appends a sink column that attends to nothing
    pattern, value = pattern[..., :sources].double(), value[..., :sources, :].double()
    made = torch.einsum("bhts,bhsd->bthd", pattern, value)
    if made.numel() != output.numel():
        return Attended(pattern, value, linear=False)
    seen = output.double().reshape(made.shape)
    # one factor per head and target: a sink that takes its share after the softmax (Granite)
    factor = (seen * made).sum(-1) / made.square().sum(-1).clamp_min(1e-300)
    wrong = (seen - made * factor[..., None]).norm() / seen.norm().clamp_min(1e-300)
    factor = torch.where((factor - 1).abs() < 1e-5, torch.ones_like(factor), factor)
    return Attended(pattern * factor.permute(0, 2, 1)[..., None], value, linear=bool(wrong < 1e-3))


@contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    """Every config of the model says "eager" inside, and what it said before again afterwards."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [
        (c, c._attn_implementation_internal) for c in configs.values() if hasattr(c, "_attn_implementation_internal")
    ]
    try:
        for config, _ in before:
            config._attn_implementation_internal = "eager"
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
