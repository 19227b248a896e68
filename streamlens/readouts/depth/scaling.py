"""Depth as time, as data: what a model says when every step along its depth is longer or shorter."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class ScaledSteps:
    """Runs of one prompt with scaled writes, beside the model as it is.

    Attributes:
        h: What the writes of `layers` were multiplied by, run by run.
        calls: In how many calls each of these layers was applied.
        layers: Which.
        position: Where the next-token distribution is compared; `token` its text.
        loss: Cross entropy of the prompt's own next tokens, nats per token; NaN for a prompt of one token.
        kl: KL(model || run) of the next token at the position, in nats.
        top: The most likely next token there.
        base_loss: The model's own loss.
        base_top: The model's own most likely next token there.
        tokens: How many tokens the loss is over.
        logits: Of each run at the position, [run, vocab], on the CPU.
        provenance: Model, versions, arguments.
    """

    h: tuple[float, ...]
    calls: tuple[int, ...]
    layers: tuple[int, ...]
    position: int
    token: str
    loss: tuple[float, ...]
    kl: tuple[float, ...]
    top: tuple[str, ...]
    base_loss: float
    base_top: str
    tokens: int
    logits: Float[Tensor, "run vocab"]
    provenance: Mapping[str, Any]

    def to_frame(self) -> "pd.DataFrame":
        """One row per run; see `streamlens.frames.SCHEMAS["scale_steps"]`."""
        from streamlens.frames import scale_steps_frame

        return scale_steps_frame(self)

    def __repr__(self) -> str:
        return f"ScaledSteps({len(self.h)} runs of {len(self.layers)} layers; {self.base_loss:.3f} nats as it is)"
