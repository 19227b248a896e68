"""The smallest residual network: a vector, and branches that read it and add to it, `x[s+1] = x[s] + h f_s(x[s])`.

1. `forward` runs it, with some branches switched off, at any step size h, or without the skip connection.
2. `books` is its ledger, `backward` the mirror: g[s] = g[s+1] + J_s^T g[s+1], direct route and branch.
3. `TokenNetwork` is the same network as a module that `streamlens.load` takes, so that the ablations of the product
   run on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens.lab.book import Book
from streamlens.ledger import Ledger
from streamlens.sites import Site

#: reads the stream [..., d_model], gives what is added to it
Branch = Callable[[Tensor], Tensor]


def forward(
    start: Float[Tensor, "*rows d_model"],
    branches: Sequence[Branch],
    *,
    on: Sequence[bool] | None = None,
    h: float = 1.0,
    residual: bool = True,
) -> list[Tensor]:
    """The state before the first branch and after each.

    Args:
        start: The state at the start.
        branches: The branches in order.
        on: Which of them run; None for all. One that is off adds nothing.
        h: What every write is multiplied by.
        residual: False for the plain network x[s+1] = f_s(x[s]).
    """
    states = [start]
    for number, branch in enumerate(branches):
        x = states[-1]
        if on is not None and not on[number]:
            states.append(x)
        else:
            states.append(x + h * branch(x) if residual else branch(x))
    return states


def books(
    start: Float[Tensor, "*rows d_model"],
    branches: Sequence[Branch],
    *,
    name: str,
    on: Sequence[bool] | None = None,
    h: float = 1.0,
) -> Ledger:
    """The ledger of `forward`; a vector is one token of one prompt."""
    shaped = start.reshape(1, -1, start.shape[-1]) if start.dim() < 3 else start
    states = forward(shaped, branches, on=on, h=h)
    book = Book()
    book.add("embed", states[0])
    for number, (branch, x) in enumerate(zip(branches, states[:-1], strict=True)):
        off = on is not None and not on[number]
        book.add(Site(kind="branch", layer=number), torch.zeros_like(x) if off else h * branch(x))
    return book.close(states[-1], name=name, tokens=[[f"x{n}" for n in range(shaped.shape[1])]] * len(shaped))


@dataclass(frozen=True, eq=False, kw_only=True)
class Backward:
    """The gradient of one number with respect to every state.

    Attributes:
        gradients: dm / dx[s] for s = 0 .. S, [depth, ..., d_model].
        branch: What each branch adds to it on the way back, J_s^T g[s+1], [branch, ..., d_model]; zero for one that
            is off.
        direct: The gradient at the end, which skip connections hand back unchanged.
    """

    gradients: Float[Tensor, "depth *rows d_model"]
    branch: Float[Tensor, "branch *rows d_model"]
    direct: Float[Tensor, "*rows d_model"]

    @property
    def closure(self) -> float:
        """|direct + sum of the branches - gradient at the start|, relative."""
        error = self.direct + self.branch.sum(0) - self.gradients[0]
        return float(error.norm() / self.gradients[0].norm().clamp_min(1e-300))


def backward(
    states: Sequence[Tensor], branches: Sequence[Branch], gradient: Tensor, *, h: float = 1.0, residual: bool = True
) -> Backward:
    """Takes the gradient at the end back through every branch.

    Args:
        states: From `forward`.
        branches: The same branches.
        gradient: dm / dx at the end.
        h: As in `forward`.
        residual: As in `forward`. In a plain network g[s] = J_s^T g[s+1] is no sum; `branch` is then the change
            J_s^T g[s+1] - g[s+1].
    """
    g, gradients, added = gradient, [gradient], []
    for branch, x in zip(reversed(branches), reversed(states[:-1]), strict=True):
        _, pulled = torch.autograd.functional.vjp(branch, x.detach(), g)
        assert isinstance(pulled, Tensor)
        pulled = h * pulled if residual else pulled - g
        g = g + pulled
        gradients.append(g)
        added.append(pulled)
    return Backward(gradients=torch.stack(gradients[::-1]), branch=torch.stack(added[::-1]), direct=gradient)


def jacobian(branch: Branch, at: Float[Tensor, " d_model"]) -> Float[Tensor, "d_model d_model"]:
    """The Jacobian of a branch at one vector, [output, input]."""
    found = torch.autograd.functional.jacobian(branch, at.detach())
    assert isinstance(found, Tensor)
    return found


class TokenNetwork(nn.Module):
    """The network as a language model: tokens look up start vectors, the logits are the stream itself.

    `streamlens.load(TokenNetwork(...))` measures its wiring and gives a handle as for any other model.

    Args:
        vectors: The start vector of each token, [vocab, d_model]. The wiring is measured on these tokens.
        branches: One matrix a block, [d_model, d_model]; the block adds `matrix @ x`.
    """

    def __init__(self, vectors: Float[Tensor, "vocab d_model"], branches: Sequence[Tensor]) -> None:
        super().__init__()
        width = vectors.shape[1]
        self.config = _Config()
        self.embedding = nn.Embedding(len(vectors), width, _weight=vectors.clone())
        self.blocks = nn.ModuleList([_Block(branch) for branch in branches])
        self.unembedding = _linear(torch.eye(width, dtype=vectors.dtype))

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.unembedding

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=self.unembedding(x))


class _Config:
    """What `load` asks of a configuration."""

    model_type = "lab"

    def to_dict(self) -> dict[str, Any]:
        return {}

    def get_text_config(self) -> "_Config":
        return self


class _Block(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.branch = nn.Sequential(_linear(weight))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def _linear(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    made.weight = nn.Parameter(weight.clone(), requires_grad=False)
    return made
