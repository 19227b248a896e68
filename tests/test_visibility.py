"""Visibility: frozen, local and finite, against the norm written out, its Jacobian by autograd, and each other."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import streamlens
import zoo
from closeness import assert_close
from small_ledger import ledger_of, norm_of, reader_of, value
from streamlens import Reader, decompose, nullspace, read, visibility
from streamlens.errors import InputError
from streamlens.readouts.visible.visibility import MODES

EXACT = 1e-12


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


#: d_model, rows of the reader (fewer or more), seed, LayerNorm or RMSNorm, eps
cases = st.tuples(
    st.integers(3, 16), st.integers(1, 24), st.integers(0, 999), st.booleans(), st.sampled_from([0.0, 1e-5, 0.1])
)


def made(case: tuple) -> tuple:
    """Four writes of two prompts of three tokens, and a reader behind a norm."""
    d_model, k, seed, centred, eps = case
    matrix = random(k, d_model, seed=seed + 1)
    return ledger_of(random(4, 2, 3, d_model, seed=seed)), reader_of(matrix, norm_of(d_model, centred=centred, eps=eps))


def along(change: Tensor) -> Tensor:
    """A change as one number: signed for one row, else its length."""
    return change[..., 0] if change.shape[-1] == 1 else change.norm(dim=-1)


class TestFinite:
    @given(cases)
    def test_it_is_what_really_happens(self, case):
        """direct + rescale = read(x) - read(x - u), to 1e-12 of the size of what is read."""
        ledger, reader = made(case)
        found = visibility(ledger, reader, "finite")
        real = value(reader, ledger.stream) - value(reader, ledger.stream - ledger.writes)
        size = reader.matrix.norm() * reader.through.gain.norm()
        assert (found.change - along(real)).abs().max() < EXACT * size
        assert torch.equal(found.change, found.direct + found.rescale)

    @given(cases)
    def test_the_direct_part_of_one_row_is_its_attribution(self, case):
        ledger, reader = made(case)
        one = reader_of(reader.matrix[:1], reader.through)
        found = visibility(ledger, one, "finite")
        assert_close(found.direct, read(ledger, one).contributions[: len(ledger.sites), ..., 0])

    @given(cases)
    def test_the_gain_is_that_of_a_linear_map_that_gives_the_change(self, case):
        """The map of the docstring, written out for one write, has this change and this Frobenius norm."""
        ledger, reader = made(case)
        found = visibility(ledger, reader, "finite")
        norm, d_model = reader.through, ledger.stream.shape[-1]
        x, u = ledger.stream[0, 0], ledger.writes[2, 0, 0]
        centre = torch.eye(d_model, dtype=torch.float64) - norm.centred / d_model
        h, x = centre @ (x - u), centre @ x
        before, after = ((z.square().mean() + norm.eps).sqrt() for z in (h, x))
        m, s = (x + h) / 2, (before + after) / 2
        taken = torch.eye(d_model, dtype=torch.float64) - torch.outer(m, m) / (d_model * s**2)
        secant = reader.matrix * norm.gain @ taken @ centre * s / (before * after)
        real = value(reader, ledger.stream[0, 0]) - value(reader, ledger.stream[0, 0] - u)
        assert (secant @ u - real).norm() < 1e-11 * secant.norm() * u.norm()
        gain = real.norm() / (u.norm() * secant.norm() / math.sqrt(d_model))
        assert float(found.gain[2, 0, 0]) == pytest.approx(float(gain), rel=1e-8)


class TestLocal:
    @given(cases)
    def test_it_is_the_jacobian(self, case):
        """Change and gain against autograd through the norm, eps included."""
        ledger, reader = made(case)
        found = visibility(ledger, reader, "local")
        jacobian = torch.autograd.functional.jacobian(lambda x: value(reader, x), ledger.stream[1, 2])
        u = ledger.writes[:, 1, 2]
        assert (found.change[:, 1, 2] - along(u @ jacobian.T)).abs().max() < 1e-11 * jacobian.norm() * u.norm()
        expected = u.norm(dim=-1) * jacobian.norm() / math.sqrt(u.shape[-1])
        gain = (u @ jacobian.T).norm(dim=-1) / expected
        assert (found.gain[:, 1, 2] - gain).abs().max() < 1e-8

    @given(cases)
    def test_the_split_is_that_of_the_null_space_at_the_point(self, case):
        ledger, reader = made(case)
        found = visibility(ledger, reader, "local")
        there = nullspace(reader, at=ledger.stream[1, 2])
        u = ledger.writes[:, 1, 2]
        assert (found.row_norm[:, 1, 2] - there.complement(u).norm(dim=-1)).abs().max() < 1e-9
        assert (found.null_norm[:, 1, 2] - there.project(u).norm(dim=-1)).abs().max() < 1e-9
        assert (found.chance[:, 1, 2] * u.shape[-1] - there.rank).abs().max() == 0

    @given(cases)
    def test_it_is_the_limit_of_the_finite_one(self, case):
        """A write times t: change / t, share and gain go to the local ones, with an error that shrinks with t."""
        ledger, reader = made(case)
        stream, write = ledger.stream, ledger.writes[1]
        errors = []
        for t in (1e-3, 1e-4):
            small = ledger_of(torch.stack([stream - t * write, t * write]))
            local, finite = (visibility(small, reader, mode) for mode in ("local", "finite"))
            size = reader.matrix.norm() * t * write.norm() * local.ledger.stream.shape[-1] ** 0.5
            parts = [(finite.change - local.change) / size, finite.share - local.share, finite.gain - local.gain]
            errors.append(max(float(part[1].abs().max()) for part in parts))
        assert errors[1] < max(0.2 * errors[0], 1e-9)
        assert errors[1] < 0.1


class TestFrozen:
    @given(cases)
    def test_it_is_the_attribution_and_the_null_space(self, case):
        ledger, reader = made(case)
        found = visibility(ledger, reader, "frozen")
        contributions = read(ledger, reader).contributions[: len(ledger.sites)]
        assert_close(found.change, along(contributions))
        assert not found.rescale.any()
        there = nullspace(reader)
        assert_close(found.row_norm, there.complement(ledger.writes).norm(dim=-1), like=torch.float32)
        assert (found.null_norm - there.project(ledger.writes).norm(dim=-1)).abs().max() < 1e-9
        assert_close(found.norm, ledger.writes.norm(dim=-1))

    def test_gain_is_one_on_average(self):
        """The root mean square gain of random writes is 1 within three standard errors; the mean share is chance."""
        writes = random(2, 1, 4000, 24)
        ledger = ledger_of(torch.cat([random(1, 1, 4000, 24, seed=9) * 30, writes]))
        reader = reader_of(random(6, 24, seed=4) * torch.linspace(1, 9, 6)[:, None], norm_of(24, centred=False))
        found = visibility(ledger, reader)
        for values, wanted in ((found.gain[1:].square(), 1.0), (found.share[1:], 6 / 24), (found.lift[1:], 1.0)):
            assert abs(values.mean() - wanted) < 3 * values.std() / math.sqrt(values.numel())


@pytest.mark.parametrize("centred", [False, True], ids=["RMSNorm", "LayerNorm"])
class TestAlongTheStream:
    """An update along the stream's own direction: only the frozen reader sees it. The example of the documentation."""

    def case(self, centred: bool, eps: float = 0.0) -> tuple:
        h = random(1, 1, 10) + (0 if centred else 1)
        h = h - h.mean(-1, keepdim=True) if centred else h
        ledger = ledger_of(torch.stack([h, 0.5 * h]))
        return ledger, reader_of(h[0], norm_of(10, centred=centred, eps=eps))

    def test_frozen_sees_it_and_the_others_do_not(self, centred):
        ledger, reader = self.case(centred)
        found = {mode: visibility(ledger, reader, mode) for mode in MODES}
        assert float(found["frozen"].share[1]) > 0.5
        assert float(found["frozen"].change[1]) > 1.0
        for mode in ("local", "finite"):
            assert float(found[mode].share[1]) < 1e-20
            assert abs(float(found[mode].change[1])) < EXACT * float(found["frozen"].change[1])
            assert float(found[mode].gain[1]) < EXACT
            assert float(found[mode].rescale[1]) == pytest.approx(-float(found[mode].direct[1]), rel=1e-12)

    def test_with_eps_the_value_moves_by_its_share_of_the_variance(self, centred):
        """d read / d log |h| = read * eps / sigma^2, which the local change says and the split leaves out."""
        ledger, reader = self.case(centred, eps=0.1)
        local = visibility(ledger, reader, "local")
        variance = ledger.stream.square().mean() + 0.1
        wanted = float(local.direct[1]) * 0.1 / float(variance)
        assert float(local.change[1]) == pytest.approx(wanted, rel=1e-9)
        assert float(local.share[1]) < 1e-20


