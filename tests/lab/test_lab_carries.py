"""Every carry of the lab: its end and its direct Jacobian by hand, and that the books follow a write through it."""

from dataclasses import replace

import pytest
import torch
from torch import tensor

from closeness import assert_close
from streamlens.carries import Add, FrozenMap, Renorm, transport
from streamlens.lab import carries
from streamlens.lab.book import Book, gate, matrix, vector
from streamlens.lab.carries.case import carried

D = torch.float64

# name -> the end, and what is left of each coordinate of the start; worked out in the cases' docstrings
BY_HAND = {
    "additive": ([-1, 3], [[1, 0], [0, 1]]),
    # gates 1/4 and 1/2: 3/4 . 2 + 1/4 . 4, 1/2 . -4 + 1/2 . 2
    "highway, tied gates": ([2.5, -1], [[0.75, 0], [0, 0.5]]),
    # 3/4 . 4 + 1/2 . 1/2, 1/2 . -2 + 1/4 . 1/2
    "LSTM cell state": ([3.25, -0.875], [[0.75, 0], [0, 0.5]]),
    # (2, 1) + (-3, 1) = (-1, 2)
    "final ReLU (ResNet)": ([0, 2], [[0, 0], [0, 1]]),
    # f = (1, 3); kept first coordinate, doubled: (2 + 2, 1), and (4 + 1, 0 + 3)
    "dropout on the branch": ([4, 1], [[1, 0], [0, 1]]),
    "dropout on the skip": ([5, 3], [[2, 0], [0, 0]]),
    # (1, 7) / 5, swapped, times 5: (7, 1)
    "pre-norm": ([8, 8], [[1, 0], [0, 1]]),
    # (-1, -1, 1, 1) times (1, 2, 1, 2), plus 1/2 in the third
    "post-norm": (
        [-1, -2, 1.5, 2],
        [
            [0.375, -0.125, -0.125, -0.125],
            [-0.25, 0.75, -0.25, -0.25],
            [-0.125, -0.125, 0.375, -0.125],
            [-0.25, -0.25, -0.25, 0.75],
        ],
    ),
    "concatenation (DenseNet)": ([2, 1, 3, -1], [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
    "projection shortcut, stride 2": ([8, -1, 16, -3], [[2, 0, 0, 0], [-1, 0, 0, 0], [0, 0, 2, 0], [0, 0, -1, 0]]),
    "hyper-connections": ([3, 3, 4.5, 5], [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.25, 0, 0.75, 0], [0, 0.25, 0, 0.75]]),
}


def test_all_the_carries_of_the_table_are_there() -> None:
    assert set(carries.cases()) == {*BY_HAND, "U-Net skip", "attention over earlier layers"}


@pytest.mark.parametrize("name", BY_HAND)
def test_end_and_direct_jacobian(name: str) -> None:
    case = carries.cases()[name]
    end, direct = BY_HAND[name]
    ledger = case.books()
    assert_close(ledger.stream[0, 0], tensor(end, dtype=D))
    assert_close(carried(ledger), tensor(direct, dtype=D))
    assert_close(case.jacobian(held=True), tensor(direct, dtype=D))
    assert_close(ledger.writes.sum(0), ledger.stream)


def test_u_net() -> None:
    """(1, 3, 2, 6) kept; pooled (2, 4) + (2, -2) = (4, 2), spread over pairs. Through the pool each gives a half."""
    case = carries.cases()["U-Net skip"]
    ledger = case.books()
    assert ledger.stream[0, 0].tolist() == [1, 3, 2, 6, 4, 4, 2, 2]
    # what the skip kept and what the pool made of it: (2, 2, 4, 4); the bottom's (2, -2) arrives spread
    assert ledger.writes[:, 0, 0].tolist() == [[1, 3, 2, 6, 2, 2, 4, 4], [0, 0, 0, 0, 2, 2, -2, -2]]
    assert carried(ledger)[4].tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 0]


def test_attention_over_earlier_layers() -> None:
    """Weights 1/4, 1/2, 1/4 of (2, 1), (0, 2), (-7/4, 0)."""
    ledger = carries.cases()["attention over earlier layers"].books()
    assert_close(ledger.writes[0, 0, 0, :2], tensor([0.5, 0.25], dtype=D))
    assert_close(ledger.writes[1, 0, 0, :2], tensor([0.0, 1.0], dtype=D))
    assert_close(ledger.writes[2, 0, 0, :2], tensor([-0.4375, 0.0], dtype=D))
    assert_close(ledger.stream[0, 0, :2], tensor([0.0625, 1.25], dtype=D))


def test_the_total_jacobian_is_another_one() -> None:
    """Highway: d/dx of (1 - t(x)) x + t(x) h(x) also moves the gate. By hand for the first coordinate:
    (1 - t) + t 2 + t' (h - x), t = 1/4, t' = -ln 3 / 2 . 3/16, h - x = 2."""
    total = carries.cases()["highway, tied gates"].jacobian(held=False)
    assert float(total[0, 0]) == pytest.approx(0.75 + 0.5 - 1.0986122886681098 / 2 * 3 / 16 * 2)


