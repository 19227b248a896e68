"""Running a model on prompts so that padding is invisible.

1. Whatever side the padding came on, rows are moved to start at position 0 and padded on the right: then a
   causal model needs no position ids, and no model sees a token at another position than alone.
2. The mask is passed only where there is padding, and only to models that take one.
3. Whether a model sees padding all the same is measured (`padding.py`); prompts of different length are refused there.
4. Results are read back at the places the caller asked for, through one index per prompt and kept token.
5. A model that can leave out logits is asked for those at the kept places only, or for one where none are kept:
   [pos, vocab] is by far the largest tensor of a forward.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from streamlens.axes import TokenIds, TokenMask
from streamlens.errors import InputError


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Prompts ready to run, and where to read the results.

    Attributes:
        inputs: Keyword arguments of the model's forward.
        index: For each prompt and kept token its position in the run, [batch, pos]; 0 at padding.
        indices: The same with -1 at padding: positions within the prompt's own tokens.
        mask: False where a kept position is padding.
        ids: The kept tokens.
        whole: True if `index` is every position in order, so that nothing needs to be gathered.
        run_mask: False where a position of the run is padding, [batch, run position].
    """

    inputs: Mapping[str, Any]
    index: Int[Tensor, "batch pos"]
    indices: Int[Tensor, "batch pos"]
    mask: TokenMask
    ids: TokenIds
    whole: bool
    run_mask: Bool[Tensor, "batch run"]

    @property
    def running(self) -> int:
        """How many rows run through the model at this moment: all of them, unless rows join later (`join.py`)."""
        return len(self.run_mask)

    def all_rows(self, tensor: Tensor) -> Tensor:
        """A tensor of the running rows, [row, ...], with the rows that have yet to join."""
        return tensor

    def keep(self, tensor: Tensor) -> Tensor:
        """The kept positions of a tensor [batch, pos, ...] of this run."""
        if self.whole and tensor.shape[1] == self.index.shape[1]:
            return self.all_rows(tensor)
        return self.all_rows(_gathered(tensor, self.index[: len(tensor)]))

    def keep_logits(self, logits: Tensor, asked: Tensor | None) -> Tensor:
        """The kept positions of logits that were made at the positions `asked` of the run; None for all."""
        if asked is None or logits.shape[1] != len(asked):
            return self.keep(logits)
        index = torch.searchsorted(asked.cpu(), self.index)
        as_they_are = index.shape[1] == len(asked) and bool((index == torch.arange(len(asked))).all())
        return self.all_rows(logits if as_they_are else _gathered(logits, index[: len(logits)]))


def prepare(
    model: nn.Module,
    ids: TokenIds,
    mask: TokenMask,
    *,
    kept: Sequence[Sequence[int]] | None = None,
    device: torch.device,
    extra: Mapping[str, Any],
    names: tuple[str, str] = ("input_ids", "attention_mask"),
) -> Batch:
    """Moves padding to the right and works out where each kept token is.

    Args:
        model: Asked only for the names its forward takes.
        ids: Token ids in the caller's layout.
        mask: False at padding.
        kept: For each prompt the positions to keep, within its own tokens; None for all.
        device: Where the model is.
        extra: Further arguments for the forward; `token_type_ids` moves with the tokens.
        names: What the forward calls these ids and their mask.
    """
    padded = not mask.all()
    per_token = {names[0]: ids, names[1]: mask}
    if isinstance(extra.get("token_type_ids"), Tensor):
        per_token["token_type_ids"] = extra["token_type_ids"].cpu()
    if padded:
        order = torch.argsort(~mask, dim=-1, stable=True)  # real tokens first, in their order
        per_token = {name: tensor.gather(1, order) for name, tensor in per_token.items()}
    run_ids, run_mask = per_token[names[0]], per_token.pop(names[1])
    inputs: dict[str, Any] = {**extra, **{name: tensor.to(device) for name, tensor in per_token.items()}}
    takes = forward_names(model)
    if padded and names[1] in takes:
        inputs[names[1]] = run_mask.long().to(device)
    if "use_cache" in takes:
        inputs.setdefault("use_cache", False)
    if kept is None:
        each = torch.arange(ids.shape[1]).expand(ids.shape)
        indices = (mask.long().cumsum(-1) - 1).masked_fill(~mask, -1) if padded else each
        kept_mask, kept_ids = mask, ids
    else:
        indices = torch.tensor([list(row) for row in kept])
        kept_mask = torch.ones_like(indices, dtype=torch.bool)
        kept_ids = run_ids.gather(1, indices)
    return Batch(
        inputs=inputs,
        index=indices.clamp_min(0),
        indices=indices,
        mask=kept_mask,
        ids=kept_ids,
        whole=kept is None and not padded,
        run_mask=run_mask,
    )


def asked_logits(model: nn.Module, batch: Batch, *, wanted: bool) -> Tensor | None:
    """The positions of the run at which logits are to be made, sorted; None where the model makes them all.

    Always a tensor: given a number, Gemma 4 leaves the other positions out of its last layers too.

    Args:
        model: Asked only for the names its forward takes.
        batch: The prompts; each may keep other positions, the model is asked for those that any keeps.
        wanted: False if no logits are kept; then one position is made, since no model can be asked for none.

    Raises:
        InputError: The caller gave `logits_to_keep` to the forward.
    """
    if "logits_to_keep" in batch.inputs:
        raise InputError(
            "The logits are those of the kept positions, so logits_to_keep cannot be given.",
            hint="positions= says which to keep, keep_logits=False keeps none.",
        )
    if (wanted and batch.whole) or "logits_to_keep" not in forward_names(model):
        return None
    asked = batch.index.unique() if wanted else torch.zeros(1, dtype=torch.long)
    return None if len(asked) == batch.run_mask.shape[1] else asked.to(next(model.parameters()).device)


def forward_names(model: nn.Module) -> frozenset[str]:
    """The names of the arguments that the model's forward takes."""
    own = vars(model).get("forward")  # a forward of this instance alone is not remembered
    return _names(type(model).forward) if own is None else frozenset(inspect.signature(own).parameters)


@lru_cache(maxsize=64)
def _names(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters) - {"self"}


def _gathered(tensor: Tensor, index: Tensor) -> Tensor:
    rows = torch.arange(len(index), device=tensor.device)[:, None]
    return tensor[rows, index.to(tensor.device)]
