"""Carries between coordinates: concatenation, pooling, projection, mixing.

A stream that changes its width is written in the widest state's coordinates; narrower states fill the first of them.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from streamlens.lab.book import Book, matrix
from streamlens.lab.carries.case import Case, See, numbers, same
from streamlens.ledger import Ledger


def cases() -> Iterator[Case]:
    """DenseNet, U-Net, projection shortcut, hyper-connections, attention over earlier layers."""
    yield dense_net()
    yield u_net()
    yield projection()
    yield hyper_connections()
    yield earlier_layers()


def dense_net() -> Case:
    """(2, 1) gets a third coordinate u + v = 3, then a fourth u - third = -1. Nothing there is ever overwritten."""
    start = numbers(2.0, 1.0, 0.0, 0.0)
    one, two = torch.zeros(4, 4).double(), torch.zeros(4, 4).double()
    one[2] = numbers(1.0, 1.0, 0.0, 0.0)
    two[3] = numbers(1.0, 0.0, -1.0, 0.0)

    def network(x: Tensor, see: See) -> Tensor:
        x = torch.cat([x[:2], x[2:3] + one[2] @ see(x), x[3:]])
        return torch.cat([x[:3], x[3:] + two[3] @ see(x)])

    def books() -> Ledger:
        book = Book()
        x = book.add("embed", start[None, None])
        x = book.add("L0.branch", x @ one.T)
        book.add("L1.branch", x @ two.T)
        return book.close(network(start, same)[None, None], name="dense_net")

    return Case(
        name="concatenation (DenseNet)",
        step="[x, f(x)]",
        carry="1, f in coordinates of its own",
        start=start,
        network=network,
        books=books,
        end=numbers(2.0, 1.0, 3.0, -1.0),
        direct=torch.eye(4).double(),
    )


def u_net() -> Case:
    """(1, 3, 2, 6) is kept and pooled to (2, 4); the bottom adds (b - a, -a) = (2, -2); (4, 2) is spread again."""
    start = torch.cat([numbers(1.0, 3.0, 2.0, 6.0), torch.zeros(4).double()])
    bottom = numbers([-1.0, 1.0], [-1.0, 0.0])
    pool, spread = numbers([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]), numbers([1.0, 0], [1, 0], [0, 1], [0, 1])
    down, up = torch.zeros(8, 8).double(), torch.zeros(8, 8).double()
    down[:4, :4] = up[:4, :4] = torch.eye(4)
    down[4:6, :4], up[4:, 4:6] = pool, spread

    def network(x: Tensor, see: See) -> Tensor:
        pooled = pool @ x[:4]
        return torch.cat([x[:4], spread @ (pooled + bottom @ see(pooled))])

    def books() -> Ledger:
        book = Book()
        book.add("embed", start[None, None])
        x = book.carry(matrix(down))
        write = torch.zeros_like(x)
        write[..., 4:6] = x[..., 4:6] @ bottom.T
        book.add("L0.branch", write)
        book.carry(matrix(up))
        return book.close(network(start, same)[None, None], name="u_net")

    direct = torch.zeros(8, 8).double()
    direct[:4, :4] = torch.eye(4)
    direct[4:6, :2] = direct[6:8, 2:4] = 0.5
    return Case(
        name="U-Net skip",
        step="[x, up(p + f(p))], p = pool(x)",
        carry="[1; up pool]",
        start=start,
        network=network,
        books=books,
        end=numbers(1.0, 3.0, 2.0, 6.0, 4.0, 4.0, 2.0, 2.0),
        direct=direct,
    )


def projection() -> Case:
    """Four places of one channel to two places of two: every other place times (2, -1). Places 1 and 3 have no skip."""
    start = numbers(1.0, 5.0, 3.0, 7.0)
    shortcut = numbers([2.0, 0, 0, 0], [-1.0, 0, 0, 0], [0, 0, 2.0, 0], [0, 0, -1.0, 0])
    branch = numbers([1.0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0])

    def network(x: Tensor, see: See) -> Tensor:
        places = x[::2, None] * numbers(2.0, -1.0)  # stride 2, then 1 x 1
        return places.flatten() + branch @ see(x)

    def books() -> Ledger:
        book = Book()
        x = book.add("embed", start[None, None])
        write = x @ branch.T
        book.carry(matrix(shortcut))
        book.add("L0.branch", write)
        return book.close(network(start, same)[None, None], name="projection")

    return Case(
        name="projection shortcut, stride 2",
        step="W x + f(x)",
        carry="W: every other place",
        start=start,
        network=network,
        books=books,
        end=numbers(8.0, -1.0, 16.0, -3.0),
        direct=shortcut,
    )


def hyper_connections() -> Case:
    """Streams (2, 0) and (0, 4); the branch reads their mean (1, 2), swaps it to (2, 1), and is added 1 and 2 times."""
    start, mix = numbers(2.0, 0.0, 0.0, 4.0), numbers([0.5, 0.5], [0.25, 0.75])
    swap, spread = numbers([0.0, 1.0], [1.0, 0.0]), numbers([1.0], [2.0])

    def write(streams: Tensor) -> Tensor:
        return spread * (swap @ streams.mean(0))

    def network(x: Tensor, see: See) -> Tensor:
        streams = x.reshape(2, 2)
        return (mix @ streams + write(see(streams))).flatten()

    def books() -> Ledger:
        book = Book()
        book.add("embed", start[None, None])
        book.carry(matrix(torch.kron(mix, torch.eye(2).double())))
        book.add("L0.branch", write(start.reshape(2, 2)).flatten()[None, None])
        return book.close(network(start, same)[None, None], name="hyper_connections")

    return Case(
        name="hyper-connections",
        step="A [x, y] + b f(mean)",
        carry="A over the streams",
        start=start,
        network=network,
        books=books,
        end=numbers(3.0, 3.0, 4.5, 5.0),
        direct=numbers([0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.25, 0, 0.75, 0], [0, 0.25, 0, 0.75]),
    )


def earlier_layers() -> Case:
    """Each layer reads a softmax over all earlier outputs; each output stays in coordinates of its own.

    y0 = (2, 1), y1 = (0, u) = (0, 2). Weights 1/4 and 3/4 give (0.5, 1.75), so y2 = (-v, 0) = (-1.75, 0). At the end
    the weights are 1/4, 1/2, 1/4: (0.0625, 1.25).
    """
    start = numbers(2.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    one, two = numbers([0.0, 0.0], [1.0, 0.0]), numbers([0.0, -1.0], [0.0, 0.0])
    first, last = numbers(0.0, math.log(3.0)), math.log(2.0) / 5.75 * numbers(-1.0, 3.75)

    def mixed(outputs: Tensor, query: Tensor, see: See) -> Tensor:
        return (see(outputs) @ query).softmax(0) @ outputs

    def network(x: Tensor, see: See) -> Tensor:
        y = x.reshape(3, 2)
        y = torch.stack([y[0], y[1] + one @ see(y[0]), y[2]])
        y = torch.stack([y[0], y[1], y[2] + two @ see(mixed(y[:2], first, see))])
        return torch.cat([mixed(y, last, see), torch.zeros(4).double()])

    def books() -> Ledger:
        book = Book()
        y0 = start[:2]
        y1 = one @ y0
        y2 = two @ mixed(torch.stack([y0, y1]), first, same)
        weights = (torch.stack([y0, y1, y2]) @ last).softmax(0)
        collect = torch.zeros(6, 6).double()
        collect[:2] = torch.kron(weights[None], torch.eye(2).double())
        book.add("embed", start[None, None])
        book.add("L0.branch", torch.cat([torch.zeros(2), y1, torch.zeros(2)])[None, None])
        book.add("L1.branch", torch.cat([torch.zeros(4), y2])[None, None])
        book.carry(matrix(collect))
        return book.close(network(start, same)[None, None], name="earlier_layers")

    direct = torch.zeros(6, 6).double()
    direct[:2] = torch.kron(numbers([0.25, 0.5, 0.25]), torch.eye(2).double())
    return Case(
        name="attention over earlier layers",
        step="sum of a(y) y over outputs y",
        carry="the weights a, per output",
        start=start,
        network=network,
        books=books,
        end=numbers(0.0625, 1.25, 0.0, 0.0, 0.0, 0.0),
        direct=direct,
    )
