"""What a write is on other prompts: the references of mean and resample.

1. Everything that can be wrong with them is checked on their tokens, before anything runs.
2. Each set of reference prompts runs once, however many edits name it.
3. A mean leaves attention sinks out, unless it is one mean per position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from streamlens.edits import Edit
from streamlens.errors import InputError
from streamlens.hooks.edits.action import Change
from streamlens.hooks.edits.edit import Place
from streamlens.hooks.forward import Batch
from streamlens.hooks.prompts import batch_for
from streamlens.hooks.writes.capture import capture
from streamlens.hooks.writes.split import Split
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import Encoded, encode, find_position
from streamlens.models.wiring import Projection, Wiring


@dataclass(frozen=True, eq=False)
class Seen:
    """One run of reference prompts: its ledger, and what each projection read, by row."""

    ledger: Ledger
    inputs: dict[int, Tensor]

    def values(self, place: Place) -> Tensor:
        """What a write, head or neuron is there, [batch, pos, width]."""
        if place.columns is None:
            return self.ledger.added[place.row]
        return self.inputs[place.row][..., place.columns]


@dataclass(frozen=True, eq=False)
class References:
    """The runs of reference prompts, made when first needed."""

    model: ModelHandle
    wiring: Wiring
    batches: dict[tuple[str, ...], tuple[Encoded, Batch]] = field(default_factory=dict)
    runs: dict[tuple[tuple[str, ...], bool], Seen] = field(default_factory=dict)

    def mean(self, edit: Edit, place: Place, positions: Sequence[int]) -> Callable[[], Change]:
        """The change of a "mean" edit.

        Raises:
            InputError: Reference prompts without tokens, or too short for a mean at each position.
        """
        longest = max(len(texts) for texts in self._tokens(edit))
        if edit.per_position and max(positions) >= longest:
            raise InputError(
                f"A mean per position needs a reference at position {max(positions)}; the longest reference prompt "
                f"has {longest} tokens."
            )

        def made() -> Change:
            seen = self._run(edit, place)
            mask, sinks = seen.ledger.mask, seen.ledger.sinks
            values = seen.values(place).double()
            keep = (mask if edit.per_position else mask & ~sinks)[..., None].to(values.device)
            if not keep.any():
                raise InputError(f"The reference prompts of {edit.label} hold no token that is no sink.")
            values = values.masked_fill(~keep, 0.0)
            if edit.per_position:
                each = (values.sum(0) / keep.sum(0))[list(positions)]
                return lambda here: each.to(here.dtype)
            mean = values.sum((0, 1)) / keep.sum((0, 1))
            return lambda here: mean.to(here.dtype).expand_as(here)

        return made

    def resample(
        self, edit: Edit, place: Place, context: Sequence[Sequence[str]], positions: Sequence[int]
    ) -> Callable[[], Change]:
        """The change of a "resample" edit: tokens named by text are looked up in the other prompt too.

        Raises:
            InputError: Prompts that do not align; both token lists are shown.
        """
        (there,) = self._tokens(edit)
        wanted = [edit.position] if isinstance(edit.position, int | str) else list(edit.position or ())
        if wanted and all(isinstance(token, str) for token in wanted):
            places = [find_position(there, token) for token in wanted] * len(context)
        else:
            for tokens in context:
                if len(tokens) != len(there):
                    raise InputError(
                        "Prompts of different length do not align position by position: "
                        f"{list(tokens)} ({len(tokens)} tokens) and {list(there)} ({len(there)} tokens).",
                        hint="Name the token: position=' bank'.",
                    )
            places = list(positions)

        def made() -> Change:
            values = self._run(edit, place).values(place)[0, places]
            return lambda here: values.to(here.dtype)

        return made

    def _tokens(self, edit: Edit) -> list[tuple[str, ...]]:
        batch = self._batch(edit)[1]
        return [self.model.token_texts(ids[mask].tolist()) for ids, mask in zip(batch.ids, batch.mask, strict=True)]

    def _batch(self, edit: Edit) -> tuple[Encoded, Batch]:
        key = _prompts(edit)
        if key not in self.batches:
            encoded = encode(self.model.tokenizer, key)
            self.batches[key] = encoded, batch_for(self.model, self.wiring, encoded, None, {})
        return self.batches[key]

    def _run(self, edit: Edit, place: Place) -> Seen:
        key = _prompts(edit), place.columns is not None
        if key not in self.runs:
            encoded, batch = self._batch(edit)
            makers = self.model.projections(self.wiring.stream) if key[1] else {}
            splits = [
                Split(row=row, write=self.wiring.writes[row], maker=maker)
                for row, maker in makers.items()
                if isinstance(maker, Projection)
            ]
            ledger = capture(
                self.model,
                self.wiring,
                batch,
                prompts=encoded.prompts,
                keep_logits=False,
                provenance={},
                splits=splits,
            )
            self.runs[key] = Seen(ledger, {split.row: split.inputs for split in splits})
        return self.runs[key]


def _prompts(edit: Edit) -> tuple[str, ...]:
    given = edit.prompts or ()
    return (given,) if isinstance(given, str) else tuple(given)
