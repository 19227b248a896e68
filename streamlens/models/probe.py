"""What the probe feeds a model: a few random tokens, and the constants the model may use.

Batch and length differ, so that axes cannot be confused; encoder and decoder lengths differ too.
"""

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from streamlens.errors import WiringError

BATCH, LENGTH, DECODER_LENGTH = 2, 7, 5


def probe_inputs(model: Any, *, seed: int = 0, batch: int = BATCH) -> dict[str, Any]:
    """Keyword arguments for one small forward of a Hugging Face text model: random tokens, no padding."""
    config: Any = model.config
    try:
        embedding: Any = model.get_input_embeddings()
        rows, device = embedding.weight.shape[0], embedding.weight.device
    except (NotImplementedError, AttributeError) as error:
        raise WiringError("The model names no table of token embeddings (get_input_embeddings).") from error
    vocab = min(rows, getattr(config.get_text_config(), "vocab_size", None) or rows)
    generator = torch.Generator().manual_seed(seed)
    special = {i for i in (getattr(config.get_text_config(), "pad_token_id", None), 0, 1, 2, 3) if isinstance(i, int)}
    allowed = torch.tensor([i for i in range(vocab) if i not in special] or list(range(vocab)))

    def tokens(length: int) -> Tensor:
        return allowed[torch.randint(len(allowed), (batch, length), generator=generator)].to(device)

    inputs: dict[str, Any] = {"input_ids": tokens(LENGTH)}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = tokens(DECODER_LENGTH)
    return inputs


def standing_still(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The same with every token at position 0, where rotary embeddings turn by no angle, if the model takes positions.

    With a mask, since positions without one are taken for several texts packed into one.
    """
    takes = inspect.signature(model.forward).parameters
    given = dict(inputs)
    for side in ("", "decoder_"):
        ids, positions, mask = (inputs.get(f"{side}input_ids"), f"{side}position_ids", f"{side}attention_mask")
        if ids is not None and positions in takes and mask in takes:
            given |= {positions: torch.zeros_like(ids), mask: torch.ones_like(ids)}
    return given


def known_numbers(model: Any) -> list[float]:
    """Constants a coefficient may be: config values, their roots and reciprocals, one-element parameters."""
    found: list[float] = []
    for value in _numbers(model.config.to_dict()):
        if value > 0 and value != 1:
            found += [value, 1 / value, math.sqrt(value), 1 / math.sqrt(value)]
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.numel() == 1 and tensor.is_floating_point():
            found.append(float(tensor.detach()))
    found.append(math.sqrt(0.5))
    # a constant kept as a tensor in the model's dtype is rounded to it (Gemma's square root of d_model)
    dtype = next(model.parameters()).dtype
    rounded = torch.tensor(found, dtype=torch.float64).to(dtype).double().tolist() if found else []
    return list(dict.fromkeys([*found, *rounded]))


def _numbers(config: Mapping[Any, Any]) -> Iterator[float]:
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield float(value)
        elif isinstance(value, list | tuple):
            yield from _numbers(dict(enumerate(value)))
