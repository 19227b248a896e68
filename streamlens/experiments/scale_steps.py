"""Depth as time: every write scaled by h, as if the model took longer or shorter steps along its depth.

x[s + 1] = x[s] + h f_s(x[s]) is Euler's method with step h for dx/dt = f_t(x). h = 1 is the model, h = 0 leaves the
embedding as it is. A block applied n times at 1 / n of its strength takes n smaller steps over the same depth (Haber
and Ruthotto 2017; Chen et al. 2018): a model that computed a smooth flow would hardly notice.

1. The model as it is gives the logits that everything is compared with.
2. One run per h and number of calls: its loss on the prompt's own next tokens, and the divergence at one position.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from streamlens.arguments import typed
from streamlens.errors import InputError
from streamlens.hooks.prompts import Prompt, kept_positions
from streamlens.hooks.runs.lesions import require_causal_head
from streamlens.hooks.runs.scaled import chosen_layers, require_repeatable, scaled_logits
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.models.handle import ModelHandle
from streamlens.readouts.depth.scaling import ScaledSteps

STEPS = (0.0, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)


@typed
def scale_steps(
    model: ModelHandle,
    prompt: Prompt | Clean,
    h: float | Sequence[float] = STEPS,
    *,
    layers: int | Sequence[int] | None = None,
    calls: int | Sequence[int] = 1,
    position: int | str = -1,
    **forward_kwargs: Any,
) -> ScaledSteps:
    """Multiplies every write by h and reruns: 1 is the model bit for bit, 0 leaves its embedding.

    In a post-norm model the norms still act on the stream, so that h = 0 is not the identity there.

    Args:
        model: From `streamlens.load`: causal, with a linear head.
        prompt: One prompt, or an earlier clean run of it.
        h: One factor, or several.
        layers: Whose writes; a number, several, a range, or None for all. The embedding is never scaled.
        calls: In how many calls each of these layers is applied, at h / calls each: 2 halves the step. Several make a
            run for each h and each number.
        position: Where the next-token distribution is compared with the model's own.
        **forward_kwargs: As for `decompose`.

    Returns:
        For each run the loss in nats per token and KL(model || run) in nats.

    Raises:
        InputError: Factors, layers, calls or a position that do not fit; more than one prompt.
        ModelError: A model without next-token logits.
        WiringError: calls above 1 where a block cannot be applied in smaller steps.

    Cost: one forward per run, a layer counting once per call, and one for the model as it is.
    """
    require_causal_head(model)
    factors = [float(h)] if isinstance(h, int | float) else [float(each) for each in h]
    numbers = [calls] if isinstance(calls, int) else list(calls)
    if not factors or not all(abs(each) < float("inf") for each in factors):
        raise InputError(f"h is at least one finite factor; got {factors}.")
    if not numbers or min(numbers) < 1:
        raise InputError(f"A layer is applied in at least one call; got calls={numbers}.")
    chosen = chosen_layers(model, layers)
    if max(numbers) > 1:
        require_repeatable(model, model.wiring)
    clean = prompt if isinstance(prompt, Clean) else start_run(model, prompt, **forward_kwargs)
    if len(clean.encoded.ids) != 1:
        raise InputError(f"Steps are scaled in one prompt at a time; got {len(clean.encoded.ids)}.")
    clean = clean.unpadded
    places = kept_positions(clean.context, position)
    assert places is not None
    [[place]] = places
    ids = clean.batch.inputs["input_ids"][0]
    own = scaled_logits(clean, (), 1.0)[0]
    base = own[place].double().log_softmax(-1)
    runs = [(each, number) for number in numbers for each in factors]
    loss, kl, kept = [], [], []
    for factor, number in runs:
        logits = scaled_logits(clean, chosen, factor, calls=number)[0]
        loss.append(_loss(logits, ids))
        kl.append(float((base.exp() * (base - logits[place].double().log_softmax(-1))).sum()))
        kept.append(logits[place].cpu())
    texts = model.token_texts([int(x.argmax()) for x in (own[place], *kept)])
    return ScaledSteps(
        h=tuple(factor for factor, _ in runs),
        calls=tuple(number for _, number in runs),
        layers=chosen,
        position=place,
        token=clean.context[0][place],
        loss=tuple(loss),
        kl=tuple(kl),
        top=texts[1:],
        base_loss=_loss(own, ids),
        base_top=texts[0],
        tokens=len(ids) - 1,
        logits=torch.stack(kept),
        provenance={
            **model.provenance,
            "bos": clean.encoded.bos,
            "prompts": list(clean.encoded.prompts),
            "layers": list(chosen),
        },
    )


def _loss(logits: Tensor, ids: Tensor) -> float:
    """Mean cross entropy of each token after the first, in nats; NaN where there is none."""
    return float(nn.functional.cross_entropy(logits[:-1].double(), ids[1:]))
