"""One kind of carry: the network in plain torch, its books, and its direct Jacobian three ways.

1. `network(x, see)` runs it. Branches, gates and norm scales read `see(x)`: with `see = same` autograd gives the total
   Jacobian, with `see = Tensor.detach` they are held and it gives the direct one, what the carries alone do.
2. `books()` is the same pass as a ledger; its carries, applied to each unit vector, give the direct Jacobian again.
3. `direct` is that matrix worked out by hand.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.carries import transport
from streamlens.ledger import Ledger

See = Callable[[Tensor], Tensor]


def same(x: Tensor) -> Tensor:
    """What `see` is in the network as it is."""
    return x


def numbers(*rows: object) -> Tensor:
    """A vector or matrix in float64."""
    return torch.tensor(rows, dtype=torch.float64)


def diagonal(*entries: float) -> Tensor:
    """A diagonal matrix in float64."""
    return torch.diag(numbers(*entries))


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """One kind of carry with numbers that can be checked by hand.

    Attributes:
        name: What it is called.
        step: One step in symbols.
        carry: Its direct Jacobian in symbols.
        start: The state at the start, [d_model].
        network: The network; see the module's docstring.
        books: The same pass as a ledger.
        end: The state at the end, by hand.
        direct: The direct Jacobian at this point, by hand, [d_model, d_model].
    """

    name: str
    step: str
    carry: str
    start: Float[Tensor, " d_model"]
    network: Callable[[Tensor, See], Tensor]
    books: Callable[[], Ledger]
    end: Float[Tensor, " d_model"]
    direct: Float[Tensor, "d_model d_model"]

    def jacobian(self, *, held: bool) -> Float[Tensor, "d_model d_model"]:
        """d end / d start by autograd: total, or with branches, gates and scales held."""
        see: See = Tensor.detach if held else same
        found = torch.autograd.functional.jacobian(lambda x: self.network(x, see), self.start)
        assert isinstance(found, Tensor)
        return found


def carried(ledger: Ledger) -> Float[Tensor, "d_model d_model"]:
    """What the carries of a ledger of one token make of each unit vector at the start, [output, input]."""
    columns = []
    for unit in torch.eye(ledger.stream.shape[-1], dtype=torch.float64):
        rows = torch.zeros_like(ledger.added)
        rows[0, 0, 0] = unit
        columns.append(transport(ledger.program, rows, ledger.norms)[0, 0, 0])
    return torch.stack(columns, dim=-1)
