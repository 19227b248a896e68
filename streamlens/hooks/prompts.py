"""From encoded prompts to a batch whose kept positions are tokens of the stream that is read.

1. A model with one stream, and an encoder: the prompt's own tokens.
2. A decoder behind an encoder: the prompt is the encoder's; the kept positions are tokens of
   `decoder_input_ids`, by default the start token alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from streamlens.errors import InputError
from streamlens.hooks.forward import Batch, prepare
from streamlens.hooks.padding import require_invisible_padding
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import Encoded, encode, find_position
from streamlens.models.wiring import Wiring

Prompt = str | Sequence[str] | Tensor | Sequence[Sequence[int]]


@dataclass(frozen=True)
class PerPrompt:
    """For each prompt the positions to keep, as many for one as for the other, within its own tokens."""

    places: tuple[tuple[int, ...], ...]

    def within(self, lengths: Sequence[int]) -> list[list[int]]:
        """The positions as lists.

        Raises:
            InputError: One that a prompt of that length does not have.
        """
        for row, length in zip(self.places, lengths, strict=True):
            if wrong := [p for p in row if not 0 <= p < length]:
                raise InputError(f"A position is between 0 and {length - 1}; got {wrong[0]}.")
        return [list(row) for row in self.places]


Positions = None | str | int | Sequence[int | str] | PerPrompt


def batch_for(
    model: ModelHandle, wiring: Wiring, encoded: Encoded, positions: Positions, extra: Mapping[str, Any]
) -> Batch:
    """The prepared batch whose kept positions are tokens of the wiring's stream.

    Raises:
        InputError: A position that does not exist; decoder ids that do not fit the prompts.
    """
    require_known_tokens(model, encoded.ids)
    if not encoded.mask.all():
        require_invisible_padding(model)
    if wiring.stream != "decoder":
        if wiring.stream == "encoder" and "decoder_input_ids" not in extra:
            extra = {**extra, "decoder_input_ids": _decoder_start(model, len(encoded.ids))}
        kept = _kept(model, encoded, positions)
        return prepare(model.model, encoded.ids, encoded.mask, kept=kept, device=model.device, extra=extra)
    source = prepare(model.model, encoded.ids, encoded.mask, device=model.device, extra={})
    extra = {**source.inputs, **extra}
    ids = extra.pop("decoder_input_ids", None)
    mask = extra.pop("decoder_attention_mask", None)
    ids = _decoder_start(model, len(encoded.ids)) if ids is None else ids
    target = encode(model.tokenizer, ids, attention_mask=mask)
    if len(target.ids) != len(encoded.ids):
        raise InputError(f"decoder_input_ids has a row per prompt; got {len(target.ids)} for {len(encoded.ids)}.")
    require_known_tokens(model, target.ids)
    names = ("decoder_input_ids", "decoder_attention_mask")
    kept = _kept(model, target, positions)
    return prepare(model.model, target.ids, target.mask, kept=kept, device=model.device, extra=extra, names=names)


def require_known_tokens(model: ModelHandle, ids: Tensor) -> None:
    """Refuses ids outside the token embedding, and more tokens than there are learned positions.

    Raises:
        InputError: Such an id or length.
    """
    rows = model.token_rows
    outside = ids[(ids < 0) | (ids >= rows)]
    if outside.numel():
        raise InputError(f"A token id of {model.name} is between 0 and {rows - 1}; got {int(outside[0])}.")
    positions = model.learned_positions
    if positions is not None and ids.shape[1] > positions:
        raise InputError(
            f"{model.name} has {positions} learned positions; a prompt of {ids.shape[1]} tokens is too long."
        )


def _decoder_start(model: ModelHandle, rows: int) -> Tensor:
    config: Any = model.model.config
    start = next(
        (
            i
            for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id")
            if (i := getattr(config, name, None)) is not None
        ),
        0,
    )
    return torch.full((rows, 1), start)


def _kept(model: ModelHandle, encoded: Encoded, positions: Positions) -> list[list[int]] | None:
    if positions is None:
        return None
    if isinstance(positions, PerPrompt):
        return positions.within(encoded.mask.sum(-1).tolist())
    context = [model.token_texts(ids[mask].tolist()) for ids, mask in zip(encoded.ids, encoded.mask, strict=True)]
    return kept_positions(context, positions)


def kept_positions(context: Sequence[Sequence[str]], positions: Positions) -> list[list[int]] | None:
    """For each prompt, the numbers of the named positions among its own tokens; None for all.

    Raises:
        InputError: No position, or one that does not exist.
    """
    if positions is None:
        return None
    if isinstance(positions, PerPrompt):
        return positions.within([len(texts) for texts in context])
    wanted = [positions] if isinstance(positions, int | str) else list(positions)
    if not wanted:
        raise InputError("positions names at least one position; got none.")
    return [[find_position(texts, token) for token in wanted] for texts in context]
