"""The algebra behind the wiring: planted sums of random tensors are found again, and nothing else is."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from streamlens.models.explain import MAX_TERMS, Group, explain, snap

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
COEFFICIENTS = [1.0, -1.0, 0.22, 0.4, 0.7, 1.3, 2.5, 0.125, 1.6667]
seeds = st.integers(0, 10_000)
dtypes = st.sampled_from(DTYPES)


def drawn(seed: int, count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """`count` random streams of 14 tokens and 16 channels, of different size, none a multiple of another."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 0.3 + 2 * torch.rand(count, generator=generator)
    return [(size * torch.randn(2, 7, 16, generator=generator, dtype=torch.float64)).to(dtype) for size in sizes]


def added(base: Tensor | None, groups, outputs) -> Tensor:
    """`base` plus one group after another, each summed and scaled by itself first, in the tensors' own dtype."""
    stream = base
    for group in groups:
        parts = [outputs[i] if c == 1.0 else outputs[i] * c for i, c in group.terms]
        update = sum(parts[1:], parts[0])
        update = update if group.factor == 1.0 else update * group.factor
        stream = update if stream is None else stream + update
    return stream


def known(dtype: torch.dtype) -> list[float]:
    """Eight bits cannot tell 1.6667 from 1.67: in bfloat16 a multiplier has to be a number of the config."""
    return COEFFICIENTS if dtype == torch.bfloat16 else []


def terms_of(found) -> dict[int, float]:
    return coefficients(found.groups)


def coefficients(groups) -> dict[int, float]:
    """What each output is multiplied by in the end."""
    return {i: c * group.factor for group in groups for i, c in group.terms}


@st.composite
def planted(draw, most: int = 3):
    """Up to `most` of six outputs, coefficients, an order, and the cuts that group them."""
    chosen = draw(st.permutations(range(6)))[: draw(st.integers(1, most))]
    terms = [(i, draw(st.sampled_from(COEFFICIENTS))) for i in chosen]
    cuts = draw(st.lists(st.booleans(), min_size=len(terms) - 1, max_size=len(terms) - 1))
    groups, start = [], 0
    for i, cut in enumerate([*cuts, True], start=1):
        if cut:
            groups.append(tuple(terms[start:i]))
            start = i
    return tuple(groups)


@settings(max_examples=120)
@given(seeds, planted(), dtypes)
def test_a_planted_sum_is_found_to_the_last_bit(seed, planted_groups, dtype):
    groups = [Group(terms) for terms in planted_groups]
    base, *outputs = drawn(seed, 7, dtype)
    target = added(base, groups, outputs)
    found = explain(target, [base], outputs, numbers=known(dtype))
    assert found is not None
    assert found.exact
    assert (found.base, found.factor, found.residual) == (0, 1.0, 0.0)
    assert torch.equal(added(base, found.groups, outputs), target)
    assert terms_of(found) == coefficients(groups)


@settings(max_examples=60)
@given(seeds, planted(), dtypes)
def test_so_is_one_that_starts_from_nothing(seed, planted_groups, dtype):
    groups = [Group(terms) for terms in planted_groups]
    outputs = drawn(seed, 6, dtype)
    target = added(None, groups, outputs)
    found = explain(target, [], outputs, numbers=known(dtype))
    assert found is not None
    assert found.exact
    assert found.base is None
    assert torch.equal(added(None, found.groups, outputs), target)


