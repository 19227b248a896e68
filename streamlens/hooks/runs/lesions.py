"""The loss of a causal language model on texts, while some writes are zero or its blocks stand in another order.

1. Texts are batched, shortest first, and padded on the right; a lesion acts at every position.
2. The loss is the cross entropy of the next token under the model's own logits, in nats, over the texts' own tokens:
   padding neither predicts nor is predicted.
3. A dropped write is set to 0 by the same actions an edit is made of.
4. Blocks are permuted by giving the items of the model's own list another order for the length of the block, and only
   where every block could stand in another's place. That they really ran in that order is watched.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from streamlens.errors import InputError, ModelError, WiringError
from streamlens.hooks.edits.action import Action
from streamlens.hooks.edits.edit import attach_actions
from streamlens.hooks.forward import Batch, forward_names
from streamlens.hooks.prompts import Prompt, batch_for
from streamlens.hooks.scope import HookScope, quiet_eval
from streamlens.models.handle import ModelHandle
from streamlens.models.probe import probe_inputs
from streamlens.models.tokens import Encoded, encode
from streamlens.models.wiring import Wiring

#: relative difference of earlier logits, once a later token changes, above which a model is not causal; kernels alone
#: reach 1e-6 in float32
SEES_AHEAD = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(frozen=True, kw_only=True)
class Lesion:
    """What is done to the model.

    Attributes:
        dropped: Rows of the writes that are zero at every position.
        order: Which block runs at each depth; () for the model's own order.
    """

    dropped: frozenset[int] = frozenset()
    order: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """Texts ready to run: batches, and how many tokens they predict."""

    batches: tuple[Batch, ...]
    tokens: int


def corpus_of(
    model: ModelHandle,
    texts: Prompt,
    *,
    batch_size: int,
    attention_mask: Tensor | None = None,
    prepend_bos: bool = False,
) -> Corpus:
    """Tokenises and batches texts, shortest first so that little is padding. Runs nothing but the padding check.

    Raises:
        InputError: No token to predict, a batch size below 1, or padding that the model sees.
    """
    if batch_size < 1:
        raise InputError(f"A batch holds at least one text; got batch_size={batch_size}.")
    encoded = encode(model.tokenizer, texts, attention_mask=attention_mask, prepend_bos=prepend_bos)
    order = encoded.mask.sum(-1).argsort(stable=True)
    batches = []
    for rows in order.split(batch_size):
        ids, mask = encoded.ids[rows], encoded.mask[rows]
        prompts = tuple(encoded.prompts[row] for row in rows.tolist())
        part = Encoded(ids=_packed(ids, mask), mask=_packed(mask, mask), prompts=prompts, bos=encoded.bos)
        batches.append(batch_for(model, model.wiring, part, None, {}))
    tokens = sum(int(batch.run_mask[:, 1:].sum()) for batch in batches)
    if not tokens:
        raise InputError("A loss needs a text of at least two tokens: the first predicts the second.")
    return Corpus(batches=tuple(batches), tokens=tokens)


def _packed(values: Tensor, mask: Tensor) -> Tensor:
    """Own tokens first, cut to the longest text of this batch."""
    return values.gather(1, torch.argsort(~mask, dim=-1, stable=True))[:, : int(mask.sum(-1).max())]


def require_causal_head(model: ModelHandle) -> None:
    """Refuses what has no next-token loss.

    Raises:
        ModelError: Two streams, no linear head, or logits that move when a later token changes.

    Cost: one forward of a few tokens.
    """
    wiring = model.wiring
    if wiring.stream != "only":
        raise ModelError(f"A lesion reads the next-token loss of a decoder alone; {model.name} has two streams.")
    if wiring.head is None:
        raise ModelError(f"A lesion reads a causal model's next-token loss; {model.name} has no such head.")
    ids = probe_inputs(model.model)["input_ids"]
    changed = ids.clone()
    changed[:, -1] = torch.where(ids[:, -1] > 0, ids[:, -1] - 1, 1)
    alone = {"use_cache": False} if "use_cache" in forward_names(model.model) else {}
    with quiet_eval(model.model):
        before, after = (model.model(input_ids=x, **alone).logits[:, :-1].double() for x in (ids, changed))
    if not before.isfinite().all():
        raise ModelError(f"A loss is made of finite logits; those of {model.name} hold NaN or infinity.")
    if float((after - before).norm()) > SEES_AHEAD.get(model.dtype, 1e-2) * float(before.norm()):
        raise ModelError(f"A lesion reads a causal model's next-token loss; {model.name} sees later tokens.")


def losses(
    model: ModelHandle, corpus: Corpus, lesions: Sequence[Lesion], *, progress: Callable[[int, int], None] | None = None
) -> list[float]:
    """The mean loss under each lesion, in nats per token.

    Args:
        model: A causal model with a linear head.
        corpus: The texts.
        lesions: What is done, one after another.
        progress: Called with (done, total) forwards.

    Raises:
        WiringError: Blocks that cannot be permuted.

    Cost: one forward over all texts per lesion.
    """
    found, done = [], 0
    for lesion in lesions:
        total = 0.0
        for batch in corpus.batches:
            total += _summed_loss(model, batch, lesion)
            done += 1
            if progress is not None:
                progress(done, len(lesions) * len(corpus.batches))
        found.append(total / corpus.tokens)
    return found


def _summed_loss(model: ModelHandle, batch: Batch, lesion: Lesion) -> float:
    with ExitStack() as stack:
        if lesion.order:
            stack.enter_context(permuted(model, model.wiring, lesion.order))
        stack.enter_context(quiet_eval(model.model))
        if lesion.dropped:
            actions = list(zeroed(model.wiring, batch, lesion.dropped))
            stack.enter_context(attach_actions(model, model.wiring, batch, actions))
        logits = model.model(**batch.inputs).logits
        each = nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
            batch.inputs["input_ids"][:, 1:].flatten(),
            reduction="none",
        )
        predicted = batch.run_mask[:, 1:].flatten().to(each.device)
        return float(each[predicted].sum(dtype=torch.float64))


def zeroed(wiring: Wiring, batch: Batch, rows: frozenset[int]) -> Iterator[Action]:
    """Actions that set writes to 0 at every position of a run."""
    prompts, length = batch.run_mask.shape
    for row in sorted(rows):
        tap = wiring.writes[row].tap
        assert tap is not None
        yield Action(
            row=row,
            tap=tap,
            rows=torch.arange(prompts).repeat_interleave(length),
            positions=torch.arange(length).repeat(prompts),
            change=torch.zeros_like,
        )


def require_interchangeable(model: ModelHandle, wiring: Wiring) -> int:
    """How many blocks there are to permute.

    Raises:
        WiringError: Blocks that are called several times, or that differ: in class, in the names and shapes of their
            parameters, or in the kind of attention the config gives each depth.
    """
    blocks = model.modules.get(wiring.blocks)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential) or len(blocks) != wiring.n_layers:
        raise WiringError(f"The blocks of {model.name} are not called once each, so they have no order to change.")
    shapes = [[(name, p.shape) for name, p in block.named_parameters()] for block in blocks]
    config: Any = model.model.config
    kinds = {str(kind) for kind in getattr(config.get_text_config(), "layer_types", None) or []}
    if len({type(block) for block in blocks}) > 1 or any(s != shapes[0] for s in shapes) or len(kinds) > 1:
        what = f"have several kinds of attention ({', '.join(sorted(kinds))})" if len(kinds) > 1 else "differ"
        raise WiringError(f"The blocks of {model.name} {what}, so one cannot stand in another's place.")
    return len(blocks)


@contextmanager
def permuted(model: ModelHandle, wiring: Wiring, order: Sequence[int]) -> Iterator[None]:
    """Inside, the block that was at `order[depth]` runs at `depth`; afterwards the list is as it was.

    Raises:
        WiringError: The model ran its blocks in another order than its list has, so nothing was permuted.
    """
    require_interchangeable(model, wiring)
    blocks: Any = model.modules[wiring.blocks]
    before = dict(blocks._modules)
    own = list(before.values())
    called: list[int] = []
    with HookScope() as scope:
        for number, block in enumerate(own):
            scope.before(block, lambda _module, _args, _kwargs, number=number: called.append(number))
        try:
            blocks._modules.update(zip(before, (own[number] for number in order), strict=True))
            yield
        finally:
            blocks._modules.update(before)
    if called[: len(order)] != list(order):
        raise WiringError(f"{model.name} does not run its blocks in the order of its list.")
