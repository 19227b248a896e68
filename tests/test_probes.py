"""Probes on planted vectors: the direction is found, batches add up, boundaries lie where they should."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from closeness import assert_close
from streamlens.errors import InputError
from streamlens.readouts.readers.probes import METHODS, ProbeFitter, classes_of, predicted, values_of
from streamlens.readouts.readers.reader import Reader


def planted(n: int = 400, d: int = 24, *, gap: float = 3.0, seed: int = 0):
    """Unit noise around two centres that lie `gap` apart along a direction, off the origin."""
    draw = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(d, generator=draw, dtype=torch.float64), dim=0)
    labels = ["left", "right"] * (n // 2)
    side = torch.tensor([-0.5, 0.5], dtype=torch.float64).repeat(n // 2)
    noise = torch.randn(n, d, generator=draw, dtype=torch.float64)
    return noise + gap * side[:, None] * direction + 5.0, labels, direction


def right(reader: Reader, vectors, labels) -> float:
    guesses = predicted(reader, values_of(reader, vectors))
    return float(np.mean([guess == label for guess, label in zip(guesses, labels, strict=True)]))


@pytest.mark.parametrize("method", METHODS)
class TestTwoClasses:
    def test_a_planted_direction_is_found(self, method: str) -> None:
        vectors, labels, direction = planted(4000, gap=4.0)
        reader = ProbeFitter().update(vectors, labels).fit(method)
        assert float(reader.matrix[0] @ direction / reader.matrix[0].norm()) > 0.97
        fresh, names, _ = planted(2000, gap=4.0)
        assert right(reader, fresh, names) > 0.96

    def test_without_a_direction_it_is_at_chance(self, method: str) -> None:
        vectors, labels, _ = planted(400, gap=0.0)
        reader = ProbeFitter().update(vectors[:200], labels[:200]).fit(method)
        assert abs(right(reader, vectors[200:], labels[200:]) - 0.5) < 0.12

    def test_its_shape_and_words(self, method: str) -> None:
        vectors, labels, _ = planted()
        reader = ProbeFitter().update(vectors, labels).fit(method, after="L3.mlp")
        assert reader.matrix.shape == (1, 24)
        assert reader.rows == ("right - left",)
        assert (reader.name, reader.norm, reader.after) == ("right - left", "none", "L3.mlp")
        assert classes_of(reader) == ("left", "right")

    def test_batches_are_the_same_as_all_at_once(self, method: str) -> None:
        vectors, labels, _ = planted()
        whole = ProbeFitter().update(vectors, labels).fit(method)
        fitter = ProbeFitter()
        for start in range(0, 400, 37):
            fitter.update(vectors[start : start + 37], labels[start : start + 37])
        parts = fitter.fit(method)
        assert_close(parts.matrix, whole.matrix)
        assert_close(parts.bias, whole.bias)
        assert fitter.counts == {"left": 200, "right": 200}

    def test_fitting_uses_nothing_up(self, method: str) -> None:
        vectors, labels, _ = planted()
        fitter = ProbeFitter().update(vectors, labels)
        first = fitter.fit(method)
        torch.testing.assert_close(fitter.fit(method).matrix, first.matrix, rtol=0, atol=0)
        fitter.update(vectors + 3, labels)
        assert not torch.allclose(fitter.fit(method).bias, first.bias)

    def test_the_vectors_may_be_changed_afterwards(self, method: str) -> None:
        vectors, labels, _ = planted()
        fitter = ProbeFitter().update(vectors, labels)
        before = fitter.fit(method).matrix
        vectors.zero_()
        torch.testing.assert_close(fitter.fit(method).matrix, before, rtol=0, atol=0)

    def test_the_file_keeps_the_classes(self, method: str, tmp_path) -> None:
        vectors, labels, _ = planted()
        reader = ProbeFitter().update(vectors, labels).fit(method, after="L1.attn")
        reader.save(tmp_path / "probe.safetensors")
        loaded = Reader.load(tmp_path / "probe.safetensors")
        assert classes_of(loaded) == ("left", "right")
        assert loaded.after == "L1.attn"
        torch.testing.assert_close(values_of(loaded, vectors), values_of(reader, vectors), rtol=0, atol=0)


def test_mean_difference_puts_the_means_at_minus_one_and_one() -> None:
    """By hand: means (1, 0) and (1, 4); half their distance is 2, so the value is (y - 2) / 2."""
    vectors = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0], [1.0, 5.0]])
    reader = ProbeFitter().update(vectors, ["a", "a", "b", "b"]).fit("mean_difference")
    torch.testing.assert_close(reader.matrix, torch.tensor([[0.0, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(reader.bias, torch.tensor([-1.0], dtype=torch.float64))
    points = torch.tensor([[9.0, 0.0], [9.0, 4.0], [9.0, 2.0]])
    assert values_of(reader, points)[:, 0].tolist() == [-1.0, 1.0, 0.0]
    assert predicted(reader, values_of(reader, points)) == ["a", "b", "a"]


def test_logistic_is_scikit_learns_on_standardised_coordinates() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    vectors, labels, _ = planted(d=6)
    vectors = vectors * torch.tensor([1.0, 100.0, 0.01, 1.0, 7.0, 1.0], dtype=torch.float64)
    reader = ProbeFitter().update(vectors, labels).fit("logistic", c=0.5)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, max_iter=10_000)).fit(vectors.numpy(), labels)
    odds = torch.from_numpy(theirs.decision_function(vectors.numpy()))
    torch.testing.assert_close(values_of(reader, vectors)[:, 0], odds, rtol=1e-6, atol=1e-6)


def test_a_coordinate_that_never_changes_gets_no_weight() -> None:
    vectors, labels, _ = planted(d=5)
    vectors[:, 2] = 1 / 3
    for method in METHODS:
        reader = ProbeFitter().update(vectors, labels).fit(method)
        assert float(reader.matrix[0, 2].abs()) < 1e-12
        assert torch.isfinite(reader.bias).all()


@pytest.mark.parametrize("method", METHODS)
def test_several_classes_get_a_row_each(method: str) -> None:
    draw = torch.Generator().manual_seed(1)
    centres = 4 * torch.eye(4, 10, dtype=torch.float64)
    labels = [name for name in "dabc" for _ in range(100)]
    vectors = torch.randn(400, 10, generator=draw, dtype=torch.float64) + centres.repeat_interleave(100, 0)
    reader = ProbeFitter().update(vectors, labels).fit(method)
    assert reader.rows == ("a", "b", "c", "d")
    assert reader.matrix.shape == (4, 10)
    assert right(reader, vectors, labels) > 0.97


@given(st.integers(2, 5), st.integers(2, 6), st.integers(0, 1000))
def test_mean_difference_is_the_nearest_mean(classes: int, d: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, d, generator=draw, dtype=torch.float64)
    names = [f"c{n}" for n in range(classes)]
    reader = ProbeFitter().update(means, names).fit("mean_difference")
    points = torch.randn(50, d, generator=draw, dtype=torch.float64)
    wanted = [names[n] for n in torch.cdist(points, means).argmin(-1).tolist()]
    assert predicted(reader, values_of(reader, points)) == wanted


class TestCoordinates:
    def test_the_means_lie_on_their_axes(self) -> None:
        """Axes that are not at right angles, in a space larger than their plane."""
        means = {"neutral": [1.0, 1.0, 1.0], "river": [3.0, 1.0, 1.0], "money": [2.0, 4.0, 1.0]}
        reader = ProbeFitter().update(torch.tensor(list(means.values())), list(means)).coordinates("neutral")
        assert reader.rows == ("money", "river")
        points = torch.tensor([means["neutral"], means["river"], means["money"], [4.0, 4.0, 99.0]])
        wanted = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        torch.testing.assert_close(values_of(reader, points), wanted)
        assert reader.unit == "shares of the way from neutral"

    def test_one_axis_for_two_classes(self) -> None:
        fitter = ProbeFitter().update(torch.tensor([[0.0, 2.0], [4.0, 2.0]]), ["a", "b"])
        reader = fitter.coordinates("a")
        assert values_of(reader, torch.tensor([[1.0, 7.0]])).tolist() == [[0.25]]

    def test_what_has_no_coordinates(self) -> None:
        fitter = ProbeFitter().update(torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]), ["a", "b", "c"])
        with pytest.raises(InputError, match=r"The origin is one of the classes, a, b, c; got 'x'"):
            fitter.coordinates("x")
        with pytest.raises(InputError, match=r"class means in different directions from the origin"):
            fitter.coordinates("a")

    def test_it_is_no_classifier(self) -> None:
        reader = ProbeFitter().update(torch.eye(3), ["a", "b", "c"]).coordinates("a")
        with pytest.raises(InputError, match=r"does not say which classes it tells apart"):
            predicted(reader, torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda f: f.fit(), r"tells at least two labels apart; got none only"),
        (lambda f: f.update(torch.ones(2, 3), ["a", "a"]).fit(), r"at least two labels apart; got 'a' only"),
        (lambda f: f.update(torch.ones(2, 3), ["a"]), r"one label; got 2 vectors and 1 labels"),
        (lambda f: f.update(torch.full((1, 3), float("nan")), ["a"]), r"finite numbers; these vectors hold NaN"),
        (lambda f: f.update(torch.ones(1, 3), ["a"]).update(torch.ones(1, 4), ["b"]), r"one width, 3 so far; got 4"),
        (lambda f: f.update(torch.ones(2, 3), ["a", "b"]).fit(), r"The class means are equal"),
        (lambda f: f.update(torch.ones(2, 3), ["a", "b"]).fit("logistic"), r"All vectors are equal"),
        (lambda f: f.update(torch.eye(2), ["a", "b"]).fit("lda"), r"method is mean_difference or logistic; got 'lda'"),
        (lambda f: f.update(torch.eye(2), ["a", "b"]).fit("logistic", c=0.0), r"c, .* is above 0; got 0"),
    ],
    ids=["nothing", "one class", "labels", "nan", "width", "equal means", "equal vectors", "method", "penalty"],
)
def test_what_cannot_be_fitted(call, error: str) -> None:
    with pytest.raises(InputError, match=error):
        call(ProbeFitter())


def test_without_the_vectors_there_are_means_only() -> None:
    vectors, labels, _ = planted()
    fitter = ProbeFitter(keep=False).update(vectors, labels)
    kept = ProbeFitter().update(vectors, labels)
    torch.testing.assert_close(fitter.fit().matrix, kept.fit().matrix, rtol=0, atol=0)
    with pytest.raises(InputError, match=r"needs the vectors themselves"):
        fitter.fit("logistic")


def test_values_need_the_width_of_the_stream() -> None:
    reader = ProbeFitter().update(torch.eye(2), ["a", "b"]).fit()
    with pytest.raises(InputError, match=r"as wide as the stream, 3; 'b - a' is 2 wide"):
        values_of(reader, torch.ones(1, 3))
