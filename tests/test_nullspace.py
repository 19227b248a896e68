"""Null spaces: the theorems, over shapes and ranks, in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from small_ledger import norm_of, reader_of, value
from streamlens import Reader, nullspace, overlap
from streamlens.errors import InputError
from streamlens.subspaces import compact, effective_rank, one_thread, spectrum

#: of algebra with a few hundred products in float64
EXACT = 1e-12


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def planted(k: int, d_model: int, rank: int, seed: int = 0) -> torch.Tensor:
    """A matrix of this rank, its singular values between 0.5 and 2."""
    left = torch.linalg.qr(random(k, rank, seed=seed)).Q
    right = torch.linalg.qr(random(d_model, rank, seed=seed + 1)).Q
    return (left * torch.linspace(2, 0.5, rank, dtype=torch.float64)) @ right.T


@st.composite
def matrices(draw) -> tuple[torch.Tensor, int]:
    """A matrix with a planted rank, wide or tall, and that rank."""
    k, d_model = draw(st.integers(1, 40)), draw(st.integers(2, 24))
    rank = draw(st.integers(1, min(k, d_model)))
    return planted(k, d_model, rank, seed=draw(st.integers(0, 999))), rank


norms = st.sampled_from([None, False, True])


class TestTheorems:
    @given(matrices(), norms, st.integers(0, 99))
    def test_the_projectors(self, made, centred, seed):
        """Idempotent, symmetric, complementary, and of the rank that was planted; shares sum to 1."""
        matrix, rank = made
        d_model = matrix.shape[1]
        found = nullspace(reader_of(matrix, None if centred is None else norm_of(d_model, centred=centred)))
        identity = torch.eye(d_model, dtype=torch.float64)
        null, row = found.project(identity), found.complement(identity)
        for projector in (null, row):
            assert (projector @ projector - projector).abs().max() < EXACT
            assert (projector - projector.T).abs().max() < EXACT
        assert (null @ row).abs().max() < EXACT
        assert (null + row - identity).abs().max() < EXACT
        if not centred:  # centring may take a dimension from the row space
            assert found.rank == rank
        assert found.dimension == d_model - found.rank == len(found.basis)
        assert found.exact
        assert found.energy == 1.0
        assert (found.basis @ found.basis.T - torch.eye(found.dimension, dtype=torch.float64)).norm() < EXACT
        assert (found.basis @ found.rows.T).norm() < EXACT
        u = random(5, d_model, seed=seed)
        squares = [part.square().sum(-1) for part in (found.project(u), found.complement(u), u)]
        assert ((squares[0] + squares[1]) / squares[2] - 1).abs().max() < EXACT

    @given(matrices(), st.integers(0, 99))
    def test_the_null_part_is_invisible(self, made, seed):
        """R (h + u_null) = R h, exactly, and R u_row = R u."""
        matrix, _ = made
        reader = reader_of(matrix)
        found = nullspace(reader)
        h, u = random(3, matrix.shape[1], seed=seed), random(3, matrix.shape[1], seed=seed + 1)
        size = value(reader, h).norm() + value(reader, u).norm()
        assert (value(reader, h + found.project(u)) - value(reader, h)).norm() < EXACT * size
        assert (value(reader, found.complement(u)) - value(reader, u)).norm() < EXACT * size

    @given(matrices(), st.booleans(), st.integers(0, 99))
    def test_the_null_part_is_invisible_behind_a_norm_whose_scale_is_held(self, made, centred, seed):
        matrix, _ = made
        norm = norm_of(matrix.shape[1], centred=centred)
        reader = reader_of(matrix, norm)
        h, u = random(1, 1, matrix.shape[1], seed=seed), random(1, 1, matrix.shape[1], seed=seed + 1)
        held = norm.at(h)
        seen, unseen = (held.linear(part(u)) @ matrix.T for part in (lambda x: x, nullspace(reader).project))
        assert unseen.norm() < EXACT * (1 + seen.norm())

    @given(st.integers(3, 24), st.integers(0, 99))
    def test_what_a_norm_takes_out_is_invisible_at_a_point(self, d_model, seed):
        """The stream's own direction under RMSNorm, the ones too under LayerNorm, even for a reader of full rank."""
        h = random(d_model, seed=seed)
        ones = torch.ones(d_model, dtype=torch.float64)
        square = random(d_model, d_model, seed=seed + 1)
        root = nullspace(reader_of(square, norm_of(d_model, centred=False)), at=h)
        assert root.dimension == 1
        assert root.complement(h).norm() < EXACT * h.norm()
        layer = nullspace(reader_of(square, norm_of(d_model, centred=True)), at=h)
        assert layer.dimension == 2
        assert layer.complement(ones).norm() < EXACT * ones.norm()
        assert layer.complement(h).norm() < EXACT * h.norm()
        held = nullspace(reader_of(square, norm_of(d_model, centred=True)))
        assert held.dimension == 1
        assert held.complement(ones).norm() < EXACT * ones.norm()

    @given(st.integers(4, 24), st.booleans(), st.integers(0, 99))
    def test_at_a_point_it_is_the_null_space_of_the_jacobian(self, d_model, centred, seed):
        """Against autograd through the norm itself, eps being 0."""
        matrix = planted(d_model - 2, d_model, d_model - 2, seed=seed)
        reader = reader_of(matrix, norm_of(d_model, centred=centred))
        h = random(d_model, seed=seed + 1)
        jacobian = torch.autograd.functional.jacobian(lambda x: value(reader, x), h)
        found = nullspace(reader, at=h)
        assert (jacobian @ found.basis.T).abs().max() < 1e-11 * jacobian.abs().max()
        assert found.rank == torch.linalg.matrix_rank(jacobian, rtol=1e-10)

    def test_random_vectors_have_the_chance_share(self):
        """The mean share is rank / d within three standard errors."""
        d_model, rank, draws = 60, 12, 4000
        found = nullspace(reader_of(planted(20, d_model, rank)))
        u = random(draws, d_model, seed=7)
        shares = found.complement(u).square().sum(-1) / u.square().sum(-1)
        assert abs(shares.mean() - rank / d_model) < 3 * shares.std() / math.sqrt(draws)


