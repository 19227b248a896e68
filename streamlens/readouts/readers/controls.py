"""What a probe's accuracy stands beside: permuted labels, the words alone, and chance.

1. Accuracy: a probe is fitted to some vectors and counted on others. Where those it would be fitted to (or
   their class means) are all equal, there is no probe, and the guess is the commonest label.
2. Permutations of the labels, within either side of the split.
3. A bag of context: which tokens stand around the word, without a model.
4. The interval in which guesses by chance lie, the binomial's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.readouts.readers.probes import ProbeFitter, predicted, values_of


def accuracy(
    vectors: Float[Tensor, "batch d_model"], labels: Sequence[str], train: list[int], test: list[int], method: str
) -> float:
    """The share of the sentences numbered `test` that a probe fitted to those numbered `train` gets right."""
    seen, wanted = [labels[n] for n in train], [labels[n] for n in test]
    fitter = ProbeFitter().update(vectors[train], seen)
    alike = fitter.means if method == "mean_difference" else vectors[train]  # what the method tells apart
    if bool((alike == alike[0]).all()):
        return wanted.count(commonest(seen)) / len(wanted)
    reader = fitter.fit(method)
    guesses = predicted(reader, values_of(reader, vectors[test]))
    return sum(guess == want for guess, want in zip(guesses, wanted, strict=True)) / len(wanted)


def commonest(labels: Sequence[str]) -> str:
    """The label that stands most often; the first by name of several."""
    counts = Counter(labels)
    return min(counts, key=lambda name: (-counts[name], name))


def permutations(
    labels: Sequence[str], train: list[int], test: list[int], count: int, seed: int
) -> Iterator[list[str]]:
    """The labels, `count` times permuted within either side, so that both keep their shares."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        permuted = list(labels)
        for side in (train, test):
            order: list[int] = torch.randperm(len(side), generator=draw).tolist()
            for to, at in zip(side, order, strict=True):
                permuted[to] = labels[side[at]]
        yield permuted


def bag_accuracy(contexts: Sequence[Sequence[str]], labels: Sequence[str], train: list[int], test: list[int]) -> float:
    """Held-out accuracy of scikit-learn's logistic regression on which training tokens each context holds."""
    from sklearn.linear_model import LogisticRegression

    words = {word: n for n, word in enumerate(sorted({word for n in train for word in contexts[n]}))}
    if not words:  # no context at all
        return accuracy(torch.zeros(len(contexts), 1), labels, train, test, "mean_difference")
    bags = torch.zeros(len(contexts), len(words))
    for n, context in enumerate(contexts):
        bags[n, [words[word] for word in context if word in words]] = 1.0
    fitted = LogisticRegression(max_iter=10_000).fit(bags[train].numpy(), [labels[n] for n in train])
    return float(fitted.score(bags[test].numpy(), [labels[n] for n in test]))


def chance_interval(chance: float, count: int) -> tuple[float, float]:
    """The share right, in 95 percent of cases, of `count` guesses that are each right with probability `chance`."""
    from scipy.stats import binom

    low, high = binom.interval(0.95, count, chance)
    return float(low) / count, float(high) / count
