"""A transformer small enough to be solved on paper: d_model 2, two layers, two heads, four tokens.

1. Head 0 of each layer reads the first token, head 1 the token it stands at; `z_h = v_h . x`, and head h writes
   `o_h z_h`. There is no softmax, so that every number is a fraction of a power of two.
2. An MLP has two ReLU units. Nothing is normed before a branch.
3. The final norm is an RMSNorm without eps; the weights are such that its sigma is 5 for the prompt `PROMPT`.
4. `WRITES` was worked out with a pencil, line by line, in the comments beside it.
"""

import torch
from torch import Tensor, nn

from bare_model import BareModel, linear

PROMPT = [[0, 3]]

EMBEDDING = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 2.0]]
# per layer: v (a row a head), o (a column a head), bias; MLP in, MLP out, MLP bias
LAYERS = [
    {
        "v": [[1.0, 0.0], [0.0, 1.0]],
        "o": [[0.0, 1.0], [2.0, 0.0]],
        "o_bias": [0.0, 0.5],
        "fc_in": [[1.0, -1.0], [-1.0, 1.0]],
        "fc_out": [[0.5, 0.0], [0.0, 1.0]],
        "fc_bias": [0.25, 0.0],
    },
    {
        "v": [[0.0, 1.0], [1.0, 1.0]],
        "o": [[1.0, 0.0], [-1.0, 0.5]],
        "o_bias": [0.0, 0.0],
        "fc_in": [[1.0, 0.0], [0.0, 1.0]],
        "fc_out": [[0.5, -1.0], [-0.5, 0.0]],
        "fc_bias": [1.75, 1.0],
    },
]
GAIN = [2.0, 0.5]
UNEMBEDDING = [[1.0, 0.0], [1.0, 10.0], [0.0, 10.0], [5.0, -10.0]]
UNEMBEDDING_BIAS = [0.5, -0.25, 0.0, 0.0]

LABELS = ("embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp")
#: row by row, each at the two positions of `PROMPT`
WRITES = [
    [[1.0, 0.0], [-1.0, 2.0]],
    # z_0 = x0 . (1, 0) = 1 at both; z_1 = 0, 2; write = z_0 (0, 2) + z_1 (1, 0) + (0, .5)
    [[0.0, 2.5], [2.0, 2.5]],
    # stream (1, 2.5), (1, 4.5); units 0 and 1.5, 0 and 3.5; write = unit_1 (0, 1) + (.25, 0)
    [[0.25, 1.5], [0.25, 3.5]],
    # stream (1.25, 4), (1.25, 8); z_0 = 4 at both; z_1 = 5.25, 9.25; write = 4 (1, -1) + z_1 (0, .5)
    [[4.0, -1.375], [4.0, 0.625]],
    # stream (5.25, 2.625), (5.25, 8.625), which the units pass on; write = (.5 a - b, -.5 a) + (1.75, 1)
    [[1.75, -1.625], [-4.25, -1.625]],
]
#: the stream after each write, and at the end (7, 1) and (1, 7): sigma = sqrt((49 + 1) / 2) = 5 at both
STREAMS = [
    [[1.0, 0.0], [-1.0, 2.0]],
    [[1.0, 2.5], [1.0, 4.5]],
    [[1.25, 4.0], [1.25, 8.0]],
    [[5.25, 2.625], [5.25, 8.625]],
    [[7.0, 1.0], [1.0, 7.0]],
]


class Attention(nn.Module):
    def __init__(self, layer: dict) -> None:
        super().__init__()
        self.v = _linear(layer["v"])
        self.o = _linear(layer["o"], layer["o_bias"])

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.stack([self.v(x[:, :1])[..., 0].expand(x.shape[:2]), self.v(x)[..., 1]], dim=-1))


class Mlp(nn.Module):
    def __init__(self, layer: dict) -> None:
        super().__init__()
        self.fc_in = _linear(layer["fc_in"])
        self.fc_out = _linear(layer["fc_out"], layer["fc_bias"])

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_out(self.fc_in(x).relu())


class Block(nn.Module):
    def __init__(self, layer: dict) -> None:
        super().__init__()
        self.attn = Attention(layer)
        self.mlp = Mlp(layer)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0
        self.weight = nn.Parameter(torch.tensor(GAIN))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt())


class PaperModel(BareModel):
    def __init__(self) -> None:
        super().__init__(
            nn.Embedding(4, 2, _weight=torch.tensor(EMBEDDING)),
            [Block(layer) for layer in LAYERS],
            _linear(UNEMBEDDING, UNEMBEDDING_BIAS),
            RmsNorm(),
        )


def _linear(weight: list, bias: list | None = None) -> nn.Linear:
    return linear(torch.tensor(weight), None if bias is None else torch.tensor(bias))
