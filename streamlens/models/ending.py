"""From the final stream to the logits: the final norm, the unembedding, scale, bias and softcap.

1. The final norm is the first call after the last block that reads the final stream and is a norm.
2. The unembedding is the call whose output is as wide as the logits; it must be `W h + b`.
3. Its input must be the normed stream, times a constant (T5), through further plain linear modules if any.
4. The logits must be its output times a constant (Cohere, Granite), plus a constant row (BART), through a
   softcap (Gemma 2). If any of this fails, the head is not linear, and that is said.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from streamlens.hooks.record import Event, Recording
from streamlens.models.explain import LOOSE, snap
from streamlens.models.norms import identify_norm, weight_matrix
from streamlens.models.wiring import Head, Norm, Tap

#: rows of an unembedding that are made float64 at a time, so that they stay in the processor's cache
ROWS = 1024


def find_final_norm(
    modules: Mapping[str, nn.Module], after: Sequence[Event], stream: Tensor
) -> tuple[float, Norm | None, Tensor]:
    """The norm that reads the final stream, and its output; None and the stream itself if there is none.

    Returns:
        What the last block's output is multiplied by on the way there (1.0 in nearly all models), the norm,
        and the normed stream.
    """
    for event in sorted(after, key=lambda e: e.start):
        if event.output is None or not event.inputs or (factor := ratio(event.inputs[0], stream)) is None:
            continue
        tap = Tap(module=event.module, call=event.call)
        norm = identify_norm(modules[event.module], tap, event.inputs[0], event.output)
        if norm is not None:
            return snap(factor, (), LOOSE[stream.dtype])[0], norm, event.output
    return 1.0, None, stream


def find_head(
    model: nn.Module, recording: Recording, after: Sequence[Event], normed: Tensor, numbers: Sequence[float]
) -> tuple[Head | None, str]:
    """The way from the normed stream to the logits, or None and the reason in one sentence."""
    logits = getattr(recording.output, "logits", None)
    if not isinstance(logits, Tensor):
        return None, "The model returns no logits."
    modules = dict(model.named_modules())
    heads = [e for e in after if e.output is not None and _covers(e.output, logits) and is_affine(modules[e.module], e)]
    if not heads:
        return None, "No unembedding of the form W h + b was found between the final stream and the logits."
    event = heads[-1]
    assert event.output is not None
    inner, projections = event.inputs[0], []
    if inner.shape != normed.shape and inner.shape == normed.transpose(0, 1).shape:
        normed = normed.transpose(0, 1)  # a time-major stream before a batch-first head
    while (scale := ratio(inner, normed)) is None:
        step = next(
            (
                e
                for e in after
                if e.output is not None and torch.equal(e.output, inner) and is_affine(modules[e.module], e)
            ),
            None,
        )
        if step is None:
            return None, (
                "More than plain linear modules stands between the final stream and the unembedding (a nonlinear "
                "head), so there is no linear attribution to logits."
            )
        projections.insert(0, step.module)
        inner = step.inputs[0]
    (scale, *_) = snap(scale, numbers, LOOSE[normed.dtype])
    found = _after_unembedding(model, event.output[..., : logits.shape[-1]], logits, numbers)
    if found is None:
        return None, "The logits are not a scale, a bias or a softcap away from the unembedding's output."
    after_scale, softcap, bias = found
    head = Head(
        module=event.module,
        projections=tuple(projections),
        input_scale=scale,
        scale=after_scale,
        softcap=softcap,
        bias=bias,
    )
    return head, ""


def _covers(output: Tensor, logits: Tensor) -> bool:
    """Whether an output has the logits' shape, or a padded vocabulary that the model cuts off."""
    return output.shape[:-1] == logits.shape[:-1] and output.shape[-1] >= logits.shape[-1]


def is_affine(module: nn.Module, event: Event) -> bool:
    """Whether this call was `W x + b` with the module's own weight."""
    weight: Any = getattr(module, "weight", None)
    if (
        not isinstance(weight, Tensor)
        or weight.dim() != 2
        or not weight.is_floating_point()
        or not event.inputs
        or event.output is None
    ):
        return False
    matrix = weight_matrix(module)
    if matrix.shape[-1] != event.inputs[0].shape[-1] or matrix.shape[0] != event.output.shape[-1]:
        return False
    if event.inputs[0].numel() * matrix.shape[0] != event.output.numel() * matrix.shape[1]:
        return False
    read = event.inputs[0].double()
    value = torch.cat([read @ rows.double().T for rows in matrix.split(ROWS)], dim=-1)
    bias: Any = getattr(module, "bias", None)
    value = value + bias.detach().double() if isinstance(bias, Tensor) else value
    return _close(value.reshape(event.output.shape), event.output)  # routers hand on flattened tokens


def ratio(a: Tensor, b: Tensor, *, flat: Tensor | None = None) -> float | None:
    """The constant c with a = c b, or None."""
    if a.shape != b.shape:
        return None
    x, y = (a.double(), b.double()) if flat is None else (a.double()[flat], b.double()[flat])
    if not y.numel():
        return None
    c = float((x * y).sum() / y.square().sum().clamp_min(1e-300))
    tolerance = LOOSE[b.dtype] if flat is None else 1e-2
    return c if c and float((x - c * y).norm() / x.norm().clamp_min(1e-300)) < tolerance else None


def _after_unembedding(
    model: nn.Module, raw: Tensor, logits: Tensor, numbers: Sequence[float]
) -> tuple[float, float | None, str] | None:
    """(scale, softcap, name of an extra bias) that turn `raw` into the logits."""
    scale = ratio(logits, raw)
    if scale is not None:
        return snap(scale, numbers, LOOSE[raw.dtype])[0], None, ""
    for name, tensor in [*model.named_buffers(), *model.named_parameters()]:
        if tensor.numel() == logits.shape[-1] and (s := ratio(logits.double() - tensor.double().flatten(), raw)):
            return snap(s, numbers, LOOSE[raw.dtype])[0], None, name
    for cap in numbers:
        if logits.abs().max() <= cap * (1 + 1e-6):
            inner = cap * torch.atanh((logits.double() / cap).clamp(-1 + 1e-9, 1 - 1e-9))
            s = ratio(inner, raw, flat=(logits.abs() < 0.99 * cap))
            s = snap(s, numbers, 1e-3)[0] if s else None
            if s and _close(cap * torch.tanh(raw.double() * s / cap), logits):
                return s, cap, ""
    return None


def _close(a: Tensor, b: Tensor) -> bool:
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300)) < LOOSE[b.dtype]
