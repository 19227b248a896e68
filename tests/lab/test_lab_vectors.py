"""Two branches, the zero branch, the corrected image, one attention head, position and context: done in the head."""

import math

import pytest
import torch

from closeness import assert_close
from streamlens import Reader, paths, sweep
from streamlens.lab import attention_by_hand, image_correction, position_context, two_branches, zero_branch


class TestTwoBranches:
    """(2, 1): branch one adds (0, u), branch two adds (-v, 0)."""

    def test_the_four_settings(self) -> None:
        both, first, second, neither = two_branches.outcomes()
        # (2, 1) + (0, 2) = (2, 3); then -v = -3
        assert both.end.tolist() == [-1.0, 3.0]
        assert both.ledger.writes[:, 0, 0].tolist() == [[2.0, 1.0], [0.0, 2.0], [-3.0, 0.0]]
        assert first.end.tolist() == [2.0, 3.0]
        # without branch one v is 1: (2, 1) + (-1, 0)
        assert second.end.tolist() == [1.0, 1.0]
        assert neither.end.tolist() == [2.0, 1.0]

    def test_subtracting_is_not_rerunning(self) -> None:
        both, first, second, neither = two_branches.outcomes()
        # (-1, 3) - (0, 2) = (-1, 1); rerunning gave (1, 1)
        assert second.subtracted.tolist() == [-1.0, 1.0]
        # nothing comes after branch two
        assert first.subtracted.tolist() == [2.0, 3.0]
        assert both.subtracted.tolist() == [-1.0, 3.0]
        assert neither.subtracted.tolist() == [2.0, 1.0]

    def test_another_start(self) -> None:
        # (1, -2) -> (1, -1) -> (2, -1); without branch one (1, -2) + (2, 0) = (3, -2)
        both, _, second, _ = two_branches.outcomes(two_branches.network((1.0, -2.0)))
        assert both.end.tolist() == [2.0, -1.0]
        assert second.end.tolist() == [3.0, -2.0]

    @pytest.mark.parametrize(
        ("coordinate", "branches", "start"),
        [
            # x = u - (v + u) = -v: direct (1, 0), branch two -(e2) = (0, -1), branch one e2 -> e1: (-1, 0)
            (0, [[-1.0, 0.0], [0.0, -1.0]], [0.0, -1.0]),
            # y = v + u: direct (0, 1), branch two nothing, branch one (1, 0)
            (1, [[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0]),
        ],
    )
    def test_the_way_back(self, coordinate: int, branches: list, start: list) -> None:
        back = two_branches.way_back(coordinate=coordinate)
        assert back.branch.tolist() == branches
        assert back.gradients[0].tolist() == start
        assert back.closure == 0.0

    def test_the_product_takes_the_network(self) -> None:
        model, reader = two_branches.network(), Reader.direction([1.0, 0.0])
        # without one, branch two writes -1 instead of -3; without two, -3 is gone
        swept = sweep(model, two_branches.PROMPT, readers=reader)
        assert swept.responses().to_numpy().tolist() == [[0.0, 0.0, 2.0], [0.0, 0.0, 3.0]]
        # by length: (1, 0) past both; (0, -1) through two; two and then one, (-1, 0)
        found = paths(model, two_branches.PROMPT, reader).families["all"]
        assert found.vectors[:, 0].tolist() == [[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]]
        assert found.counts == (1, 2, 1)


class TestZeroBranch:
    def test_nothing_written_is_nothing_lost_only_with_a_skip(self) -> None:
        kept, lost = zero_branch.stack(0.0), zero_branch.stack(0.0, residual=False)
        assert kept["states"][-1].tolist() == [3.0, -1.0, 2.0, 0.5]
        assert lost["states"][-1].tolist() == [0.0] * 4
        assert kept["gradients"][0].tolist() == [1.0] * 4
        assert lost["gradients"][0].tolist() == [0.0] * 4

    def test_half_a_branch(self) -> None:
        # three blocks of 3/2, and of 1/2
        assert zero_branch.stack(0.5, start=(8.0,), depth=3)["states"].tolist() == [[8.0], [12.0], [18.0], [27.0]]
        plain = zero_branch.stack(0.5, start=(8.0,), depth=3, residual=False)
        assert plain["states"].tolist() == [[8.0], [4.0], [2.0], [1.0]]
        assert plain["gradients"].tolist() == [[0.125], [0.25], [0.5], [1.0]]


class TestImageCorrection:
    def test_three_pixels(self) -> None:
        ledger = image_correction.correct()
        assert ledger.stream[0, 0].tolist() == pytest.approx([0.9, 0.1, 0.1], abs=1e-15)
        assert ledger.writes[1, 0, 0].tolist() == [0.512, -0.441, 0.0]

    def test_blurring_is_a_mean_of_nine(self) -> None:
        blurred, sharp = image_correction.images(5, count=3)
        inner = torch.stack([sharp[..., i : i + 6, j : j + 6] for i in range(3) for j in range(3)]).mean(0)
        assert_close(blurred[..., 1:-1, 1:-1], inner)

    def test_the_branch_learns_the_difference(self, example) -> None:
        table = example("image_correction").table.set_index("net")
        correction, image = table.loc["predicts the correction"], table.loc["predicts the image"]
        assert correction["error after"] < image["error after"]
        assert correction["cosine of F with sharp - blurred"] > correction["cosine of F with sharp"] + 0.1
        assert image["cosine of F with sharp"] > image["cosine of F with sharp - blurred"] + 0.3


class TestAttention:
    def test_scores_weights_values_write(self) -> None:
        x, head = attention_by_hand.sentence()
        # q = (0, sqrt 2 ln 2) at " bank", keys' second coordinates 1, 2, 1, over sqrt 2
        assert (head.scores[2] / math.log(2)).tolist() == pytest.approx([1.0, 2.0, 1.0])
        assert head.weights[2].tolist() == pytest.approx([0.25, 0.5, 0.25])  # 2, 4, 2 of 8
        assert head.values.tolist() == [[-1.0, 0.0], [-2.0, 3.0], [-1.0, 2.0]]  # (a, b) -> (-b, a)
        # (-1/4 - 1 - 1/4, 0 + 3/2 + 1/2)
        assert head.writes[2].sum(0).tolist() == pytest.approx([-1.5, 2.0])
        assert (x[2] + head.writes[2].sum(0)).tolist() == pytest.approx([0.5, 3.0])

    def test_it_is_causal(self) -> None:
        _, head = attention_by_hand.sentence()
        assert head.weights[0].tolist() == [1.0, 0.0, 0.0]
        # " river" asks twice as loud: 2 ln 2 times 1, 2: 4 and 16 of 20
        assert head.weights[1].tolist() == pytest.approx([0.2, 0.8, 0.0])

    def test_a_row_a_source(self) -> None:
        ledger = attention_by_hand.ledger()
        assert ledger.labels == ("embed", "L0H0<0", "L0H0<1", "L0H0<2")
        assert ledger.writes[1:, 0, 2].tolist() == [
            pytest.approx(row) for row in ([-0.25, 0.0], [-1.0, 1.5], [-0.25, 0.5])
        ]
        assert ledger.attention is not None
        assert ledger.attention[1:, 0, 2].tolist() == pytest.approx([0.25, 0.5, 0.25])
        assert ledger.source_text(ledger.sites[2], 0) == " river"

    def test_hiding_a_word_is_not_taking_its_row_out(self) -> None:
        x, head = attention_by_hand.sentence()
        hidden = attention_by_hand.head(x, hide=1)
        assert hidden.weights[2].tolist() == pytest.approx([0.5, 0.0, 0.5])
        assert hidden.weights[1].tolist() == pytest.approx([0.2, 0.8, 0.0])  # a word still reads itself
        assert (x[2] + hidden.writes[2].sum(0)).tolist() == pytest.approx([1.0, 2.0])
        assert (x[2] + head.writes[2].sum(0) - head.writes[2, 1]).tolist() == pytest.approx([1.5, 1.5])


class TestPositionAndContext:
    def test_two_rows_in_common_and_one_that_differs(self) -> None:
        ledger = position_context.ledger()
        at_bank = ledger.writes[:, :, 2]
        assert at_bank[0].tolist() == [[1.0, 2.0], [1.0, 2.0]]
        assert at_bank[1].tolist() == [[1.0, -1.0], [1.0, -1.0]]
        # values of the word before: (3, 2) -> (-2, 3), (-1, 2) -> (-2, -1)
        assert at_bank[2].tolist() == [pytest.approx([-1.5, 2.0]), pytest.approx([-1.5, 0.0])]
        assert ledger.stream[:, 2].tolist() == [pytest.approx([0.5, 3.0]), pytest.approx([0.5, 1.0])]

    def test_the_same_sentence_twice_differs_nowhere(self) -> None:
        twice = position_context.ledger([position_context.SENTENCES[0]] * 2)
        assert torch.equal(twice.writes[:, 0], twice.writes[:, 1])

    def test_a_ledger_of_one_of_the_sentences(self) -> None:
        second = position_context.ledger().prompt(slice(1, 2))
        assert second.prompts == ("The savings bank",)
        assert second.stream[0, 2].tolist() == pytest.approx([0.5, 1.0])