ORDERS = {
    "(x + a) + m": (Group(((0, 1.0),)), Group(((1, 1.0),))),
    "(x + m) + a": (Group(((1, 1.0),)), Group(((0, 1.0),))),
    "x + (a + m)": (Group(((0, 1.0), (1, 1.0))),),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_order_of_additions_is_told_from_the_others(name, dtype):
    x, a, m, distractor = drawn(3, 4, dtype)
    target = added(x, ORDERS[name], [a, m])
    assert explain(target, [x], [a, m, distractor]).groups == ORDERS[name]
    others = [added(x, groups, [a, m]) for key, groups in ORDERS.items() if key != name]
    assert not any(torch.equal(target, other) for other in others), "the orders differ in no bit"


@settings(max_examples=60)
@given(seeds, st.sampled_from([0.7, 1.1, 0.6, 2.0]), dtypes)
def test_a_scalar_of_the_whole_stream(seed, factor, dtype):
    x, a, m, distractor = drawn(seed, 4, dtype)
    found = explain((x + a + m) * factor, [x], [a, m, distractor])
    assert (found.factor, found.factor_first, found.exact) == (factor, False, True)
    assert found.groups == ORDERS["(x + a) + m"]


@settings(max_examples=60)
@given(seeds, st.sampled_from([0.7, 1.1, 0.6]), dtypes)
def test_a_scalar_of_the_carry_alone(seed, factor, dtype):
    x, a, m, distractor = drawn(seed, 4, dtype)
    found = explain(x * factor + a + m, [x], [a, m, distractor])
    assert (found.factor, found.factor_first, found.exact) == (factor, True, True)
    assert found.groups == ORDERS["(x + a) + m"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_branches_that_are_summed_before_they_are_scaled(dtype):
    """Granite's experts and shared MLP: `x + (a + m) * 0.4`, which rounds otherwise than `x + a * 0.4 + m * 0.4`."""
    x, a, m, distractor = drawn(4, 4, dtype)
    target = x + (a + m) * 0.4
    found = explain(target, [x], [a, m, distractor], numbers=[0.4])
    assert found.exact
    assert terms_of(found) == {0: 0.4, 1: 0.4}
    assert torch.equal(added(x, found.groups, [a, m, distractor]), target)


def test_a_stream_that_is_only_scaled():
    x, a = drawn(0, 2)
    found = explain(x * 0.5, [x], [a])
    assert (found.groups, found.factor, found.exact) == ((), 0.5, True)


class TestCoefficients:
    @given(seeds, st.integers(1, 9999))
    def test_a_short_decimal_is_read_off_the_numbers(self, seed, thousandths):
        value = thousandths / 1000
        x, a, distractor = drawn(seed, 3)
        if value == 1.0 or (x + value * a - x).norm() < 1e-2 * x.norm():
            return
        found = explain(x + a * value, [x], [a, distractor])
        assert found.exact
        assert terms_of(found) == {0: value}

    def test_granites_is_022_and_no_neighbour_of_it(self):
        x, a = drawn(1, 2)
        assert terms_of(explain(x + a * 0.22, [x], [a])) == {0: 0.22}

    @pytest.mark.parametrize("number", [math.sqrt(0.5), 1 / math.sqrt(30), 0.9 / math.sqrt(3), math.pi / 4])
    def test_a_number_of_the_config_is_preferred_to_its_decimals(self, number):
        x, a = drawn(2, 2)
        found = explain(x + a * number, [x], [a], numbers=[12.0, number, 0.5])
        assert found.exact
        assert terms_of(found) == {0: number}

    def test_snapping(self):
        assert snap(1.0000001, [0.5], 1e-6) == [1.0]
        assert snap(0.21999999, [], 1e-6)[0] == 0.22
        assert snap(-0.9999999, [], 1e-6)[0] == -1.0
        assert snap(0.7071068, [math.sqrt(0.5)], 1e-6)[0] == math.sqrt(0.5)
        assert snap(0.123456789, [], 1e-12)[-1] == 0.123456789


class TestWhatContainsTheStream:
    """The output of a wrapper that already added the residual is no write."""

    @given(seeds, dtypes)
    def test_it_does_not_win_over_the_branch_inside(self, seed, dtype):
        x, a, m = drawn(seed, 3, dtype)
        wrapper = x + a
        found = explain(wrapper + m, [x], [wrapper, a, m])
        assert terms_of(found) == {1: 1.0, 2: 1.0}
        assert found.exact

    @given(seeds)
    def test_nor_where_the_branch_is_scaled(self, seed):
        x, a = drawn(seed, 2)
        found = explain(x + a * 0.5, [x], [x + a, a])
        assert (terms_of(found), found.factor) == ({1: 0.5}, 1.0)

    def test_nor_where_it_would_take_fewer_terms(self):
        """x + 2 a + 2 m is also 2 (x + a + m) - x: one term, and the stream counted as something written."""
        x, a, m = drawn(5, 3)
        found = explain(x + (a + m) * 2, [x], [x + a + m, a, m])
        assert found is None or 0 not in terms_of(found)

    def test_alone_it_explains_nothing(self):
        x, a, m = drawn(5, 3)
        assert explain(x + a + m, [x], [x + a]) is None
        assert explain(x + a, [x], [x + a]) is None


class TestRefusals:
    @given(seeds, dtypes)
    def test_an_unrelated_tensor_is_not_explained(self, seed, dtype):
        target, base, *outputs = drawn(seed, 6, dtype)
        assert explain(target, [base], outputs) is None

    @pytest.mark.parametrize("share", [1e-1, 1e-3, 1e-4])
    def test_a_sum_with_something_more_in_it_is_not_explained(self, share):
        x, a, m, hidden = drawn(7, 4)
        assert explain(x + a + m + share * hidden, [x], [a, m]) is None

    def test_near_equal_outputs_make_no_difference_that_explains(self):
        """hidden = 1e4 (q - p) fits with coefficients of ten thousand: a near-singular system."""
        x, p, hidden = drawn(8, 3)
        q = p + 1e-4 * hidden
        assert explain(x + hidden, [x], [p, q]) is None

    def test_a_base_that_does_not_matter_is_no_base(self):
        x, a, m = drawn(9, 3)
        assert explain(a + m, [x], [a, m]) is None

    def test_an_output_of_zeros_is_harmless(self):
        x, a = drawn(10, 2)
        assert terms_of(explain(x + a, [x], [torch.zeros_like(x), a])) == {1: 1.0}

    def test_no_outputs_at_all(self):
        x, other = drawn(11, 2)
        assert explain(other, [x], []) is None
        assert explain(other, [], []) is None

    def test_there_is_a_largest_number_of_terms(self):
        x, *outputs = drawn(12, MAX_TERMS + 2)
        most = outputs[:MAX_TERMS]
        assert len(terms_of(explain(sum(most, x), [x], outputs))) == MAX_TERMS
        assert explain(sum(outputs, x), [x], outputs) is None


class TestSmallWrites:
    """Real writes are small beside the stream: a thousandth of it and less where a sink is among the tokens."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("share", [1e-1, 1e-2, 1e-3, 1e-4])
    def test_a_write_that_is_a_small_share_of_the_stream_is_found(self, share, dtype):
        x, a, m = drawn(7, 3, dtype)
        m = share * m
        found = explain(x + a + m, [x], [a, m])
        assert found is not None
        assert found.exact
        assert terms_of(found) == {0: 1.0, 1: 1.0}

    def test_in_bfloat16_down_to_a_hundredth(self):
        x, a, m = drawn(7, 3, torch.bfloat16)
        m = 0.01 * m
        assert terms_of(explain(x + a + m, [x], [a, m])) == {0: 1.0, 1: 1.0}

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_an_attention_sink_does_not_drown_the_writes(self, dtype):
        """The default model's first token is 4,650 long and gets 1; its other tokens are 100 and get 30."""
        x, a, m = drawn(15, 3, dtype)
        for tensor, size in ((x, 1000.0), (a, 0.1), (m, 0.1)):
            tensor[:, 0] *= size
        found = explain(x + a + m, [x], [a, m])
        assert found is not None
        assert found.exact
        assert terms_of(found) == {0: 1.0, 1: 1.0}


def test_the_base_that_fits_is_named():
    one, other, a = drawn(13, 3)
    assert explain(other + a, [one, other], [a]).base == 1
    assert explain(one + a, [one, other], [a]).base == 0


def test_a_sum_that_no_order_repeats_is_taken_at_rounding_level_and_said_to_be_inexact():
    x, a, m = drawn(14, 3)
    target = (x.double() + a.double() + m.double()).float()  # rounded once: no order of float32 does that
    found = explain(target, [x], [a, m])
    assert not found.exact
    assert 0 < found.residual < 2e-7
    assert terms_of(found) == {0: 1.0, 1: 1.0}
