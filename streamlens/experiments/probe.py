"""How well a sense can be read off a word's vector, after every write, beside what chance and the words alone give.

1. The vectors at the token (`activations.py`); some sentences are held out, by template where they have one.
2. After every write a probe is fitted to the others, and its accuracy on the held-out ones is counted. Where all
   vectors are equal, as the embedding of one token is, there is no probe, and the guess is the commonest label.
3. Control 1, shuffled labels: the labels of both sides are permuted, the same way at all depths, and everything is
   done again. (With only the training labels permuted, a permutation that agrees with the truth a little would be
   carried by the strongest direction there is, the true one: 4 to 98 percent by mean difference, measured.)
4. Control 2, bag of context: a logistic regression on which tokens the model can see there. What it reaches, the words
   give by themselves, with no model.
5. Chance: always the commonest label; its interval is the binomial's for that many held-out sentences, 95 percent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.errors import InputError
from streamlens.experiments.activations import Activations, activations
from streamlens.models.handle import ModelHandle
from streamlens.readouts.readers.controls import accuracy, bag_accuracy, chance_interval, commonest, permutations
from streamlens.readouts.readers.probes import METHODS, ProbeFitter
from streamlens.readouts.readers.reader import Reader
from streamlens.sentences import Sentence, bank_senses, read_sentences, split
from streamlens.sites import find

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class ProbeDepths:
    """Probes of one kind after every write, as accuracies on held-out sentences. All accuracies are shares.

    Attributes:
        activations: What they are fitted to and tested on.
        train: Numbers of the sentences to train.
        held_out: Numbers of the others.
        method: "mean_difference" or "logistic".
        accuracy: On the held-out sentences, after each write.
        train_accuracy: On those it was fitted to.
        shuffled: The same as `accuracy` with permuted labels, [write, shuffle].
        context: Held-out accuracy of the bag of context.
        chance: Of always the commonest label.
        interval: Where 95 percent of guesses by chance lie, for that many held-out sentences.
        provenance: Model, versions, arguments.
    """

    activations: Activations
    train: tuple[int, ...]
    held_out: tuple[int, ...]
    method: str
    accuracy: Float[Tensor, " write"]
    train_accuracy: Float[Tensor, " write"]
    shuffled: Float[Tensor, "write shuffle"]
    context: float
    chance: float
    interval: tuple[float, float]
    provenance: Mapping[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, sorted."""
        return tuple(sorted(set(self.activations.labels)))

    @property
    def best(self) -> str:
        """The write after which the held-out accuracy is largest, the first of several.

        The held-out sentences choose it, so of many depths its accuracy flatters a little.
        """
        return self.activations.sites[int(self.accuracy.argmax())].label

    def reader(self, after: str = "best") -> Reader:
        """The probe after one write, fitted to the training sentences.

        Raises:
            InputError: No write of that name; vectors that are all equal there.
        """
        label = self._label(after)
        reader = self._fitter(label).fit(self.method, after=label)
        right = float(self.accuracy[[site.label for site in self.activations.sites].index(label)])
        told = {"token": self.activations.token, "model": str(self.provenance["model"]), "accuracy": f"{right:.4f}"}
        return replace(reader, meta={**reader.meta, **told})

    def coordinates(self, origin: str, after: str = "best") -> Reader:
        """`ProbeFitter.coordinates` of the training sentences after one write."""
        label = self._label(after)
        return self._fitter(label).coordinates(origin, after=label)

    def to_frame(self) -> "pd.DataFrame":
        """One row per write; see `streamlens.frames.SCHEMAS["probe"]`."""
        from streamlens.frames import probe_frame

        columns = {
            "train_accuracy": self.train_accuracy,
            "accuracy": self.accuracy,
            "shuffled": self.shuffled.mean(-1),
            "shuffled_low": self.shuffled.amin(-1),
            "shuffled_high": self.shuffled.amax(-1),
        }
        same = {
            "context": self.context,
            "chance": self.chance,
            "chance_low": self.interval[0],
            "chance_high": self.interval[1],
            "train": len(self.train),
            "held_out": len(self.held_out),
        }
        return probe_frame(self.activations.sites, columns, same, self.provenance)

    def _label(self, after: str) -> str:
        return find(self.best if after == "best" else after, self.activations.sites).label

    def _fitter(self, after: str) -> ProbeFitter:
        rows = list(self.train)
        labels = [self.activations.labels[n] for n in rows]
        return ProbeFitter().update(self.activations.after(after)[rows], labels)

    def __repr__(self) -> str:
        return (
            f"ProbeDepths({', '.join(self.classes)} at {self.activations.token!r}: {float(self.accuracy.max()):.1%} of "
            f"{len(self.held_out)} held-out sentences after {self.best}; context {self.context:.1%}, chance "
            f"{self.chance:.1%})"
        )


