"""A ResNet block that changes its shape, and the books of a ResNet-34 (He et al. 2015) with random weights.

1. A block is relu(shortcut(x) + f(x)). Where the shape changes the shortcut is a 1 x 1 convolution of stride 2 with its
   batch norm: linear, as a sparse matrix on the flattened image, plus a constant, which is a write.
2. The stream is a flattened image in the widest stage's coordinates; later, smaller stages fill the first of them.
3. The final ReLU is a mask, held at its values in this pass. So every block's write can be followed to the end.

Batch norms run with stored statistics, taken here from one batch of random images.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens import plots
from streamlens.lab.book import Book, gate, matrix
from streamlens.lab.example import Drawing, Example, closes, equal
from streamlens.ledger import Ledger
from streamlens.sites import Site

#: blocks and channels of the four stages of a ResNet-34
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


def convolution(channels: int, out: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, padded to keep the size up to the stride."""
    return nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Two 3 x 3 convolutions with batch norms, a shortcut, and a ReLU after the addition."""

    def __init__(self, channels: int, out: int, *, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            convolution(channels, out, 3, stride), nn.BatchNorm2d(out), nn.ReLU(),
            convolution(out, out, 3), nn.BatchNorm2d(out),
        )  # fmt: skip
        changes = stride > 1 or channels != out
        self.shortcut = nn.Sequential(convolution(channels, out, 1, stride), nn.BatchNorm2d(out)) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        return (kept + self.branch(x)).relu()


class ResNet34(nn.Module):
    """Stem, sixteen blocks in four stages, mean over places, classes."""

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
        )
        channels, blocks = 64, []
        for count, out in STAGES:
            for number in range(count):
                blocks.append(Block(channels, out, stride=2 if number == 0 and out > 64 else 1))
                channels = out
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def randomised(model: nn.Module, images: Tensor, *, seed: int = 0) -> nn.Module:
    """Moves the batch norms off their defaults, takes their statistics from some images, and switches to eval."""
    made = torch.Generator().manual_seed(seed)
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    with torch.no_grad():
        for norm in norms:
            norm.weight.copy_(0.5 + torch.rand(norm.weight.shape, generator=made))
            norm.bias.copy_(0.2 * torch.randn(norm.bias.shape, generator=made))
            norm.momentum = 1.0  # the running statistics are those of the last batch
        model.train()(images)
    return model.eval().requires_grad_(False)


def seeded(build: type[nn.Module], *sizes: int, seed: int = 0, **options: int) -> nn.Module:
    """Builds a module with seeded weights and leaves torch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(*sizes, **options)


@dataclass(frozen=True, eq=False, kw_only=True)
class Flat:
    """Images as vectors in the coordinates of the widest state: an image fills the first of them."""

    width: int

    def __call__(self, x: Tensor) -> Float[Tensor, "1 1 d_model"]:
        vector = torch.zeros(1, 1, self.width, dtype=x.dtype)
        vector[0, 0, : x.numel()] = x.flatten()
        return vector

    def shortcut(self, layer: nn.Sequential, x: Tensor) -> tuple[Float[Tensor, "d_model d_model"], Tensor]:
        """A strided 1 x 1 convolution and its batch norm as a sparse matrix and a constant."""
        conv, norm = layer[0], layer[1]
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        constant = norm.bias - scale * norm.running_mean
        weight = (conv.weight[:, :, 0, 0] * scale[:, None]).double()  # [out, in]
        (high, wide), stride = x.shape[2:], conv.stride[0]
        reads = torch.arange(high * wide).reshape(high, wide)[::stride, ::stride].flatten()
        places = torch.arange(len(reads))
        out, channel, place = torch.meshgrid(
            torch.arange(weight.shape[0]), torch.arange(weight.shape[1]), places, indexing="ij"
        )
        rows, columns = out * len(reads) + place, channel * high * wide + reads[place]
        values = weight[..., None].expand(*weight.shape, len(reads))
        found = torch.sparse_coo_tensor(
            torch.stack([rows.flatten(), columns.flatten()]),
            values.flatten(),
            (self.width, self.width),
            check_invariants=True,
        )
        return found, self(constant[:, None].expand(-1, len(reads)))


