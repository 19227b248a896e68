"""What a probe stands beside: chance counted by hand, permutations that keep shares, a bag that knows words only."""

from collections import Counter

import pytest
import torch

from streamlens.readouts.readers.controls import accuracy, bag_accuracy, chance_interval, permutations
from streamlens.readouts.readers.probes import METHODS

LABELS = ["a", "b", "b", "a", "b", "b", "a", "b"]
TRAIN, TEST = [0, 1, 2, 3, 4], [5, 6, 7]


@pytest.mark.parametrize("method", METHODS)
def test_equal_vectors_give_the_commonest_label(method: str) -> None:
    assert accuracy(torch.ones(8, 3), LABELS, TRAIN, TEST, method) == pytest.approx(2 / 3)


@pytest.mark.parametrize("method", METHODS)
def test_vectors_that_say_it_give_everything(method: str) -> None:
    labels, train, test = ["a", "b"] * 10, list(range(16)), list(range(16, 20))
    vectors = torch.tensor([[1.0 if label == "a" else -1.0, 5.0] for label in labels])
    assert accuracy(vectors, labels, train, test, method) == 1.0
    vectors[19] = vectors[18]
    assert accuracy(vectors, labels, train, test, method) == 0.75


def test_equal_means_give_the_commonest_label() -> None:
    """Two vectors, each once under either label: the means are one point."""
    vectors = torch.eye(2)[[0, 1, 0, 1, 0, 1]]
    labels = ["a", "a", "b", "b", "a", "b"]
    assert accuracy(vectors, labels, [0, 1, 2, 3], [4, 5], "mean_difference") == 0.5


def test_permutations_keep_the_shares_of_either_side() -> None:
    found = list(permutations(LABELS, TRAIN, TEST, 6, seed=1))
    assert len({tuple(labels) for labels in found}) > 1
    for labels in found:
        for side in (TRAIN, TEST):
            assert Counter(labels[n] for n in side) == Counter(LABELS[n] for n in side)
    assert found == list(permutations(LABELS, TRAIN, TEST, 6, seed=1))
    assert found != list(permutations(LABELS, TRAIN, TEST, 6, seed=2))


def test_the_bag_knows_words_and_no_order() -> None:
    labels = ["a", "b"] * 6
    told = [("x", "see") if label == "a" else ("see", "y") for label in labels]
    ordered = [("x", "y") if label == "a" else ("y", "x") for label in labels]
    train, test = list(range(8)), list(range(8, 12))
    assert bag_accuracy(told, labels, train, test) == 1.0
    assert bag_accuracy(ordered, labels, train, test) == 0.5
    assert bag_accuracy([()] * 12, labels, train, test) == 0.5
    assert bag_accuracy([*told[:8], *[("new",)] * 4], labels, train, test) == 0.5


def test_chance_is_the_binomials() -> None:
    """Two guesses at a half: 0 and 2 right in a quarter of cases each. Ten: 2 to 8 in 97.9 percent, 3 to 7 in 89."""
    assert chance_interval(0.5, 2) == (0.0, 1.0)
    assert chance_interval(0.5, 10) == (0.2, 0.8)