class TestExactAndEffective:
    def test_a_reader_of_full_rank_sees_everything_and_says_so(self):
        found = nullspace(reader_of(random(50, 12)))
        assert (found.dimension, found.exact) == (0, True)
        assert "exact, dimension 0 of 12; full rank, so the reader sees every update" in repr(found)
        u = random(3, 12, seed=1)
        assert found.project(u).norm() < EXACT * u.norm()

    def test_an_effective_one_states_its_energy(self):
        sizes = torch.tensor([3.0, 2.0, 1.0, 0.5], dtype=torch.float64)
        reader = reader_of(torch.diag(sizes))
        squares = [9, 4, 1, 0.25]  # of 14.25
        for energy, rank in ((0.6, 1), (9 / 14.25 + 1e-9, 2), (0.9, 2), (0.95, 3), (0.999, 4), (1.0, 4)):
            found = nullspace(reader, energy=energy)
            assert found.rank == rank
            assert found.energy == pytest.approx(sum(squares[:rank]) / 14.25)
            assert found.energy >= energy - 1e-15
            assert found.exact == (rank == 4)
        by_rank = nullspace(reader, rank=3)
        assert not by_rank.exact
        assert "effective, dimension 1 of 4" in repr(by_rank)
        assert "0.9825 of the squared singular values, the exact rank is 4" in repr(by_rank)
        assert torch.equal(by_rank.project(torch.tensor([1.0, 1, 1, 1])).round(decimals=9), torch.eye(4).double()[3])

    def test_asking_for_more_than_there_is_stays_exact(self):
        found = nullspace(reader_of(planted(6, 10, 3)), rank=8)
        assert (found.rank, found.exact, found.energy) == (3, True, 1.0)

    def test_ones_under_layer_norm_leave_nothing_but_roundings(self):
        """A row of equal numbers behind a gain of ones reads nothing at all; its roundings are no direction."""
        norm = norm_of(7, centred=True)
        found = nullspace(reader_of((1 / norm.gain)[None] * 0.1, norm))
        assert found.dimension == 7

    def test_ranks_are_two_things(self):
        assert effective_rank(torch.ones(5)) == pytest.approx(5)
        assert effective_rank(torch.tensor([1.0, 0.0, 0.0])) == pytest.approx(1)
        # shares 1/2, 1/4, 1/4: entropy 1.5 ln 2
        assert effective_rank(torch.tensor([2.0, 1.0, 1.0])) == pytest.approx(2**1.5)
        found = nullspace(reader_of(torch.diag(torch.tensor([1.0, 1e-6]))))
        assert found.numerical_rank == 2
        assert found.effective_rank == pytest.approx(1, abs=1e-4)

    @pytest.mark.parametrize("condition", [1e2, 1e6, 1e9])
    def test_a_tall_matrix_keeps_its_small_singular_values(self, condition):
        sizes = torch.logspace(0, -math.log10(condition), 12, dtype=torch.float64)
        tall = torch.linalg.qr(random(20000, 12)).Q * sizes @ torch.linalg.qr(random(12, 12, seed=3)).Q
        found, rows = spectrum(tall, 1e-10)
        assert ((found - sizes) / sizes).abs().max() < 1e-13 * condition
        assert len(rows) == 12
        u = random(12, seed=5)
        assert float((compact(tall) @ u).norm()) == pytest.approx(float((tall @ u).norm()), rel=1e-12)


