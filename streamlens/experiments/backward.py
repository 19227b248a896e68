"""The backward ledger of a prompt: two runs with a graph, one whole and one cut at every write.

1. The whole run gives autograd's own gradient at every write (`hooks/gradients/gradient.py`).
2. The cut run gives the direct route and each branch's vector-Jacobian product (`hooks/gradients/branches.py`).
3. Where their sum is not the gradient, `ClosureError`: a wrong sum is never returned.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from streamlens.arguments import typed
from streamlens.errors import ClosureError
from streamlens.experiments.metric import Asked, metric_of
from streamlens.hooks.gradients.branches import backward_pass
from streamlens.hooks.gradients.gradient import gradients_of
from streamlens.hooks.gradients.graph import differentiating, every_write, graph_of
from streamlens.hooks.prompts import Prompt
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.models.handle import ModelHandle
from streamlens.readouts.depth.backward import BackwardLedger

#: closing error above which the sum counts as wrong. 5e-6 was seen in float32, and 5e-7 in float64, in models whose
#: norms compute in float32 all the same
WRONG = {torch.float64: 1e-6, torch.float32: 1e-4}


@typed
def backward(
    model: ModelHandle,
    prompt: Prompt | Clean,
    reader: Asked,
    position: str | int | None = -1,
    *,
    row: int = 0,
    target: str | int | None = None,
    **forward_kwargs: Any,
) -> BackwardLedger:
    """Takes the gradient of one number apart into branches.

    Args:
        model: From `streamlens.load`.
        prompt: Prompts, or an earlier clean run of them.
        reader: What is differentiated: a reader of the model's own output (a logit, a difference, a direction), or
            "loss", the cross entropy of the next token in nats.
        position: Where it is read in each prompt. For the loss also None: the mean over every token with a next one.
        row: Which of the reader's rows.
        target: For the loss, the token that should follow the position; by default the prompt's own next one.
        **forward_kwargs: As for `decompose`.

    Returns:
        The gradient at every write and position, the direct route, and what each branch hands back; the direct route
        and the branches sum to the gradient.

    Raises:
        InputError: A reader, position or target that does not fit.
        ModelError: The loss of a model without a linear head.
        WiringError: The model's forward cannot be differentiated.
        ClosureError: The parts do not sum to autograd's gradient.

    Cost: three forwards, two of which keep their activations, and two backwards. Memory beside them: five times the
    ledger's writes in float64.
    """
    clean = prompt if isinstance(prompt, Clean) else start_run(model, prompt, keep_logits=False, **forward_kwargs)
    metric = metric_of(clean, reader, position, row=row, target=target)
    with differentiating(clean.model):
        whole = graph_of(clean)
        value = metric.value(whole)
        gradient = gradients_of(whole, metric.of(whole)).writes
        del whole
        cut = graph_of(clean, cut=every_write(clean))
        parts = backward_pass(cut, metric.of(cut))
        del cut
    rows = sorted(gradient)
    number = {row: n for n, row in enumerate(rows)}
    ledger = BackwardLedger(
        ledger=clean.ledger,
        metric=metric.name,
        unit=metric.unit,
        value=value,
        places=metric.places,
        sites=tuple(clean.wiring.sites[n] for n in rows),
        gradient=_stacked(clean, rows, gradient),
        direct=_stacked(clean, rows, parts.direct),
        summed=_stacked(clean, rows, parts.total),
        reads={number[n]: number[read] for n, read in parts.reads.items()},
        contributions=_stacked(clean, rows, parts.own),
        arrived=_stacked(clean, rows, parts.arrived),
    )
    worst = float(ledger.closure.max())
    if not worst <= WRONG.get(clean.model.dtype, 1.0):
        raise ClosureError(
            f"The branches' contributions do not sum to the gradient: relative error {worst:.1e}.",
            hint="Something in the model passes gradients by another way than its writes.",
        )
    return ledger


def _stacked(clean: Clean, rows: list[int], found: Mapping[int, Tensor]) -> Tensor:
    """[write, batch, pos, d_model] at the kept positions; 0 at padding, and for a write that has no such gradient."""
    some = next(iter(found.values())) if found else None
    padding = ~clean.batch.mask[..., None]
    if some is None:
        shape = len(rows), *padding.shape[:2], clean.wiring.d_model
        return torch.zeros(shape, dtype=torch.float64)
    each = [clean.batch.keep(found[n] if n in found else torch.zeros_like(some)) for n in rows]
    return torch.stack(each).masked_fill(padding.to(some.device), 0.0)
