"""Probes: readers fitted to labelled vectors.

1. A `ProbeFitter` takes vectors and labels batch by batch. It adds up each class's vectors in float64; the logistic
   regression needs the vectors themselves, so they are kept unless that is declined.
2. `fit` gives a frozen `Reader` of the stream. Two classes: one row, positive for the second by name, with 0 as the
   boundary. More classes: one row each, and the largest is the guess.
3. mean_difference: which class mean is nearer. With mu_c the means, score_c = mu_c . x - |mu_c|^2 / 2; one row is
   score_1 - score_0, several are score_c less their mean, all in one unit: half the (root mean square) distance
   between class means. Two means then lie at -1 and +1.
4. logistic: scikit-learn's, with a ridge penalty on standardised coordinates, folded back into rows over the stream.
5. `coordinates`: the origin is one class's mean, and every other class's mean lies at 1 on an axis of its own.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.errors import InputError
from streamlens.readouts.readers.reader import Reader

METHODS = ("mean_difference", "logistic")


class ProbeFitter:
    """Accumulates labelled vectors; `fit` turns what it has seen into a `Reader`.

    Args:
        keep: Keep the vectors, O(vectors x d_model) of memory. Without them only means are held, and
            `fit("mean_difference")` and `coordinates` are what there is.
    """

    @typed
    def __init__(self, *, keep: bool = True) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._kept: list[tuple[Tensor, list[str]]] | None = [] if keep else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels seen so far, sorted."""
        return tuple(sorted(self._sums))

    @property
    def counts(self) -> dict[str, int]:
        """How many vectors of each class were seen."""
        return {name: self._counts[name] for name in self.classes}

    @property
    def means(self) -> Float[Tensor, "reader d_model"]:
        """The mean vector of each class, in float64, in the order of `classes`."""
        return torch.stack([self._sums[name] / self._counts[name] for name in self.classes])

    @typed
    def update(self, vectors: Float[Tensor, "batch d_model"], labels: Sequence[str]) -> "ProbeFitter":
        """Takes more vectors; gives itself back.

        Raises:
            InputError: Not one label a vector, numbers that are not finite, or another width than before.
        """
        if len(vectors) != len(labels):
            raise InputError(f"Every vector has one label; got {len(vectors)} vectors and {len(labels)} labels.")
        if not torch.isfinite(vectors).all():
            raise InputError("A probe is fitted to finite numbers; these vectors hold NaN or infinity.")
        width = next((len(total) for total in self._sums.values()), vectors.shape[1])
        if vectors.shape[1] != width:
            raise InputError(f"All vectors of a probe have one width, {width} so far; got {vectors.shape[1]}.")
        vectors = vectors.detach().cpu()
        names = list(map(str, labels))
        for name in dict.fromkeys(names):
            rows = vectors[[label == name for label in names]].double()
            self._sums[name] = self._sums.get(name, torch.zeros(width, dtype=torch.float64)) + rows.sum(0)
            self._counts[name] = self._counts.get(name, 0) + len(rows)
        if self._kept is not None:
            self._kept.append((vectors.clone(), names))
        return self

    def fit(
        self, method: str = "mean_difference", *, after: str | None = None, name: str | None = None, c: float = 0.1
    ) -> Reader:
        """The probe of what was seen so far.

        Args:
            method: "mean_difference" (Euclidean, nearest class mean) or "logistic".
            after: The write after which the vectors were taken, so that the reader reads there; None for the end.
            name: For titles; by default from the classes.
            c: Inverse strength of the ridge penalty of "logistic", scikit-learn's C, on standardised coordinates.

        Returns:
            One row, `river - money`, positive for the class that comes second by name; or a row for each of more
            classes. Unit: half the distance between the class means, or logits (log odds) of the probe. The classes
            and the method are in `meta`; see `predicted`.

        Raises:
            InputError: Fewer than two classes; class means that are equal; "logistic" without kept vectors.
        """
        if method not in METHODS:
            raise InputError(f"A probe's method is {' or '.join(METHODS)}; got {method!r}.")
        classes = self._at_least_two()
        if method == "mean_difference":
            matrix, bias = _nearest_mean(self.means)
            unit = "half distances between class means"
        else:
            matrix, bias = self._logistic(c)
            unit = "logits of the probe"
        rows = (" - ".join(reversed(classes)),) if len(classes) == 2 else classes
        return Reader(
            name=name or (rows[0] if len(rows) == 1 else ", ".join(rows)),
            rows=rows,
            unit=unit,
            matrix=matrix,
            bias=bias,
            norm="none",
            after=after,
            meta={"classes": json.dumps(classes), "method": method},
        )

    def coordinates(self, origin: str, *, after: str | None = None) -> Reader:
        """One coordinate for each class but `origin`: 0 at the origin's mean, 1 at the class's own, 0 at the others'.

        The axes are the differences of the class means from the origin's. They need not be at right angles; a vector
        is read by its projection into the space that they span. No class is a boundary here: 0 is the origin.

        Args:
            origin: The class whose mean is the origin: examples that decide nothing.
            after: As in `fit`.

        Raises:
            InputError: No such class; class means that do not span a space of their number.
        """
        classes = self._at_least_two()
        if origin not in classes:
            raise InputError(f"The origin is one of the classes, {', '.join(classes)}; got {origin!r}.")
        start = self.means[classes.index(origin)]
        others = tuple(name for name in classes if name != origin)
        axes = torch.stack([self.means[classes.index(name)] - start for name in others])
        if int(torch.linalg.matrix_rank(axes)) < len(others):
            raise InputError("Coordinates need class means in different directions from the origin; these are not.")
        matrix = torch.linalg.pinv(axes).T.contiguous()
        return Reader(
            name=f"{', '.join(others)} from {origin}",
            rows=others,
            unit=f"shares of the way from {origin}",
            matrix=matrix,
            bias=-(matrix @ start),
            norm="none",
            after=after,
            meta={"origin": origin},
        )

    def _at_least_two(self) -> tuple[str, ...]:
        if len(self.classes) < 2:
            got = repr(self.classes[0]) if self.classes else "none"
            raise InputError(f"A probe tells at least two labels apart; got {got} only.")
        return self.classes

    def _logistic(self, c: float) -> tuple[Tensor, Tensor]:
        from sklearn.linear_model import LogisticRegression

        if self._kept is None:
            raise InputError('"logistic" needs the vectors themselves.', hint="ProbeFitter(keep=True)")
        if not c > 0:
            raise InputError(f"c, the inverse strength of the penalty, is above 0; got {c:g}.")
        vectors = torch.cat([part for part, _ in self._kept]).double()
        labels = [name for _, names in self._kept for name in names]
        if bool((vectors == vectors[0]).all()):
            raise InputError("All vectors are equal, so no direction tells the labels apart.")
        mean, spread = vectors.mean(0), vectors.std(0, correction=0)
        spread[(vectors == vectors[0]).all(0)] = 1.0  # a coordinate that never changes gets no weight
        fitted: Any = LogisticRegression(C=c, max_iter=10_000).fit(((vectors - mean) / spread).numpy(), labels)
        matrix = torch.from_numpy(fitted.coef_) / spread
        return matrix, torch.from_numpy(fitted.intercept_) - matrix @ mean


