"""The vector at one word, after every write, over many sentences.

1. Every sentence must hold the token once; the first that does not is named before anything runs.
2. Sentences of similar length run together, and of each forward one position is kept.
3. The stream after each write is the model's own; the sentences come back in their order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.errors import InputError
from streamlens.hooks.writes.capture import decompose
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import encode, find_position
from streamlens.readouts.lens import streams
from streamlens.sentences import Sentence
from streamlens.sites import Site, find

#: relative difference of a token's vector, once tokens follow it, above which the model sees ahead
SEES_AHEAD = 0.05


@dataclass(frozen=True, eq=False, kw_only=True)
class Activations:
    """The stream at one token of many sentences.

    Attributes:
        sites: The writes, in stream order.
        vectors: The stream after each of them, in the model's dtype, [write, batch, d_model].
        sentences: What they were taken from.
        contexts: For each sentence the tokens that the model can see there, without the token itself.
        token: The token.
        provenance: Model, versions, BOS choice.
    """

    sites: tuple[Site, ...]
    vectors: Float[Tensor, "write batch d_model"]
    sentences: tuple[Sentence, ...]
    contexts: tuple[tuple[str, ...], ...]
    token: str
    provenance: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """Each sentence's label."""
        return tuple(sentence.label for sentence in self.sentences)

    def after(self, label: str) -> Float[Tensor, "batch d_model"]:
        """The vectors right after one write.

        Raises:
            InputError: No write of that name.
        """
        return self.vectors[self.sites.index(find(label, self.sites))]


def activations(
    model: ModelHandle,
    sentences: Sequence[Sentence],
    *,
    token: str,
    only: str | None = None,
    batch_size: int = 32,
    prepend_bos: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Activations:
    """Runs a model over sentences and keeps the stream at one token, after every write.

    Args:
        model: From `streamlens.load`.
        sentences: See `streamlens.sentences`.
        token: Text of the token, which stands once in each; spaces around it may be left out.
        only: Keep the stream after this write only.
        batch_size: Sentences per forward.
        prepend_bos: Put the tokenizer's BOS token in front of each.
        progress: Called with (done, total) sentences.

    Raises:
        InputError: No sentences; one without the token, or with several of it; no write called `only`.

    Cost: one forward over all sentences. Memory: writes x sentences x d_model (240 sentences of the default model: 34
    MB), and one batch.
    """
    if not sentences:
        raise InputError("A probe is made of sentences; got none.")
    if batch_size < 1:
        raise InputError(f"batch_size is at least 1; got {batch_size}.")
    known = [_tokens(model, sentence, prepend_bos) for sentence in sentences]
    places = [_place(texts, token, sentence) for (_, texts), sentence in zip(known, sentences, strict=True)]
    order = sorted(range(len(sentences)), key=lambda n: len(known[n][0]))
    parts, done, sites, provenance = [], 0, (), {}
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        texts = [sentences[n].text for n in chosen]
        ledger = decompose(model, texts, positions=token, keep_logits=False, prepend_bos=prepend_bos)
        sites = ledger.sites if only is None else (find(only, ledger.sites),)
        depths = zip(ledger.sites, streams(ledger), strict=True)
        parts.append(torch.stack([stream[:, 0].cpu() for site, stream in depths if site in sites]))
        provenance = ledger.provenance
        done += len(chosen)
        if progress is not None:
            progress(done, len(order))
    back = torch.tensor(order).argsort()
    ahead = _sees_ahead(model, known[0][0], places[0])
    contexts = [
        texts[:place] + (texts[place + 1 :] if ahead else ()) for (_, texts), place in zip(known, places, strict=True)
    ]
    return Activations(
        sites=sites,
        vectors=torch.cat(parts, 1)[:, back],
        sentences=tuple(sentences),
        contexts=tuple(contexts),
        token=known[0][1][places[0]],
        provenance=provenance,
    )


def _tokens(model: ModelHandle, sentence: Sentence, prepend_bos: bool) -> tuple[list[int], tuple[str, ...]]:
    ids = encode(model.tokenizer, sentence.text, prepend_bos=prepend_bos).ids[0].tolist()
    return ids, model.token_texts(ids)


def _place(texts: Sequence[str], token: str, sentence: Sentence) -> int:
    """Where the token stands; the sentence is named if that is nowhere or not clear."""
    try:
        return find_position(texts, token)
    except InputError as error:
        raise InputError(f"{sentence.where}: {error.message}", hint=error.hint) from error


def _sees_ahead(model: ModelHandle, ids: list[int], place: int) -> bool:
    """Whether what follows a token changes its vector: the sentence cut off there, against it with two more tokens."""
    alone, followed = (
        decompose(model, torch.tensor([row]), positions=place, keep_logits=False).stream.double()
        for row in (ids[: place + 1], [*ids[: place + 1], *ids[-1:], *ids[:1]])
    )
    return float((alone - followed).norm()) > SEES_AHEAD * float(alone.norm())
