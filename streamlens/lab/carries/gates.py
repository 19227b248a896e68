"""Carries that act on each coordinate by itself: none, a gate, a mask.

The gates are sigmoids of small linear maps, chosen so that they come out as quarters: sigmoid(-ln 3) = 1/4.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from streamlens.lab.book import Book, gate
from streamlens.lab.carries.case import Case, See, diagonal, numbers, same
from streamlens.ledger import Ledger

LN3 = math.log(3.0)


def cases() -> Iterator[Case]:
    """Additive, Highway, LSTM, final ReLU, dropout on the branch and on the skip."""
    yield additive()
    yield highway()
    yield lstm()
    yield final_relu()
    yield dropout(on_skip=False)
    yield dropout(on_skip=True)


def additive() -> Case:
    """Two branches on (2, 1): (0, u), then (-v, 0)."""
    one, two, start = numbers([0.0, 0.0], [1.0, 0.0]), numbers([0.0, -1.0], [0.0, 0.0]), numbers(2.0, 1.0)

    def network(x: Tensor, see: See) -> Tensor:
        x = x + one @ see(x)
        return x + two @ see(x)

    def books() -> Ledger:
        book = Book()
        x = book.add("embed", _shaped(start))
        x = book.add("L0.branch", x @ one.T)
        book.add("L1.branch", x @ two.T)
        return book.close(_shaped(network(start, same)), name="additive")

    return Case(
        name="additive",
        step="x + f(x)",
        carry="1",
        start=start,
        network=network,
        books=books,
        end=numbers(-1.0, 3.0),
        direct=diagonal(1.0, 1.0),
    )


def highway() -> Case:
    """t = (1/4, 1/2), h = (4, 2): 3/4 of 2 and 1/4 of 4, 1/2 of -4 and 1/2 of 2."""
    start, into_gate, into_branch = numbers(2.0, -4.0), numbers(-LN3 / 2, 0.0), numbers(2.0, -0.5)

    def gates(x: Tensor) -> Tensor:
        return torch.sigmoid(into_gate * x)

    def network(x: Tensor, see: See) -> Tensor:
        t = gates(see(x))
        return (1 - t) * x + t * (into_branch * see(x))

    def books() -> Ledger:
        book, t = Book(), _shaped(gates(start))
        book.add("embed", _shaped(start))
        book.carry(gate(1 - t))
        book.add("L0.branch", t * (into_branch * start))
        return book.close(_shaped(network(start, same)), name="highway")

    return Case(
        name="highway, tied gates",
        step="(1 - t(x)) x + t(x) h(x)",
        carry="1 - t, per coordinate",
        start=start,
        network=network,
        books=books,
        end=numbers(2.5, -1.0),
        direct=diagonal(0.75, 0.5),
    )


def lstm() -> Case:
    """The cell state (4, -2): forget (3/4, 1/2), input (1/2, 1/4), candidate tanh(ln 3 / 2) = 1/2 in both."""
    start = numbers(4.0, -2.0)
    forget, enter, candidate = numbers(LN3 / 4, 0.0), numbers(0.0, LN3 / 2), numbers(LN3 / 8, -LN3 / 4)

    def write(c: Tensor) -> Tensor:
        return torch.sigmoid(enter * c) * torch.tanh(candidate * c)

    def network(c: Tensor, see: See) -> Tensor:
        return torch.sigmoid(forget * see(c)) * c + write(see(c))

    def books() -> Ledger:
        book = Book()
        c = book.add("embed", _shaped(start))
        book.carry(gate(torch.sigmoid(forget * c)))
        book.add("L0.branch", write(c))
        return book.close(_shaped(network(start, same)), name="lstm")

    return Case(
        name="LSTM cell state",
        step="f(c) c + i(c) g(c)",
        carry="f, per coordinate",
        start=start,
        network=network,
        books=books,
        end=numbers(3.25, -0.875),
        direct=diagonal(0.75, 0.5),
    )


def final_relu() -> Case:
    """(2, 1) + (-3, 1) = (-1, 2): the ReLU after the addition lets only the second coordinate pass."""
    start, branch = numbers(2.0, 1.0), numbers([-2.0, 1.0], [0.0, 1.0])

    def network(x: Tensor, see: See) -> Tensor:
        z = x + branch @ see(x)
        return (see(z) > 0) * z

    def books() -> Ledger:
        book = Book()
        x = book.add("embed", _shaped(start))
        z = book.add("L0.branch", x @ branch.T)
        book.carry(gate((z > 0).double()))
        return book.close(_shaped(start + branch @ start).relu(), name="final_relu")

    return Case(
        name="final ReLU (ResNet)",
        step="relu(x + f(x))",
        carry="mask of x + f > 0",
        start=start,
        network=network,
        books=books,
        end=numbers(0.0, 2.0),
        direct=diagonal(0.0, 1.0),
    )


def dropout(*, on_skip: bool) -> Case:
    """Keeps the first of two coordinates, doubled. f = (v, u + v) = (1, 3)."""
    start, branch, kept = numbers(2.0, 1.0), numbers([0.0, 1.0], [1.0, 1.0]), numbers(2.0, 0.0)

    def network(x: Tensor, see: See) -> Tensor:
        f = branch @ see(x)
        return kept * x + f if on_skip else x + kept * f

    def books() -> Ledger:
        book, f = Book(), branch @ start
        book.add("embed", _shaped(start))
        if on_skip:
            book.carry(gate(_shaped(kept)))
        book.add("L0.branch", _shaped(f if on_skip else kept * f))
        return book.close(_shaped(network(start, same)), name="dropout")

    return Case(
        name=f"dropout on the {'skip' if on_skip else 'branch'}",
        step="D x + f(x)" if on_skip else "x + D f(x)",
        carry="D: a coordinate is lost" if on_skip else "1",
        start=start,
        network=network,
        books=books,
        end=numbers(5.0, 3.0) if on_skip else numbers(4.0, 1.0),
        direct=diagonal(2.0, 0.0) if on_skip else diagonal(1.0, 1.0),
    )


def _shaped(x: Tensor) -> Tensor:
    return x[None, None]
