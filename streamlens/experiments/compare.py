"""Comparing contexts: what makes the bank of a river another vector than the bank of the money.

1. `compare` takes both prompts apart, at one token that stands in both, and keeps books on the difference of the two
   streams (`readouts/comparison.py`): which write differs, and what that gives each reader.
2. `swap` does it: one write after another is taken from context B and put into context A at that token, and the rest
   of the model runs again. What differs need not be what matters; only this shows it.

Prompts are aligned by token, never by counting: a token that does not stand once in each is refused with both lists.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from streamlens.arguments import typed
from streamlens.edits import Edit
from streamlens.errors import InputError
from streamlens.experiments.ablate import Freeze, Sweep, sweep
from streamlens.hooks.edits.donor import donated
from streamlens.hooks.prompts import Prompt, batch_for
from streamlens.hooks.writes.capture import decompose
from streamlens.hooks.writes.clean import clean_run
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import encode, find_position
from streamlens.readouts.comparison import Comparison, compare_ledgers
from streamlens.readouts.readers.reader import Reader

#: a token's text that stands once in both prompts, a position that holds one token in both, or a pair of either
Token = str | int | tuple[str | int, str | int]
#: what a swap runs over -> the level at which B is taken apart
OVER = {"sublayers": "sublayer", "heads": "head"}


@typed
def compare(
    model: ModelHandle,
    prompt_a: Prompt,
    prompt_b: Prompt,
    *,
    token: Token = -1,
    readers: Reader | Sequence[Reader] = (),
    level: str = "sublayer",
    scale: str = "a",
    **options: Any,
) -> Comparison:
    """The ledger of the difference of two streams at an aligned token. Signs: A - B.

    Args:
        model: From `streamlens.load`.
        prompt_a: Context A, one prompt.
        prompt_b: Context B, one prompt.
        token: The token's text, which stands once in each prompt; a position (negative from the end) that holds the
            same token in both; or a pair, for A and for B, which may be different tokens.
        readers: What to read.
        level: "sublayer", or "head" to split attention writes into heads.
        scale: Whose final norm reads the differences: "a", "b", or "mean" of both. What the norms themselves make of
            it is the row `rescale`, so the parts sum to the model's own difference either way.
        **options: `prepend_bos`, `stream` and further arguments of the model's forward, as for `decompose`.

    Raises:
        InputError: No aligned token (both token lists are given), several prompts, an unknown level or scale.

    Cost: one forward per prompt.
    """
    if level not in OVER.values():
        raise InputError(f'A comparison is at level "sublayer" or "head"; got {level!r}.')
    places = aligned(_texts(model, prompt_a, **options), _texts(model, prompt_b, **options), token)
    a, b = (
        decompose(model, prompt, positions=[place], level=level, **options)
        for prompt, place in zip((prompt_a, prompt_b), places, strict=True)
    )
    return compare_ledgers(a, b, readers=_tuple(readers), scale=scale)


@typed
def swap(
    model: ModelHandle,
    prompt_a: Prompt,
    prompt_b: Prompt,
    *,
    token: Token = -1,
    over: str = "sublayers",
    readers: Reader | Sequence[Reader] = (),
    read_at: str | int | None = None,
    freeze: Freeze = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Sweep:
    """Takes one write from context B and puts it into context A, one after another: resampling at one token.

    Which single write carries the sense over? Signs: A with B's write, minus A as it is. A write that carried all of
    it would have the effect m_b - m_a.

    Args:
        model: From `streamlens.load`.
        prompt_a: The context that is changed, one prompt.
        prompt_b: The context the write is taken from, one prompt.
        token: As for `compare`.
        over: "sublayers", the embedding included, or "heads".
        readers: What to read.
        read_at: Where to read in A; by default at the token.
        freeze: As for `ablate`.
        progress: Called with (done, total) after each batch.
        **options: As for `compare`.

    Raises:
        InputError: As for `compare`; nothing to swap.

    Cost: one forward per prompt, and A's positions from the token on for each write, batched.
    """
    if over not in OVER:
        raise InputError(f'A swap runs over "sublayers" or "heads"; got {over!r}.')
    texts = _texts(model, prompt_a, **options)
    here, there = aligned(texts, _texts(model, prompt_b, **options), token)
    values = donated(model, prompt_b, there, level=OVER[over], **options)
    if not values:
        raise InputError("This model has no attention heads to swap.", hint='over="sublayers" works.')
    edits = [Edit(site=site, method="replace", position=here, value=value) for site, value in values.items()]
    made = sweep(
        model,
        clean_run(model, prompt_a, **options),
        over=edits,
        readers=readers,
        read_at=here if read_at is None else read_at,
        freeze=freeze,
        progress=progress,
    )
    # what is replaced here is resampled: tables say so, and name the token
    where = texts[here].strip() or str(here)
    names = {edit.label: f"{edit.site}@{where}=resample" for edit in edits}
    parts = tuple(replace(part, variants=tuple(names[old] for old in part.variants)) for part in made.parts)
    return replace(made, parts=parts, variants=tuple(names[old] for old in made.variants))


def aligned(tokens_a: Sequence[str], tokens_b: Sequence[str], token: Token) -> tuple[int, int]:
    """The positions of the token in two prompts.

    Raises:
        InputError: Absent, ambiguous or out of range in one of them, or a single position that holds two different
            tokens; both token lists are given.
    """
    lists = (tokens_a, tokens_b)
    pair = token if isinstance(token, tuple) else (token, token)
    listed = "A: {}. B: {}.".format(*(" ".join(f"{i}:{t!r}" for i, t in enumerate(tokens)) for tokens in lists))
    try:
        here, there = (find_position(tokens, wanted) for tokens, wanted in zip(lists, pair, strict=True))
    except InputError as error:
        raise InputError(f"Two contexts are compared at a token of each. {error.message}", hint=listed) from error
    if isinstance(token, int) and tokens_a[here] != tokens_b[there]:
        raise InputError(
            f"Contexts are aligned by token; position {token} is {tokens_a[here]!r} in A and {tokens_b[there]!r} in B.",
            hint=f"Name the token, or give a pair of positions. {listed}",
        )
    return here, there


def _texts(
    model: ModelHandle, prompt: Prompt, *, prepend_bos: bool = False, stream: str | None = None, **forward_kwargs: Any
) -> tuple[str, ...]:
    """The tokens of a context in the stream that is read. Runs nothing.

    Raises:
        InputError: Several prompts.
    """
    encoded = encode(model.tokenizer, prompt, prepend_bos=prepend_bos)
    if len(encoded.ids) != 1:
        raise InputError(f"A context is one prompt; got {len(encoded.ids)}.")
    batch = batch_for(model, model.wiring_of(stream), encoded, None, forward_kwargs)
    return model.token_texts(batch.ids[0].tolist())


def _tuple(readers: Reader | Sequence[Reader]) -> tuple[Reader, ...]:
    return (readers,) if isinstance(readers, Reader) else tuple(readers)
