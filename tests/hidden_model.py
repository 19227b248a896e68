"""A small causal model whose blocks add up their branches in any way a test asks for.

1. `combine(x, a, m)` makes a block's output from its input and its two branches; `a` is made from `x`, `m`
   from `x + a`. It is plain code, so what it adds besides is no module's output.
2. `around` gets the stream before each block, and before the final norm, to change it there.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn

WIDTH, VOCABULARY, LAYERS = 16, 50, 3

Combine = Callable[[Tensor, Tensor, Tensor], Tensor]


def in_order(x: Tensor, a: Tensor, m: Tensor) -> Tensor:
    return (x + a) + m


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Linear(WIDTH, 12)
        self.o = nn.Linear(12, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Each token reads the mean of those up to it."""
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return self.o(self.v(x).cumsum(1) / count)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_in = nn.Linear(WIDTH, 20)
        self.fc_out = nn.Linear(20, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_out(self.fc_in(x).relu())


class Block(nn.Module):
    def __init__(self, combine: Combine) -> None:
        super().__init__()
        self.attn_norm, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.mlp_norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        a = self.attn(self.attn_norm(x))
        return self.combine(x, a, self.mlp(self.mlp_norm(x + a)))


class Wrapped(nn.Module):
    """A block inside another module, which adds to what it gives."""

    def __init__(self, block: nn.Module, extra: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.block, self.extra = block, extra

    def forward(self, x: Tensor) -> Tensor:
        return self.extra(x, self.block(x))


class Config(SimpleNamespace):
    model_type = "hidden"

    def to_dict(self) -> dict:
        return dict(vars(self))

    def get_text_config(self) -> "Config":
        return self


class HiddenModel(nn.Module):
    """`combine` is used in block `layer`, the honest sum in the others."""

    def __init__(
        self,
        combine: Combine = in_order,
        *,
        layer: int = 1,
        around: Callable[[int, Tensor], Tensor] | None = None,
        **config: float,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.layers = nn.ModuleList([Block(combine if i == layer else in_order) for i in range(LAYERS)])
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            for norm in (module for module in self.modules() if isinstance(module, nn.LayerNorm)):
                nn.init.uniform_(norm.weight, 0.5, 1.5)
                nn.init.normal_(norm.bias, std=0.1)
        self.config = Config(**config)
        self.around = around or (lambda _layer, x: x)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        x = self.embedding(input_ids)
        for number, layer in enumerate(self.layers):
            x = layer(self.around(number, x))
        return SimpleNamespace(logits=self.head(self.norm(self.around(LAYERS, x))))