def classes_of(reader: Reader) -> tuple[str, ...]:
    """The classes that a probe tells apart, as `fit` noted them.

    Raises:
        InputError: A reader that is no probe.
    """
    if "classes" not in reader.meta:
        raise InputError(
            f"{reader.name!r} does not say which classes it tells apart.", hint="Probes are made by ProbeFitter.fit."
        )
    return tuple(json.loads(reader.meta["classes"]))


def predicted(reader: Reader, values: Float[Tensor, "batch reader"]) -> list[str]:
    """The class that a probe's values speak for: the sign of its one row, else the largest row."""
    classes = classes_of(reader)
    chosen = (values[:, 0] > 0).long() if len(classes) == 2 else values.argmax(-1)
    return [classes[n] for n in chosen.tolist()]


def values_of(reader: Reader, vectors: Float[Tensor, "batch d_model"]) -> Float[Tensor, "batch reader"]:
    """A probe's values on vectors of the stream, in its unit, in float64.

    Raises:
        InputError: A reader of another width.
    """
    if reader.matrix.shape[1] != vectors.shape[1]:
        raise InputError(
            f"A reader is as wide as the stream, {vectors.shape[1]}; {reader.name!r} is {reader.matrix.shape[1]} wide."
        )
    return vectors.double().cpu() @ reader.matrix.T + reader.bias


def _nearest_mean(means: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and biases of the scores, one row for two classes."""
    count = len(means)
    gaps = (means[:, None] - means[None]).square().sum(-1)
    squared = gaps.sum() / (count * (count - 1))
    if not squared > 0:
        raise InputError("The class means are equal, so no direction tells the labels apart.")
    offsets = -means.square().sum(-1) / 2
    if count == 2:
        matrix, bias = means[1:] - means[:1], offsets[1:] - offsets[:1]
    else:
        matrix, bias = means - means.mean(0), offsets - offsets.mean()
    return matrix * (2 / squared), bias * (2 / squared)