def test_a_wrong_carry_is_noticed() -> None:
    case = carries.cases()["dropout on the skip"]
    wrong = replace(case, direct=case.direct + 0.01, end=case.end + 0.01)
    assert [check.holds for check in carries.checks(wrong)] == [False, False, False, True]


class TestFrozenMap:
    def test_a_gate_after_a_matrix(self) -> None:
        carry = FrozenMap(matrix=tensor([[0.0, 1.0], [1.0, 0.0]], dtype=D), gate=vector(2.0, 3.0))
        assert carry.linear(vector(5.0, 7.0)).tolist() == [[[14.0, 15.0]]]

    def test_a_sparse_matrix_is_the_dense_one(self) -> None:
        rows = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=D) * (torch.arange(6) % 2)
        update = torch.randn(4, 2, 3, 6, generator=torch.Generator().manual_seed(1), dtype=D)
        assert_close(FrozenMap(matrix=rows.to_sparse()).linear(update), FrozenMap(matrix=rows).linear(update))
        assert_close(FrozenMap(matrix=rows).linear(update), torch.einsum("ij,wbpj->wbpi", rows, update))

    def test_neither_is_the_identity(self) -> None:
        assert FrozenMap().linear(vector(5.0, 7.0)).tolist() == [[[5.0, 7.0]]]

    def test_a_write_meets_only_the_carries_after_it(self) -> None:
        program = (Add((0,)), Renorm(0), Add((1,)), Renorm(1))
        norms = (gate(vector(2.0, 1.0)), matrix(tensor([[0.0, 1.0], [1.0, 0.0]], dtype=D)))
        writes = torch.stack([vector(1.0, 1.0), vector(10.0, 20.0)])
        # (1, 1) doubled in the first and then swapped; (10, 20) only swapped
        assert transport(program, writes, norms)[:, 0, 0].tolist() == [[1.0, 2.0], [20.0, 10.0]]

    def test_some_of_the_prompts(self) -> None:
        both = torch.cat([vector(2.0, 3.0), vector(5.0, 7.0)])
        assert FrozenMap(gate=both).select(slice(1, 2)).linear(vector(1.0, 1.0)).tolist() == [[[5.0, 7.0]]]


class TestLedgerWithCarries:
    """(1, 2), gated by (1/2, 3), plus (10, 10), swapped, plus (1, 0)."""

    @pytest.fixture
    def ledger(self):
        book = Book()
        book.add("embed", vector(1.0, 2.0))
        book.carry(gate(vector(0.5, 3.0)))
        book.add("L0.branch", vector(10.0, 10.0))
        book.carry(matrix(tensor([[0.0, 1.0], [1.0, 0.0]], dtype=D)), bias=("L0.branch.bias", vector(0.25, 0.0)))
        end = book.add("L1.branch", vector(1.0, 0.0))
        return book.close(end, name="test")

    def test_the_rows_are_carried_writes(self, ledger) -> None:
        # (1/2, 6) + (10, 10) = (10.5, 16), swapped (16, 10.5) + (1/4, 0) + (1, 0)
        assert ledger.stream[0, 0].tolist() == [17.25, 10.5]
        assert ledger.writes[:, 0, 0].tolist() == [[6.0, 0.5], [10.0, 10.0], [0.25, 0.0], [1.0, 0.0]]
        assert ledger.in_order == 0.0
        assert float(ledger.closure) == 0.0

    def test_in_the_middle_it_closes_too(self, ledger) -> None:
        # the carry that follows the first write belongs to it
        assert ledger.at("embed").stream[0, 0].tolist() == [0.5, 6.0]
        assert ledger.at("L0.branch.bias").stream[0, 0].tolist() == [16.25, 10.5]
        assert float(ledger.at("L0.branch.bias").closure) == 0.0

    def test_a_wrong_end_is_noticed(self) -> None:
        book = Book()
        book.add("embed", vector(1.0, 2.0))
        book.carry(gate(vector(0.5, 3.0)))
        ledger = book.close(vector(0.5, 6.5), name="test")
        assert ledger.in_order == 0.5
        assert float(ledger.closure) == pytest.approx(0.5 / (0.25 + 42.25) ** 0.5)

    def test_factors_and_rescaling(self) -> None:
        book = Book()
        book.add("embed", vector(1.0, 2.0))
        book.rescale(3.0)
        end = book.add("L0.branch", vector(4.0, 0.0), factor=0.5)
        ledger = book.close(end, name="test")
        assert ledger.writes[:, 0, 0].tolist() == [[3.0, 6.0], [2.0, 0.0]]
        assert ledger.stream[0, 0].tolist() == [5.0, 6.0]