@typed
def probe(
    model: ModelHandle,
    sentences: Sequence[Sentence] | str | Path | None = None,
    *,
    token: str = " bank",
    label: str | None = None,
    method: str = "mean_difference",
    shuffles: int = 10,
    held_out: float = 0.25,
    seed: int = 0,
    batch_size: int = 32,
    prepend_bos: bool = False,
    progress: Progress | None = None,
) -> ProbeDepths:
    """Fits a probe after every write, and counts how often it is right on held-out sentences.

    Args:
        model: From `streamlens.load`.
        sentences: Labelled sentences or their file; None for the bundled " bank" in two senses.
        token: The token whose vector is read; it stands once in each sentence.
        label: The column of a file's labels; None for `label`, or `sense`.
        method: "mean_difference" or "logistic"; see `ProbeFitter.fit`.
        shuffles: Permutations of the labels for the control.
        held_out: The share to test, where the sentences do not say it themselves.
        seed: Of the split and the permutations.
        batch_size: Sentences per forward.
        prepend_bos: Put the tokenizer's BOS token in front of each sentence.
        progress: Called with ("sentences" or "depths", done, total).

    Raises:
        InputError: Sentences of one label only, without the token, or with several of it; see also
            `streamlens.sentences`.

    Cost: one forward over all sentences, and 1 + shuffles fits per write (logistic: about 10 ms each at 160 x 576).
    """
    _require(method, shuffles)
    if sentences is None:
        sentences = bank_senses()
    elif isinstance(sentences, str | Path):
        sentences = read_sentences(sentences, label=label)
    _require_two_labels(sentences)
    split(sentences, held_out=held_out, seed=seed)  # refused before anything runs
    note = progress or (lambda kind, done, total: None)
    found = activations(
        model,
        sentences,
        token=token,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        progress=lambda done, total: note("sentences", done, total),
    )
    return probe_depths(
        found,
        method=method,
        shuffles=shuffles,
        held_out=held_out,
        seed=seed,
        progress=lambda done, total: note("depths", done, total),
    )


def probe_depths(
    found: Activations,
    *,
    method: str = "mean_difference",
    shuffles: int = 10,
    held_out: float = 0.25,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeDepths:
    """The second half of `probe`: everything that needs no model, on vectors that were captured before.

    Args:
        found: From `streamlens.experiments.activations`, after every write.
        method: As in `probe`.
        shuffles: As in `probe`.
        held_out: As in `probe`.
        seed: As in `probe`.
        progress: Called with (done, total) writes.

    Raises:
        InputError: As `probe`.
    """
    _require(method, shuffles)
    _require_two_labels(found.sentences)
    train, test = split(found.sentences, held_out=held_out, seed=seed)
    labels = list(found.labels)
    permuted = list(permutations(labels, train, test, shuffles, seed))
    own, fitted, shuffled = [], [], []
    for number, vectors in enumerate(found.vectors, 1):
        own.append(accuracy(vectors, labels, train, test, method))
        fitted.append(accuracy(vectors, labels, train, train, method))
        shuffled.append([accuracy(vectors, other, train, test, method) for other in permuted])
        if progress is not None:
            progress(number, len(found.vectors))
    held = [labels[n] for n in test]
    chance = held.count(commonest([labels[n] for n in train])) / len(held)
    return ProbeDepths(
        activations=found,
        train=tuple(train),
        held_out=tuple(test),
        method=method,
        accuracy=torch.tensor(own, dtype=torch.float64),
        train_accuracy=torch.tensor(fitted, dtype=torch.float64),
        shuffled=torch.tensor(shuffled, dtype=torch.float64),
        context=bag_accuracy(found.contexts, labels, train, test),
        chance=chance,
        interval=chance_interval(chance, len(held)),
        provenance={**found.provenance, "token": found.token, "method": method, "shuffles": shuffles, "seed": seed},
    )


def _require(method: str, shuffles: int) -> None:
    if method not in METHODS:
        raise InputError(f"A probe's method is {' or '.join(METHODS)}; got {method!r}.")
    if shuffles < 1:
        raise InputError(f"shuffles is at least 1; got {shuffles}.")


def _require_two_labels(sentences: Sequence[Sentence]) -> None:
    if not sentences:
        raise InputError("A probe is made of sentences; got none.")
    names = {sentence.label for sentence in sentences}
    if len(names) == 1:
        raise InputError(
            f"A probe tells at least two labels apart; all {len(sentences)} sentences, from {sentences[0].where} on, "
            f"are labelled {names.pop()!r}."
        )
