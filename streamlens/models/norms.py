"""Recognising a norm by what it does.

1. A module is a norm if, for every token, `output = gain * (z - mean(z) if centred) * r + bias` with one number
   r per token.
2. The gain is one of the module's own parameters, or 1 plus it (Gemma), or absent (OLMo); the bias likewise.
   All combinations are tried against the numbers.
3. r must be `1 / sqrt(mean of squares + eps)`; eps is the module's own attribute, or is read off the numbers.
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from streamlens.models.explain import LOOSE
from streamlens.models.wiring import Norm, Tap


def identify_norm(module: nn.Module, tap: Tap, stream: Tensor, output: Tensor) -> Norm | None:
    """What kind of norm maps `stream` to `output`; None if it is none.

    Args:
        module: The module that was called.
        tap: The call, for the result.
        stream: Its input, [..., d_model].
        output: Its output, of the same shape.
    """
    d_model = stream.shape[-1]
    vectors = [name for name, p in module.named_parameters() if tuple(p.shape) == (d_model,)]
    matrices = any(p.dim() > 1 for p in module.parameters())
    if matrices or stream.shape != output.shape or torch.equal(stream, output):
        return None
    z, y = stream.double(), output.double()
    # many norms compute in float32 whatever the model's dtype
    tolerance = max(LOOSE[output.dtype], LOOSE[torch.float32])
    best: tuple[float, Norm] | None = None
    gains = [*vectors, *(f"1 + {name}" for name in vectors), ""]
    for centred, gain, bias in itertools.product((False, True), gains, ["", *vectors]):
        if bias and gain.removeprefix("1 + ") == bias:
            continue
        kernel = (z - z.mean(-1, keepdim=True) if centred else z) * gain_vector(module, gain, d_model)
        constant = bias_vector(module, bias)
        rest = y if constant is None else y - constant
        scale = (rest * kernel).sum(-1, keepdim=True) / kernel.square().sum(-1, keepdim=True)
        error = float((rest - kernel * scale).norm() / y.norm())
        if error < tolerance and (best is None or error < best[0]):
            eps = _eps(module, z, scale[..., 0], centred, tolerance=max(1e-3, tolerance))
            if eps is not None:
                best = error, Norm(tap=tap, centred=centred, gain=gain, bias=bias, eps=eps)
    return None if best is None else best[1]


def gain_vector(module: nn.Module, gain: str, d_model: int) -> Tensor:
    """The gain in float64, [d_model]; ones where the norm has none."""
    if not gain:
        return torch.ones(d_model, dtype=torch.float64)
    weight = module.get_parameter(gain.removeprefix("1 + ")).detach().double()
    return weight + 1 if gain.startswith("1 + ") else weight


def bias_vector(module: nn.Module, bias: str) -> Tensor | None:
    """The bias in float64, [d_model]; None where the norm has none."""
    return module.get_parameter(bias).detach().double() if bias else None


def weight_matrix(module: nn.Module) -> Tensor:
    """The matrix [out, in] of a linear module; GPT-2's Conv1D stores it transposed."""
    weight: Any = module.weight
    return weight.detach().T if type(module).__name__ == "Conv1D" else weight.detach()


def affine(module: nn.Module, hidden: Tensor) -> Tensor:
    """W x + b of a linear module, in the dtype of `hidden`."""
    bias: Any = getattr(module, "bias", None)
    value = hidden @ weight_matrix(module).to(hidden.dtype).T
    return value + bias.detach().to(hidden.dtype) if isinstance(bias, Tensor) else value


def _eps(module: nn.Module, z: Tensor, scale: Tensor, centred: bool, *, tolerance: float) -> float | None:
    """The module's own eps if it explains the scale, else the one read off the numbers; None if neither does."""
    centre = z - z.mean(-1, keepdim=True) if centred else z
    variance = centre.square().mean(-1)
    known = [float(v) for v in vars(module).values() if isinstance(v, float) and 0 <= v < 0.1]
    measured = float((scale.square().reciprocal() - variance).median())
    for eps in [*known, max(measured, 0.0)]:
        if (scale * (variance + eps).sqrt() - 1).abs().max() < tolerance:
            return eps
    return None
