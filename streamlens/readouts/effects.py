"""What an edit did: two ledgers of the same tokens, and the change of a reader as a sum.

For a reader m that is linear behind the final norm (DESIGN: the ablation ledger), ablated - clean:

    m' - m  =  direct  +  indirect  +  rescale  (+ carry  + softcap)

1. direct: the edited writes' own change, through the clean run's frozen norm. It is what subtracting the write from the
   stream predicts.
2. indirect: the change of every other write, likewise: how the model responded.
3. rescale: only the final norm's scale moving, `R x' (1/sigma' - 1/sigma)`.
4. carry: in a post-norm model, what the changed norms along the stream did to everything.
5. softcap: what a softcap at the end makes of the sum.

The sum is compared with the change of the model's own value. Total, direct and indirect effect are the field's terms
(Vig et al. 2020); ours sum exactly because the stream is a sum. Pure functions; no model is in reach.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from streamlens.carries import Add, transport
from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.readouts.attribution import observe, project, softcap
from streamlens.readouts.readers.reader import Reader

#: a change of a logit from which its exponential is not taken in float32 any more
FAR = 60.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Effects:
    """The change of one reader, split. All in the reader's unit, ablated - clean, float64.

    Attributes:
        reader: The reader.
        writes: What each write's change gives, [write, batch, pos, reader].
        direct: The edited writes' part, [batch, pos, reader].
        indirect: All other writes' part.
        rescale: The final norm's scale.
        carry: The norms along the stream; zero in a pre-norm model.
        softcap: The softcap; zero without one.
        observed: The change of the model's own value; NaN where there is none.
    """

    reader: Reader
    writes: Float[Tensor, "write batch pos reader"]
    direct: Float[Tensor, "batch pos reader"]
    indirect: Float[Tensor, "batch pos reader"]
    rescale: Float[Tensor, "batch pos reader"]
    carry: Float[Tensor, "batch pos reader"]
    softcap: Float[Tensor, "batch pos reader"]
    observed: Float[Tensor, "batch pos reader"]

    @cached_property
    def total(self) -> Float[Tensor, "batch pos reader"]:
        """The sum of the parts."""
        return self.direct + self.indirect + self.rescale + self.carry + self.softcap

    @cached_property
    def closure(self) -> Float[Tensor, "batch pos reader"]:
        """|total - observed|, in the reader's unit."""
        return (self.total - self.observed).abs()

    @cached_property
    def self_repair(self) -> Float[Tensor, "batch pos reader"]:
        """-indirect / direct where the two oppose, else 0: the share of the direct effect that responses undid.

        McGrath et al. 2023; Rushing and Nanda 2024. 1 is full repair, above 1 is over-compensation.
        """
        ratio = -self.indirect / self.direct
        return torch.where((self.direct * self.indirect < 0) & ratio.isfinite(), ratio, torch.zeros_like(ratio))


def effects(clean: Ledger, ablated: Ledger, changed: Bool[Tensor, "write batch pos"], reader: Reader) -> Effects:
    """Splits the change of a reader between two runs of the same tokens.

    Args:
        clean: The run without edits, one prompt.
        ablated: Edited runs of it, one batch row each.
        changed: Which writes were edited where.
        reader: The reader.

    Raises:
        InputError: Ledgers of different rows or tokens, or cut off before the end.

    Cost: O(writes x runs x positions x d_model) per reader row, in float64.
    """
    if clean.labels != ablated.labels or clean.stream.shape[1] != ablated.stream.shape[1]:
        raise InputError("Effects compare two runs of the same tokens at the same level.")
    through_clean, through_ablated = project(clean, reader), project(ablated, reader)
    writes = torch.stack([through_clean(update) for update in _moved(clean, ablated)])  # one write at a time
    edit = changed[..., None].to(writes.device)
    stream = ablated.stream.double()
    carry = torch.zeros_like(writes[0])
    if any(not isinstance(step, Add) for step in clean.program):
        as_clean = transport(clean.program, ablated.added, clean.norms)
        carry = through_clean(ablated.writes.sum(0, dtype=torch.float64) - as_clean.sum(0, dtype=torch.float64))
    before, after = observe(clean, reader), observe(ablated, reader)
    return Effects(
        reader=reader,
        writes=writes,
        direct=(writes * edit).sum(0),
        indirect=(writes * ~edit).sum(0),
        rescale=through_ablated(stream) - through_clean(stream),
        carry=carry,
        softcap=softcap(ablated, reader) - softcap(clean, reader),
        observed=torch.full_like(carry, float("nan")) if before is None or after is None else after - before,
    )


def _moved(clean: Ledger, ablated: Ledger) -> Iterable[Float[Tensor, "batch pos d_model"]]:
    """Each write's change, carried to the end through the clean run's norms, in float64."""
    if all(isinstance(step, Add) and step.factor == 1.0 for step in clean.program):
        return (after.double() - before.double() for before, after in zip(clean.added, ablated.added, strict=True))
    return transport(clean.program, ablated.added.double() - clean.added.double(), clean.norms)


def kl_divergence(clean: Ledger, ablated: Ledger) -> Float[Tensor, "batch pos"]:
    """KL(clean || ablated) of the next-token distributions, in nats; NaN without logits.

    With d the change of the logits and p the clean distribution it is log sum p exp(d) - sum p d: one exponential per
    logit, and exactly 0 where nothing changed.
    """
    if clean.logits is None or ablated.logits is None:
        return torch.full(ablated.stream.shape[:2], float("nan"), dtype=torch.float64)
    before = clean.logits[0].float()
    p = before.double().softmax(-1)
    weights = p.float()
    rows = []
    for after in ablated.logits:
        d = after.float() - before
        if float(d.max()) < FAR:
            gained = (d.expm1() * weights).sum(-1).double()
            rows.append(torch.log1p(gained) - (d * weights).sum(-1).double())
        else:
            logs = before.double().log_softmax(-1) - after.double().log_softmax(-1)
            rows.append((p * logs).sum(-1))
    return torch.stack(rows)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of two updates over d_model; 0 where one of them is zero."""
    a, b = a.double(), b.double()
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(1e-300)
