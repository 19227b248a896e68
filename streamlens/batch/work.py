"""One batch of prompts on its way through the model: what every analysis of it shares.

1. The prompts are tokenised; the selectors name the tokens that are looked at, as many in each prompt.
2. The ledger is made once, by one forward over all of them, and only if an analysis asks for it.
3. How well the books close is noted for each prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from streamlens.batch.settings import Settings
from streamlens.errors import InputError
from streamlens.hooks.prompts import PerPrompt, batch_for
from streamlens.hooks.writes.capture import capture
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import Encoded, encode, find_position
from streamlens.readouts.attribution import Readout, read
from streamlens.readouts.readers.reader import Reader


@dataclass(frozen=True)
class Item:
    """One prompt of the input.

    Attributes:
        number: Its number in the input, from 0.
        where: Where it came from.
        text: The prompt; None where there is none.
        tokens: How many tokens it has; 0 where that is not known.
        token: Its own token selector; None for the batch's.
        stage: At what it has failed before anything ran: "input" or "tokens"; "" if it has not.
        reason: Why it failed.
    """

    number: int
    where: str
    text: str | None
    tokens: int = 0
    token: str | int | None = None
    stage: str = ""
    reason: str | None = None


@dataclass
class Closes:
    """How well one prompt's books close; None where nothing was summed."""

    closure: float | None = None
    in_order: float | None = None
    readout_closure: float | None = None


@dataclass(eq=False)
class Work:
    """A batch of prompts, at the tokens that are looked at.

    Attributes:
        model: The handle.
        settings: What is computed.
        readers: What is read.
        items: The prompts.
        encoded: Their tokens.
        places: For each prompt the positions of its selected tokens; None for every token.
        logits: Keep the model's logits in the ledger.
        closes: How well each prompt's books close; analyses fill it.
    """

    model: ModelHandle
    settings: Settings
    readers: tuple[Reader, ...]
    items: tuple[Item, ...]
    encoded: Encoded
    places: PerPrompt | None
    logits: bool
    closes: list[Closes] = field(default_factory=list)

    @cached_property
    def numbers(self) -> list[int]:
        """The prompts' numbers in the input."""
        return [item.number for item in self.items]

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of all prompts at the selected tokens. Cost: one forward."""
        wiring = self.model.wiring_of(self.settings.stream)
        batch = batch_for(self.model, wiring, self.encoded, self.places, {})
        made = capture(
            self.model,
            wiring,
            batch,
            prompts=self.encoded.prompts,
            keep_logits=self.logits,
            provenance={**self.model.provenance, "bos": self.encoded.bos},
        )
        for closes, worst in zip(self.closes, made.closure.amax(-1).tolist(), strict=True):
            closes.closure, closes.in_order = worst, made.in_order
        return made

    @cached_property
    def readouts(self) -> tuple[Readout, ...]:
        """What every row of the ledger gives each reader."""
        made = tuple(read(self.ledger, reader) for reader in self.readers)
        for readout in made:
            for closes, worst in zip(self.closes, readout.closure.amax((1, 2)).tolist(), strict=True):
                known = [value for value in (closes.readout_closure, worst) if value is not None]
                closes.readout_closure = max(known)
        return made

    @cached_property
    def roles(self) -> list[str]:
        """The role of every kept token, prompt by prompt."""
        return [role for row in range(len(self.items)) for role in self.roles_of(row)]

    def roles_of(self, row: int) -> list[str]:
        """The roles of one prompt's kept tokens."""
        if self.places is None:
            last = int(self.encoded.mask[row].sum()) - 1
            return ["last" if p == last else "first" if p == 0 else "between" for p in range(last + 1)]
        return ["own"] if self.settings.token_column else [str(token) for token in self.settings.token]


def start(
    model: ModelHandle, settings: Settings, readers: Sequence[Reader], items: Sequence[Item], *, logits: bool
) -> Work:
    """Tokenises prompts and finds the tokens that are looked at.

    Raises:
        InputError: A token that is absent or ambiguous in a prompt.
    """
    encoded = encode(model.tokenizer, [str(item.text) for item in items], prepend_bos=settings.prepend_bos)
    return Work(
        model=model,
        settings=settings,
        readers=tuple(readers),
        items=tuple(items),
        encoded=encoded,
        places=_places(model, settings, items, encoded),
        logits=logits,
        closes=[Closes() for _ in items],
    )


def _places(model: ModelHandle, settings: Settings, items: Sequence[Item], encoded: Encoded) -> PerPrompt | None:
    if not settings.token and settings.token_column is None:
        return None
    rows = []
    for item, ids, mask in zip(items, encoded.ids, encoded.mask, strict=True):
        wanted = settings.token or (() if item.token is None else (item.token,))
        length = int(mask.sum())
        texts = model.token_texts(ids[mask].tolist()) if any(isinstance(token, str) for token in wanted) else ()
        rows.append(tuple(find_position(texts, t) if isinstance(t, str) else _number(t, length) for t in wanted))
    return PerPrompt(tuple(rows))


def _number(position: int, length: int) -> int:
    if not -length <= position < length:
        raise InputError(f"A position is between 0 and {length - 1}; got {position}.")
    return position % length


def require_runnable(model: ModelHandle, settings: Settings) -> None:
    """Refuses a model whose stream is not that of the prompts.

    Raises:
        InputError: An encoder-decoder whose decoder would be read.
    """
    if model.wiring_of(settings.stream).stream == "decoder":
        raise InputError(
            f"{model.name} reads prompts with its encoder; its decoder's stream holds none of their tokens.",
            hint="--stream encoder reads the prompts.",
        )


def ids_of(work: Work, row: int) -> torch.Tensor:
    """The token ids of one prompt, [1, pos], without padding."""
    return work.encoded.ids[row][work.encoded.mask[row]][None]