class TestPlanted:
    def test_a_planted_direction_is_seen_whole(self):
        """Share 1 for a write in the reader's rows, 0 for one orthogonal to them; the lift of share 1 is d / rank."""
        rows = torch.linalg.qr(random(12, 3)).Q.T
        inside, outside = random(1, 1, 3, seed=1) @ rows, random(1, 1, 12, seed=2)
        outside = outside - outside @ rows.T @ rows
        found = visibility(
            ledger_of(torch.stack([inside, outside])), reader_of(torch.diag(torch.tensor([3.0, 2, 1])).double() @ rows)
        )
        assert found.share.flatten().tolist() == pytest.approx([1, 0], abs=1e-12)
        assert found.lift.flatten().tolist() == pytest.approx([4, 0], abs=1e-12)
        assert float(found.gain[1]) < EXACT

    def test_without_a_norm_the_three_answers_are_one(self):
        ledger = ledger_of(random(3, 1, 2, 8))
        found = [visibility(ledger, reader_of(random(2, 8, seed=1)), mode) for mode in MODES]
        for other in found[1:]:
            for name in ("share", "chance", "gain", "change"):
                assert torch.equal(getattr(found[0], name), getattr(other, name))

    def test_a_direction_that_nothing_of_lies_in_the_row_space(self):
        """A stream orthogonal to the reader takes no dimension from it."""
        axes = torch.eye(4, dtype=torch.float64)
        ledger = ledger_of(
            torch.stack([axes[3], axes[0]])[:, None, None] * torch.tensor([5.0, 0.0])[:, None, None, None] + 0
        )
        found = visibility(ledger, reader_of(axes[:2], norm_of(4, centred=False)), "local")
        assert found.chance.unique().tolist() == [0.5]

    def test_a_write_of_zeros_has_no_share(self):
        found = visibility(
            ledger_of(torch.zeros(2, 1, 1, 4) + torch.tensor([1.0, 0.0])[:, None, None, None]), reader_of(random(1, 4))
        )
        assert found.share.isnan().flatten().tolist() == [False, True]
        assert found.to_frame()["visible_share"].isna().tolist() == [False, True]

    def test_an_effective_row_space_is_said(self):
        ledger, reader = ledger_of(random(2, 1, 1, 6)), reader_of(random(30, 6))
        whole, cut = visibility(ledger, reader), visibility(ledger, reader, energy=0.8)
        assert whole.exact
        assert float(whole.share.min()) == pytest.approx(1)
        assert not cut.exact
        assert 0.8 <= cut.energy < 1
        assert "effective, energy" in repr(cut)
        assert torch.equal(cut.gain, whole.gain)
        there = nullspace(reader, energy=0.8)
        assert_close(cut.row_norm, there.complement(ledger.writes).norm(dim=-1))

    def test_it_reads_where_the_reader_reads(self):
        """A reader in the middle sees the stream up to there, not the end."""
        writes = random(4, 1, 2, 6)
        reader = reader_of(random(2, 6), norm_of(6, centred=False), after="L0.mlp")
        found = visibility(ledger_of(writes), reader, "finite")
        assert found.ledger.labels == ("embed", "L0.attn", "L0.mlp")
        alone = visibility(ledger_of(writes[:3]), reader_of(reader.matrix, reader.through), "finite")
        assert torch.equal(found.change, alone.change)


