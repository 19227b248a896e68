"""What a prompt has to give: the values of its writes at one token, to be put into another run.

1. One forward over the prompt, captured like any other.
2. A whole write is what it adds; a head is what it hands its projection, as `Edit(method="replace")` takes it.
"""

from typing import Any

import torch
from torch import Tensor

from streamlens.errors import InputError
from streamlens.hooks.prompts import Prompt, batch_for
from streamlens.hooks.writes.capture import capture
from streamlens.hooks.writes.split import Split
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import encode
from streamlens.models.wiring import Projection
from streamlens.sites import Site


def donated(
    model: ModelHandle,
    prompt: Prompt,
    position: int,
    *,
    level: str = "sublayer",
    prepend_bos: bool = False,
    stream: str | None = None,
    **forward_kwargs: Any,
) -> dict[Site, Tensor]:
    """The value of every write, or of every head, of a prompt at one position, in stream order.

    Args:
        model: From `streamlens.load`.
        prompt: One prompt.
        position: Within the prompt's own tokens.
        level: "sublayer" for whole writes, [d_model] each; "head" for what each head hands its projection,
            [head_dim] each. Constants of the model have no value to give.
        prepend_bos: As for `decompose`.
        stream: As for `decompose`.
        **forward_kwargs: As for `decompose`.

    Raises:
        InputError: Several prompts, or a position that does not exist.

    Cost: one forward.
    """
    encoded = encode(model.tokenizer, prompt, prepend_bos=prepend_bos)
    if len(encoded.ids) != 1:
        raise InputError(f"A write is taken from one prompt; got {len(encoded.ids)}.")
    wiring = model.wiring_of(stream)
    batch = batch_for(model, wiring, encoded, [position], forward_kwargs)
    splits = []
    if level == "head":
        makers = model.projections(wiring.stream)
        splits = [
            Split(row=row, write=wiring.writes[row], maker=maker)
            for row, maker in sorted(makers.items(), key=lambda item: item[0])
            if isinstance(maker, Projection) and maker.heads
        ]
    ledger = capture(
        model, wiring, batch, prompts=encoded.prompts, keep_logits=False, provenance=model.provenance, splits=splits
    )
    if level != "head":
        return {
            write.site: ledger.added[row, 0, 0] * wiring.factor_of(row)
            for row, write in enumerate(wiring.writes)
            if write.tap is not None
        }
    values = {}
    for split in splits:
        assert isinstance(split.maker, Projection)
        for head, value in enumerate(split.inputs[0, 0].unflatten(-1, (split.maker.heads, -1))):
            values[split.write.site.part_of("head", head)] = torch.clone(value)
    return values
