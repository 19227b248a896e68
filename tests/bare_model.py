"""What streamlens asks of a Hugging Face model, and no more: the shell of the tests' own small networks."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn


class Config:
    model_type = "bare"

    def to_dict(self) -> dict:
        return {}

    def get_text_config(self) -> "Config":
        return self


class BareModel(nn.Module):
    """Tokens look up vectors, blocks follow one another, then a norm and the unembedding."""

    def __init__(
        self,
        embedding: nn.Embedding,
        blocks: Sequence[nn.Module],
        unembedding: nn.Linear,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config = Config()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.unembedding = unembedding

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.unembedding

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=self.unembedding(x if self.norm is None else self.norm(x)))


class Branch(nn.Module):
    """A branch that is one matrix."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.map = linear(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


class Block(nn.Module):
    """A block of one such branch."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.branch = Branch(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def in_the_plane(*weights: Tensor) -> BareModel:
    """A block for each matrix [2, 2], over three tokens; token 0 is (2, 1). The logits are the stream."""
    vectors = torch.tensor([[2.0, 1.0], [1.0, 0.0], [0.5, -3.0]])
    return BareModel(nn.Embedding(3, 2, _weight=vectors), [Block(weight) for weight in weights], linear(torch.eye(2)))


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = nn.Parameter(weight)
    if bias is not None:
        made.bias = nn.Parameter(bias)
    return made