def test_the_number_of_threads_is_what_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        nullspace(reader_of(random(3, 8)))
        assert torch.get_num_threads() == 2
        with one_thread():
            assert torch.get_num_threads() == 1
        with pytest.raises(torch.linalg.LinAlgError), one_thread():
            torch.linalg.cholesky(-torch.eye(2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"energy": 0.5, "rank": 2}, "stated by its energy or by its rank, not by both"),
        ({"energy": 0.0}, "energy is a share of the squared singular values, 0 < energy <= 1; got 0.0."),
        ({"energy": 1.5}, "0 < energy <= 1; got 1.5."),
        ({"rank": 9}, "rank is between 0 and d_model, 8; got 9."),
    ],
)
def test_what_cannot_be_asked(options, text):
    with pytest.raises(InputError, match=text):
        nullspace(reader_of(random(3, 8)), **options)


def test_other_widths_and_unknown_norms_are_refused():
    norm = norm_of(8, centred=False)
    with pytest.raises(InputError, match=r"A point of the stream is a vector of 8 numbers; got shape \(7,\)."):
        nullspace(reader_of(random(3, 8), norm), at=torch.ones(7))
    with pytest.raises(InputError, match="lies among vectors of 8 numbers; got 5"):
        nullspace(reader_of(random(3, 8))).project(torch.ones(2, 5))
    with pytest.raises(InputError, match="reads through the final norm, and nothing says which"):
        nullspace(Reader.direction(torch.ones(8), norm="final"))


class TestOverlap:
    def test_known_angles(self):
        """Planes that share one axis and meet at 60 degrees otherwise."""
        a = torch.eye(4, dtype=torch.float64)[:2]
        b = torch.stack([a[0], torch.tensor([0.0, 0.5, math.sqrt(0.75), 0.0], dtype=torch.float64)])
        found = overlap(reader_of(a), reader_of(3 * b))
        assert found.angles.tolist() == pytest.approx([0, 60])
        assert found.total == pytest.approx(1.25)
        assert (found.chance, found.lift) == (1.0, pytest.approx(1.25))
        frame = found.to_frame()
        assert frame["squared"].sum() == pytest.approx(1.25)
        assert frame.attrs["chance"] == 1.0

    def test_the_extremes(self):
        axes = torch.eye(6, dtype=torch.float64)
        assert overlap(reader_of(axes[:2]), reader_of(axes[2:5])).total == pytest.approx(0)
        assert overlap(reader_of(axes[:2]), reader_of(random(9, 6))).total == pytest.approx(2)  # full rank holds it

    @given(st.integers(1, 10), st.integers(1, 10), st.integers(0, 99))
    def test_it_is_symmetric_and_bounded(self, a, b, seed):
        one, two = reader_of(planted(a, 12, a, seed=seed)), reader_of(planted(b, 12, b, seed=seed + 50))
        there, back = overlap(one, two), overlap(two, one)
        assert there.total == pytest.approx(back.total, abs=1e-12)
        assert -1e-12 < there.total < min(a, b) + 1e-12

    def test_random_subspaces_have_the_chance_overlap(self):
        """Both the drawn reference and readers of random matrices, within three standard errors."""
        a, b, d_model = 5, 9, 30
        found = [
            overlap(reader_of(random(a, d_model, seed=s)), reader_of(random(b, d_model, seed=s + 500)))
            for s in range(80)
        ]
        totals = torch.tensor([one.total for one in found])
        assert abs(totals.mean() - a * b / d_model) < 3 * totals.std() / math.sqrt(len(totals))
        drawn = found[0].random
        assert abs(drawn.mean() - found[0].chance) < 3 * found[0].spread / math.sqrt(len(drawn))
        assert 0.5 < found[0].spread / float(totals.std()) < 2
        assert torch.equal(
            drawn, overlap(reader_of(random(a, d_model)), reader_of(random(b, d_model, seed=500))).random
        )

    def test_readers_of_different_widths(self):
        with pytest.raises(InputError, match="these are 8 and 9 wide"):
            overlap(reader_of(random(2, 8)), reader_of(random(2, 9)))