class TestFrame:
    def test_the_names_others_rely_on(self):
        frame = visibility(ledger_of(random(3, 2, 2, 6)), reader_of(random(2, 6), norm_of(6, centred=False))).to_frame()
        assert {"visible_share", "chance", "lift", "gain", "change"} <= set(frame.columns)
        assert len(frame) == 3 * 2 * 2
        assert frame["chance"].unique().tolist() == pytest.approx([2 / 6])
        assert (frame["row_norm"] ** 2 + frame["null_norm"] ** 2).tolist() == pytest.approx(
            (frame["norm"] ** 2).tolist(), rel=1e-5
        )
        assert list(frame["mode"].unique()) == ["frozen"]


@pytest.mark.parametrize(
    ("reader", "mode", "text"),
    [
        (reader_of(torch.ones(1, 5)), "frozen", "A reader is as wide as the stream, 6; 'planted' is 5 wide."),
        (reader_of(torch.ones(1, 6)), "exact", "mode is one of frozen, local, finite; got 'exact'."),
    ],
)
def test_what_cannot_be_asked(reader, mode, text):
    with pytest.raises(InputError, match=text):
        visibility(ledger_of(random(2, 1, 1, 6)), reader, mode)


IDS = torch.tensor([[11, 12, 13, 14, 15, 16, 17]])


@cache
def handle_of(name: str):
    return streamlens.load(zoo.build(name))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bert"])
def test_on_a_model_it_equals_what_really_happens(name):
    """RMSNorm and LayerNorm, a gain of 1 + w, and a post-norm stream with its transported writes."""
    model = handle_of(name)
    ledger = decompose(model, IDS)
    vector = random(ledger.stream.shape[-1])
    reader = Reader.logits(model, [5]) if model.wiring.head is not None else Reader.direction(vector)
    found = visibility(ledger, reader, "finite")
    norm = model.final_norm if reader.norm == "final" else None
    plain = reader_of(reader.matrix, norm)
    real = value(plain, ledger.stream) - value(plain, ledger.stream.double() - ledger.writes.double())
    assert_close(found.change, real[..., 0], like=torch.float32)
    assert_close(visibility(ledger, reader).change, read(ledger, reader).contributions[: len(ledger.sites), ..., 0])
