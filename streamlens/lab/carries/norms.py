"""Where the norm stands: before the branch it leaves the carry alone, after the addition it is the carry."""

from collections.abc import Iterator

from torch import Tensor

from streamlens.carries import StreamNorm
from streamlens.lab.book import Book
from streamlens.lab.carries.case import Case, See, diagonal, numbers, same
from streamlens.ledger import Ledger


def cases() -> Iterator[Case]:
    """Pre-norm and post-norm."""
    yield pre_norm()
    yield post_norm()


def pre_norm() -> Case:
    """(1, 7) has root mean square 5; the branch swaps the normed coordinates and multiplies by 5."""
    start, branch = numbers(1.0, 7.0), numbers([0.0, 5.0], [5.0, 0.0])

    def network(x: Tensor, see: See) -> Tensor:
        z = see(x)
        return x + branch @ (z / z.square().mean().sqrt())

    def books() -> Ledger:
        book = Book()
        x = book.add("embed", start[None, None])
        norm = StreamNorm(gain=numbers(1.0, 1.0), bias=None, centred=False, eps=0.0).at(x)
        book.add("L0.branch", norm.linear(x) @ branch.T)
        return book.close(network(start, same)[None, None], name="pre_norm")

    return Case(
        name="pre-norm",
        step="x + f(N(x))",
        carry="1",
        start=start,
        network=network,
        books=books,
        end=numbers(8.0, 8.0),
        direct=diagonal(1.0, 1.0),
    )


def post_norm() -> Case:
    """(2, 1, 3, 4) + (0, 1, 3, 2) = (2, 2, 6, 6): mean 4, standard deviation 2, so LayerNorm gives -1, -1, 1, 1."""
    start, branch = numbers(2.0, 1.0, 3.0, 4.0), numbers(0.0, 1.0, 1.0, 0.5)
    gain, bias = numbers(1.0, 2.0, 1.0, 2.0), numbers(0.0, 0.0, 0.5, 0.0)

    def network(x: Tensor, see: See) -> Tensor:
        z = x + branch * see(x)
        centred = z - z.mean()
        return gain * centred / see(centred).square().mean().sqrt() + bias

    def books() -> Ledger:
        book = Book()
        x = book.add("embed", start[None, None])
        z = book.add("L0.branch", branch * x)
        book.norm(StreamNorm(gain=gain, bias=bias, centred=True, eps=0.0).at(z), "L0.branch.norm.bias")
        return book.close(network(start, same)[None, None], name="post_norm")

    # gain / 2 times (1 - 1/4 on the diagonal, -1/4 beside it)
    direct = [
        [0.375, -0.125, -0.125, -0.125],
        [-0.25, 0.75, -0.25, -0.25],
        [-0.125, -0.125, 0.375, -0.125],
        [-0.25, -0.25, -0.25, 0.75],
    ]
    return Case(
        name="post-norm",
        step="N(x + f(x))",
        carry="gain (1 - mean) / sigma",
        start=start,
        network=network,
        books=books,
        end=numbers(-1.0, -2.0, 1.5, 2.0),
        direct=numbers(*direct),
    )