def books(blocks: Iterable[nn.Module], x: Tensor, *, name: str) -> tuple[Ledger, list[tuple[int, ...]]]:
    """The ledger of a stack of blocks over one image, and the shape after each.

    Args:
        blocks: The blocks, in eval mode.
        x: What the first one reads, [1, channels, row, column].
        name: The example's name.
    """
    flat, book, shapes = Flat(width=x.numel()), Book(), [tuple(x.shape[1:])]
    book.add("embed", flat(x))
    for number, block in enumerate(blocks):
        assert isinstance(block, Block)
        site = Site(kind="branch", layer=number)
        if block.shortcut is not None:
            rows, constant = flat.shortcut(block.shortcut, x)
            book.carry(matrix(rows), bias=(f"{site.label}.norm.bias", constant))
        book.add(site, flat(block.branch(x)))
        x = block(x)
        book.carry(gate(flat((x > 0).to(x.dtype))))
        shapes.append(tuple(x.shape[1:]))
    return book.close(flat(x), name=name), shapes


def example() -> Example:
    """The example with its numbers."""
    made = torch.Generator().manual_seed(1)
    block = randomised(seeded(Block, 32, 64, stride=2), torch.randn(8, 32, 28, 28, generator=made))
    assert isinstance(block, Block)
    assert block.shortcut is not None
    x = torch.randn(1, 32, 28, 28, generator=made).relu()
    sides = [tuple(block.branch(x).shape[1:]), tuple(block.shortcut(x).shape[1:])]
    one, shapes = books([block], x, name="resnet block")
    photos = torch.randn(8, 3, 64, 64, generator=made)
    net = randomised(seeded(ResNet34), photos)
    assert isinstance(net, ResNet34)
    ledger, sizes = books(net.blocks, net.stem(photos[:1]), name="resnet")
    weighted = sum(
        isinstance(part, nn.Linear | nn.Conv2d) for name, part in net.named_modules() if "shortcut" not in name
    )
    frame: Any = ledger.to_frame()
    table: Any = frame[["component", "norm", "share"]].assign(component=frame["component"].astype(str))
    table["added norm"] = [*ledger.added[:, 0, 0].norm(dim=-1).tolist(), float("nan")]
    table["shape"] = [_shape(sizes[_block(site) + 1]) for site in ledger.sites] + [""]
    bars = table.assign(series="share of the final stream")
    logits = net.head(ledger.stream[0, 0, :2048].reshape(512, 4).mean(-1)[None])
    return Example(
        name="resnet",
        title="A ResNet block and a ResNet-34",
        teaches=(
            "Where a block halves the image and doubles the channels, a strided projection brings the skip to the "
            "same shape, and only every fourth place passes. The final ReLU lets about half of what it meets through. "
            "Both are linear at one pass, so the last stage is a sum over the stem and sixteen blocks."
        ),
        table=table[["component", "shape", "added norm", "norm", "share"]],
        drawings=(
            Drawing(
                caption="Signed share of each write in the final stage's output, carried there; the shares sum to 1.",
                draw=lambda dark: plots.grouped_bars(
                    bars,
                    label="component",
                    value="share",
                    series="series",
                    heading="What a random ResNet-34 ends with",
                    says="Carried through every projection and ReLU mask after it.",
                    x_title="",
                    dark=dark,
                ),
            ),
        ),
        checks=(
            equal("28 x 28 x 32 goes in", list(shapes[0]), [32, 28, 28]),
            equal("14 x 14 x 64 from the branch at the addition", list(sides[0]), [64, 14, 14]),
            equal("14 x 14 x 64 from the shortcut", list(sides[1]), [64, 14, 14]),
            equal("1 + 2 (3 + 4 + 6 + 3) + 1 = 34 layers with weights, shortcuts aside", float(weighted), 34.0),
            equal("21 797 672 parameters", float(sum(p.numel() for p in net.parameters())), 21797672.0),
            closes(one, limit=1e-5, of="the block's output"),
            closes(ledger, limit=1e-5, of="the last stage's output"),
            equal("the stream at the end gives the network's own logits", logits, net(photos[:1]), limit=1e-4),
            equal("the shares sum to 1", float(table["share"].sum()), 1.0, limit=1e-5),
        ),
        ledger=ledger,
    )


def _block(site: Site) -> int:
    return -1 if site.layer is None else site.layer


def _shape(shape: tuple[int, ...]) -> str:
    channels, high, wide = shape
    return f"{high} x {wide} x {channels}"
