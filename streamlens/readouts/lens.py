"""The logit lens: what the model would say if it stopped after a write (nostalgebraist 2020).

1. The stream after every write goes through the true final norm, with the statistics that stream has, and the
   unembedding.
2. The top tokens, their logits and their probabilities are kept.

Not to be mixed with direct logit attribution (`attribution.py`), which freezes the norm at the final stream:
the two can differ from a top token at 0.002 % to one at 99.997 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamlens.arguments import typed
from streamlens.carries import Add, rows_of, walk
from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.sites import Site

if TYPE_CHECKING:
    import pandas as pd


@runtime_checkable
class Unembeds(Protocol):
    """What the lens needs of a model."""

    def logits_at(self, stream: Tensor) -> Tensor: ...
    def token_texts(self, ids: Sequence[int]) -> tuple[str, ...]: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class LogitLens:
    """The top tokens after every write.

    Attributes:
        ledger: The ledger that was read.
        sites: The write after which the stream was read.
        ids: Token ids, best first, [write, batch, pos, top].
        logits: Their logits, [write, batch, pos, top].
        probabilities: Their probabilities, [write, batch, pos, top].
        texts: The text of every token that occurs in `ids`.
    """

    ledger: Ledger
    sites: tuple[Site, ...]
    ids: Int[Tensor, "write batch pos top"]
    logits: Float[Tensor, "write batch pos top"]
    probabilities: Float[Tensor, "write batch pos top"]
    texts: dict[int, str]

    def to_frame(self) -> "pd.DataFrame":
        """One row per (prompt, position, write, rank); see `streamlens.frames.lens_frame`."""
        from streamlens.frames import lens_frame

        return lens_frame(self)


@typed
def logit_lens(ledger: Ledger, model: Unembeds, *, top: int = 5) -> LogitLens:
    """The `top` most likely next tokens if the model stopped after each write.

    Args:
        ledger: From `decompose`, not cut off.
        model: The handle it was made with.
        top: How many tokens.

    Raises:
        InputError: top is not between 1 and the size of the vocabulary.
        ModelError: The model has no linear head.

    Cost: O(writes x positions x d_model x vocab), one write at a time.
    """
    found = []
    for stream in streams(ledger):
        logits = model.logits_at(stream)
        if not 1 <= top <= logits.shape[-1]:
            raise InputError(f"top is between 1 and {logits.shape[-1]}; got {top}.")
        best = logits.topk(top, dim=-1)
        share = (best.values.double() - logits.double().logsumexp(-1, keepdim=True)).exp()
        found.append((best.indices, best.values, share))
    ids, logits, probabilities = (torch.stack(column).cpu() for column in zip(*found, strict=True))
    distinct = ids.unique().tolist()
    return LogitLens(
        ledger=ledger,
        sites=ledger.sites,
        ids=ids,
        logits=logits.float(),
        probabilities=probabilities.float(),
        texts=dict(zip(distinct, model.token_texts(distinct), strict=True)),
    )


def streams(ledger: Ledger):
    """The stream after each row, in the model's own arithmetic, [batch, pos, d_model] one by one.

    Within a group that the model adds at once there is no such point; the stream is the sum up to that row.
    """
    for _, step, before, after in walk(ledger.program, ledger.added, ledger.states):
        if isinstance(step, Add):
            group = None
            for row in step.writes[:-1]:
                group = ledger.added[row] if group is None else group + ledger.added[row]
                update = group * step.factor
                yield update if before is None else before + update
        if rows_of(step):
            yield after
