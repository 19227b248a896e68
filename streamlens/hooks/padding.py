"""Is padding invisible to this model? Measured once, the first time a batch needs padding.

1. A prompt of a few tokens runs alone, and again with padding behind it (masked, if the model takes a mask).
2. If its own positions come out the same, batches of different length are safe. If not, the model itself sees the
   padding (convolutions, hashing, Fourier mixing over positions), and such batches are refused.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from streamlens.errors import InputError
from streamlens.hooks.forward import forward_names
from streamlens.hooks.scope import quiet_eval, stream_output
from streamlens.models.handle import ModelHandle
from streamlens.models.probe import probe_inputs

#: how many of the probe's tokens are the prompt; the others become padding
SHORT = 4
#: relative difference that counts as seeing the padding; kernels alone reach 1e-6 in float32, 1e-2 in bfloat16
VISIBLE = {torch.float64: 1e-6, torch.float32: 1e-3}

_seen: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


def require_invisible_padding(model: ModelHandle) -> None:
    """Refuses batches that need padding where the model sees it.

    Raises:
        InputError: The model's own output at a prompt's tokens changes with the padding behind them.

    Cost: two forwards of a few tokens, once per model.
    """
    if model.model not in _seen:
        _seen[model.model] = _difference(model)
    if _seen[model.model] > VISIBLE.get(model.dtype, 5e-2):
        raise InputError(
            f"{model.name} sees the padding of a batch (its output moves by {_seen[model.model]:.0%}), so prompts in "
            "one batch have the same number of tokens.",
            hint="Run the prompts one by one.",
        )


def _difference(model: ModelHandle) -> float:
    """The relative difference that padding makes at the prompt's own positions."""
    inputs = probe_inputs(model.model)
    ids = inputs["input_ids"]
    alone: dict[str, Any] = {**inputs, "input_ids": ids[:, :SHORT]}
    padded = {**inputs, "input_ids": ids.clone()}
    pad = getattr(model.tokenizer, "pad_token_id", None) or 0
    padded["input_ids"][:, SHORT:] = pad
    if "attention_mask" in forward_names(model.model):
        mask = torch.ones_like(ids)
        alone["attention_mask"] = mask[:, :SHORT]
        mask = mask.clone()
        mask[:, SHORT:] = 0
        padded["attention_mask"] = mask
    with quiet_eval(model.model):
        one, other = (stream_output(model.model(**given)) for given in (alone, padded))
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)
    other = other[:, : one.shape[1]].double()
    return float((other - one.double()).norm() / one.double().norm())
