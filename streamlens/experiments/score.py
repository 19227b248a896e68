"""What a probe says of labelled sentences, and how often it is right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from streamlens.errors import InputError
from streamlens.experiments.activations import activations
from streamlens.models.handle import ModelHandle
from streamlens.readouts.readers.probes import classes_of, predicted, values_of
from streamlens.readouts.readers.reader import Reader
from streamlens.sentences import SPLITS, Sentence, bank_senses, read_sentences

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class ProbeScores:
    """A probe's values at one token of labelled sentences.

    Attributes:
        reader: The probe.
        sentences: The sentences.
        values: In the reader's unit, [batch, reader].
        predicted: The class it speaks for, of each sentence.
        provenance: Model, versions, arguments.
    """

    reader: Reader
    sentences: tuple[Sentence, ...]
    values: Float[Tensor, "batch reader"]
    predicted: tuple[str, ...]
    provenance: Mapping[str, Any]

    @property
    def accuracy(self) -> dict[str, float]:
        """The share it gets right: of "all", and of "train" and "test" where the sentences say which they are.

        The sentences to train are those that the probe may have been fitted to.
        """
        right = [guess == s.label for guess, s in zip(self.predicted, self.sentences, strict=True)]
        sides = {"all": right}
        for side in SPLITS:
            chosen = [ok for ok, s in zip(right, self.sentences, strict=True) if s.split == side]
            sides |= {side: chosen} if chosen else {}
        return {side: sum(chosen) / len(chosen) for side, chosen in sides.items()}

    def to_frame(self) -> "pd.DataFrame":
        """One row per (sentence, reader row); see `streamlens.frames.SCHEMAS["probe_scores"]`."""
        from streamlens.frames import probe_scores_frame

        rows = [
            {"text": s.text, "label": s.label, "template": s.template, "split": s.split, "predicted": guess}
            for s, guess in zip(self.sentences, self.predicted, strict=True)
        ]
        return probe_scores_frame(rows, self.values, self.reader, self.provenance)

    def __repr__(self) -> str:
        said = ", ".join(f"{side} {share:.1%}" for side, share in self.accuracy.items())
        return f"ProbeScores({self.reader.name} on {len(self.sentences)} sentences; right: {said})"


def score(
    model: ModelHandle,
    reader: Reader,
    sentences: Sequence[Sentence] | str | Path | None = None,
    *,
    token: str = " bank",
    label: str | None = None,
    batch_size: int = 32,
    prepend_bos: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeScores:
    """Reads one token of every sentence with a probe.

    Args:
        model: From `streamlens.load`.
        reader: From `ProbeFitter.fit`, or loaded from its file.
        sentences: As in `probe`.
        token: As in `probe`.
        label: As in `probe`.
        batch_size: Sentences per forward.
        prepend_bos: Put the tokenizer's BOS token in front of each sentence.
        progress: Called with (done, total) sentences.

    Raises:
        InputError: A reader that is no probe; a label that it does not know; sentences that do not fit.

    Cost: one forward over all sentences.
    """
    if sentences is None:
        sentences = bank_senses()
    elif isinstance(sentences, str | Path):
        sentences = read_sentences(sentences, label=label)
    classes = classes_of(reader)
    for sentence in sentences:
        if sentence.label not in classes:
            raise InputError(
                f"{sentence.where}: the probe tells {', '.join(classes)} apart; this label is {sentence.label!r}."
            )
    after = reader.after or model.wiring.sites[-1].label
    found = activations(
        model, sentences, token=token, only=after, batch_size=batch_size, prepend_bos=prepend_bos, progress=progress
    )
    values = values_of(reader, found.vectors[0])
    return ProbeScores(
        reader=reader,
        sentences=found.sentences,
        values=values,
        predicted=tuple(predicted(reader, values)),
        provenance={**found.provenance, "token": found.token, "reader": reader.name},
    )
