"""Cause beside geometry, and the linear eraser: what taking a part of a write away really does."""

from functools import cache

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import streamlens
import zoo
from streamlens import Edit, Reader, ablate, cause, decompose, nullspace, visibility
from streamlens.errors import InputError

IDS = torch.tensor([[11, 12, 13, 14, 15, 16, 17]])
AT = 4


@cache
def handle_of(name: str):
    return streamlens.load(zoo.build(name, torch.float64))


def rows_of(frame, *columns: str) -> dict[str, dict[str, float]]:
    return frame.set_index("removed")[list(columns)].to_dict("index")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
class TestNextToTheWrite:
    """A reader right after the write: nothing lies between, so everything is known beforehand."""

    def case(self, name):
        model = handle_of(name)
        return model, Reader.mlp(model, "L1.mlp", "up" if name == "llama" else "in", neurons=[3])

    def test_the_parts_do_what_the_split_says(self, name):
        model, reader = self.case(name)
        frame = cause(model, IDS, "L1.attn", reader, position=AT)
        found = rows_of(frame, "share", "direct", "indirect", "rescale", "total", "closure")
        ledger = decompose(model, IDS, positions=AT)
        frozen, finite = visibility(ledger, reader), visibility(ledger, reader, "finite")
        row = frozen.ledger.labels.index("L1.attn")
        assert all(part["indirect"] == pytest.approx(0, abs=1e-12) for part in found.values())
        assert all(part["closure"] < 1e-10 for part in found.values())
        assert found["whole"]["total"] == pytest.approx(-float(finite.change[row]), rel=1e-9)
        assert found["whole"]["direct"] == pytest.approx(-float(frozen.change[row]), rel=1e-9)
        assert found["row"]["direct"] == pytest.approx(found["whole"]["direct"], rel=1e-9)
        assert found["null"]["direct"] == pytest.approx(0, abs=1e-9 * abs(found["whole"]["direct"]))
        assert found["null"]["total"] == pytest.approx(found["null"]["rescale"], rel=1e-6)
        assert found["row"]["share"] == pytest.approx(float(frozen.share[row]), rel=1e-6)
        assert found["row"]["share"] + found["null"]["share"] == pytest.approx(1, rel=1e-6)

    def test_the_edits_take_the_space_that_the_null_space_is_of(self, name):
        """Behind a sublayer's norm too: project_out leaves nullspace.project of the write, project_onto the rest."""
        model, reader = self.case(name)
        reader = Reader.head(model, "L2H1", "q")
        split = nullspace(reader)
        for method, part in (("project_out", split.project), ("project_onto", split.complement)):
            made = ablate(model, IDS, Edit("L1.attn", method, position=AT, reader=reader), position=AT)
            row = made.clean.labels.index("L1.attn")
            before, after = made.clean.writes[row, 0, 0], made.ablated.writes[row, 0, 0]
            assert (after - part(before)).norm() < 1e-10 * before.norm()
            assert 0.01 < float(after.norm() / before.norm()) < 0.999


@pytest.mark.model
def test_the_invisible_part_acts_through_others(default_model, bank):
    """L8.mlp's write is to L10H8's query as good as any; what it cannot see of it moves it more than what it can."""
    reader = Reader.head(default_model, "L10H8", "q")
    frame = cause(default_model, bank, "L8.mlp", reader, position=" bank")
    found = rows_of(frame, "share", "direct", "indirect", "total", "closure", "elsewhere")
    assert found["row"]["share"] == pytest.approx(0.101, abs=0.002)  # chance is 64 / 576 = 0.111
    assert abs(found["null"]["direct"]) < 1e-6
    assert found["null"]["indirect"] > 1
    assert found["null"]["total"] > found["row"]["total"] > 1
    assert found["null"]["elsewhere"] > 10 * found["row"]["elsewhere"]
    assert all(part["closure"] < 1e-4 for part in found.values())
    assert frame["component"].tolist() == ["L8.mlp"] * 3
    assert frame["token"].tolist() == [" bank"] * 3


@pytest.mark.parametrize(
    ("name", "site", "text"),
    [
        ("llama", "L1.mlp", "'L1.mlp.in' reads right after L1.attn, before L1.mlp is written."),
        ("llama", "L9.mlp", "No write is called 'L9.mlp' here."),
        ("bert", "L0.attn", "A norm stands between L0.attn and 'L1.mlp.in'"),
    ],
)
def test_what_cannot_be_asked(name, site, text):
    model = handle_of(name)
    with pytest.raises(InputError, match=text):
        cause(model, IDS, site, Reader.mlp(model, "L1.mlp"), position=AT)


class TestLinearEraser:
    """Projecting onto the null space of the difference of means: after it no linear probe can tell the classes."""

    def data(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Two features with directions of their own, in correlated noise."""
        d_model, n = 12, 4000
        fixed = torch.Generator().manual_seed(1)
        a, b = torch.randn(2, d_model, generator=fixed, dtype=torch.float64)
        b = b - 0.8 * (b @ a) / (a @ a) * a  # else the second feature drowns the first along the difference of means
        mixing = torch.randn(d_model, d_model, generator=fixed, dtype=torch.float64) / 10
        draw = torch.Generator().manual_seed(seed)
        first, second = torch.randint(0, 2, (2, n), generator=draw)
        noise = torch.randn(n, d_model, generator=draw, dtype=torch.float64) @ mixing
        return first[:, None] * a + second[:, None] * b + noise, first, second

    def score(self, x: Tensor, labels: Tensor, test: Tensor, wanted: Tensor) -> float:
        probe = LogisticRegression(max_iter=1000).fit(x.numpy(), labels.numpy())
        return float(probe.score(test.numpy(), wanted.numpy()))

    def test_old_and_fresh_probes_fail_and_another_feature_survives(self):
        x, first, second = self.data(0)
        y, first_there, second_there = self.data(1)
        direction = x[first == 1].mean(0) - x[first == 0].mean(0)
        eraser = nullspace(Reader.direction(direction))
        erased, erased_there = eraser.project(x), eraser.project(y)
        midpoint = (x @ direction).mean()

        def old(z: Tensor) -> float:
            return float((((z @ direction) > midpoint) == first_there).double().mean())

        assert old(y) > 0.9
        assert self.score(x, first, y, first_there) > 0.9
        assert old(erased_there) == pytest.approx(0.5, abs=0.03)
        assert self.score(erased, first, erased_there, first_there) == pytest.approx(0.5, abs=0.03)
        before = self.score(x, second, y, second_there)
        assert before > 0.85
        assert self.score(erased, second, erased_there, second_there) > before - 0.1
