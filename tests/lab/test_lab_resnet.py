"""A ResNet block and a ResNet-34: shapes, counts, and books that close over projections and masks."""

import pytest
import torch
from torch import nn

from closeness import assert_close, relative
from streamlens.lab import resnet


@pytest.fixture(scope="module")
def block():
    images = torch.randn(4, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    return resnet.randomised(resnet.seeded(resnet.Block, 2, 3, stride=2), images), images[:1]


def test_shapes_at_the_addition(example) -> None:
    block = resnet.Block(32, 64, stride=2).eval()
    x = torch.zeros(1, 32, 28, 28)
    assert block.branch(x).shape == (1, 64, 14, 14)
    assert block.shortcut is not None
    assert block.shortcut(x).shape == (1, 64, 14, 14)
    assert block(x).shape == (1, 64, 14, 14)


def test_a_block_that_keeps_its_shape_has_no_projection() -> None:
    assert resnet.Block(8, 8).shortcut is None


def test_thirty_four_layers_and_their_parameters() -> None:
    net = resnet.ResNet34()
    weighted = [n for n, part in net.named_modules() if isinstance(part, nn.Conv2d | nn.Linear) and "shortcut" not in n]
    assert len(weighted) == 34  # 1 + 2 . 16 + 1
    assert len(net.blocks) == 16
    # stem 9 408 + 128; stages 221 952, 1 116 416, 6 822 400, 13 114 368; head 513 000
    assert sum(p.numel() for p in net.stem.parameters()) == 9_536
    sizes = [sum(p.numel() for p in block.parameters()) for block in net.blocks]
    assert [sum(sizes[:3]), sum(sizes[3:7]), sum(sizes[7:13]), sum(sizes[13:])] == [
        221_952,
        1_116_416,
        6_822_400,
        13_114_368,
    ]
    assert sum(p.numel() for p in net.parameters()) == 21_797_672


def test_the_shortcut_as_a_matrix(block) -> None:
    module, x = block
    flat = resnet.Flat(width=x.numel())
    rows, constant = flat.shortcut(module.shortcut, x)
    # 3 channels of 3 x 2 places, each reading both channels at one place
    assert rows.coalesce().indices().shape[1] == 3 * 6 * 2
    made = rows @ x.flatten().double() + constant[0, 0].double()
    wanted = module.shortcut(x).flatten()
    assert relative(made[: wanted.numel()], wanted) < 1e-6
    assert made[wanted.numel() :].abs().max() == 0.0


def test_the_books_of_a_block(block) -> None:
    module, x = block
    ledger, shapes = resnet.books([module], x, name="test")
    assert shapes == [(2, 6, 4), (3, 3, 2)]
    assert ledger.labels == ("embed", "L0.branch.norm.bias", "L0.branch")
    assert_close(ledger.stream[0, 0, :18], module(x).flatten())
    assert float(ledger.closure.max()) < 1e-6
    # the mask lets through what the sum left above zero, of every row alike
    off = ledger.stream[0, 0] == 0
    assert off[:18].any()
    assert ledger.writes[:, 0, 0, off].abs().max() == 0.0
    assert ledger.added[2, 0, 0, off].abs().max() > 0.0


def test_the_books_of_a_resnet_34(example) -> None:
    found = example("resnet")
    assert found.ledger is not None
    # the stem, sixteen blocks, three projections with a batch norm's constant each
    assert len(found.ledger.sites) == 1 + 16 + 3
    assert float(found.ledger.closure.max()) < 1e-6
    assert found.table["shape"].iloc[[0, 5, 10, 19]].tolist() == [
        "16 x 16 x 64",
        "8 x 8 x 128",
        "4 x 4 x 256",
        "2 x 2 x 512",
    ]
    assert found.table["share"].sum() == pytest.approx(1.0, abs=1e-5)
