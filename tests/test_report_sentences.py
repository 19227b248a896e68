"""Each sentence of a report says what its frame holds, worked out by hand on frames of a few rows."""

import pandas as pd
import pytest

from streamlens.report import sentences

ORDER = ["embed", "L0.attn", "L0.mlp", "L1.attn"]


def rows(**columns) -> pd.DataFrame:
    n = len(next(iter(columns.values())))
    return pd.DataFrame({"component": ORDER[:n], "order": range(n), "kind": "attn", **columns})


LIMITS = {"in_order": 0.0, "relative": 1e-5, "readout": 1e-4, "effect": 1e-4}
CLOSED = {"in_order": 0.0, "relative": 1e-7, "readout": 5e-6, "effect": None, "limits": LIMITS}
OK = {"name": "logits from their parts", "ok": True}


class TestAddsUp:
    def test_what_closes_is_said_with_its_numbers(self):
        verdict, *figures = sentences.adds_up(CLOSED, [OK], "logits")
        assert verdict == "It adds up."
        assert figures[0].endswith("give the stream bit for bit.")
        assert "1.0e-07 of its size" in figures[1]
        assert "within 5.0e-06 logits" in figures[2]
        assert len(figures) == 3  # nothing was ablated

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"in_order": 1e-3}, "the writes re-added in the model's order"),
            ({"relative": 1e-2}, "the sum of the writes"),
            ({"readout": 0.5}, "the contributions"),
            ({"effect": 0.5}, "the effects of the ablations"),
        ],
    )
    def test_each_number_that_is_too_large_is_named(self, change, said):
        verdict = sentences.adds_up({**CLOSED, **change}, [OK], "logits")[0]
        assert verdict == f"It does not add up: {said}."

    def test_a_check_that_failed_is_named(self):
        verdict = sentences.adds_up(CLOSED, [{"name": "the stream after every block", "ok": False}], "logits")[0]
        assert verdict == "It does not add up: the stream after every block."

    def test_a_model_that_no_order_of_additions_fits_may_be_off_in_order(self):
        closure = {**CLOSED, "in_order": 1e-6, "limits": {**LIMITS, "in_order": None}}
        assert sentences.adds_up(closure, [], "logits")[0] == "It adds up."


def test_contributors_are_the_largest_by_size_and_both_signs_are_summed() -> None:
    said = sentences.contributors(rows(contribution=[0.5, -2.0, 1.0, 0.25]), "logit(·a)", "logits")
    assert "logit(·a) is −0.250 logits, the sum of 4 parts: +1.750 from those that add and −2.000" in said
    assert said.endswith("The largest are L0.attn (−2.000), L0.mlp (+1.000) and embed (+0.500).")


class TestFavours:
    def test_two_tokens_part_where_the_sign_stays(self):
        said = sentences.favours(rows(after=[1.0, -1.0, 0.5, 2.0]), [" river", " money"], "x")
        assert said.startswith("From L0.mlp on the stream favours “·river” over “·money”")

    def test_a_negative_end_favours_the_other(self):
        said = sentences.favours(rows(after=[1.0, -1.0, -0.5, -2.0]), [" river", " money"], "x")
        assert said.startswith("From L0.attn on the stream favours “·money” over “·river”")

    def test_no_change_of_sign_holds_from_the_first_write(self):
        said = sentences.favours(rows(after=[1.0, 1.0, 0.5, 2.0]), [], "the probe")
        assert said == "From the first write on the probe stays positive."


class TestLens:
    def test_first_and_for_good_are_told_apart(self):
        frame = rows(top_token=[" of", " and", " and", " of"], probability=[0.1, 0.2, 0.3, 0.4], rank=0)
        said = sentences.lens_settles(frame)
        assert said.startswith("The model's next token is “·of” (40%).")
        assert said.endswith("likeliest first after embed and stays so from L1.attn on.")

    def test_other_ranks_do_not_count(self):
        best = rows(top_token=[" and", " of", " of", " of"], probability=[0.4, 0.4, 0.4, 0.4], rank=0)
        second = rows(top_token=[" of", " x", " x", " x"], probability=[0.1, 0.1, 0.1, 0.1], rank=1)
        said = sentences.lens_settles(pd.concat([second, best]))
        assert said.endswith("likeliest first after L0.attn and stays so.")


def test_growth_names_what_lengthens_most_and_leaves_roundings_out() -> None:
    frame = rows(stream_norm=[2.0, 3.0, 30.0, 30.0])
    frame["kind"] = ["embed", "attn", "mlp", "rounding"]
    said = sentences.growth(frame, "·bank (position 9)")
    assert "from 2 after embed to 30 after L0.mlp" in said
    assert said.endswith("L0.mlp lengthens it most, by 27.")


def effects(**changed) -> pd.DataFrame:
    base = {
        "variant": ["L0.attn@9", "L0.mlp@9"],
        "reader": "r",
        "direct": [0.42, 0.1],
        "indirect": [-4.29, 0.2],
        "total": [-3.89, 0.3],
        "clean": 3.742,
        "kl": [0.1, 2.0],
        "top_before": " of",
        "top_after": [" of", ","],
    }
    return pd.DataFrame({**base, **changed})


CHANGES = pd.DataFrame(
    {
        "variant": ["L0.attn@9"] * 3 + ["L0.mlp@9"] * 3,
        "component": ["L0.attn", "L0.mlp", "L1.attn"] * 2,
        "status": ["edit", "response", "response", "unchanged", "edit", "response"],
        "delta: r": [9.0, -1.5, 0.5, 0.0, 9.0, 0.2],
        "delta_norm": [9.0, 1.5, 0.5, 0.0, 9.0, 3.0],
    }
)


class TestSwitched:
    def test_subtracting_is_set_against_rerunning(self):
        said = sentences.switched(effects().iloc[0], "logits")
        assert said == "Subtracting L0.attn@9 predicts +0.420 logits; rerunning the model gives −3.890."

    def test_an_edit_that_is_no_zeroing_is_no_subtraction(self):
        row = effects(variant=["L0.attn=0.5", "x"]).iloc[0]
        assert sentences.switched(row, "logits").startswith("Changing L0.attn=0.5 alone predicts")

    def test_without_a_reader_it_is_about_the_output(self):
        first, second = (effects(reader="").iloc[n] for n in (0, 1))
        assert sentences.switched(first, "").startswith("Without L0.attn@9 the likeliest next token stays “·of”;")
        assert "turns from “·of” to “,”; KL(clean, ablated) is 2.000 nats" in sentences.switched(second, "")

    def test_a_hostile_token_is_legible(self):
        row = effects(reader="", top_after=["\u202ex", "y"]).iloc[0]
        assert "“⟨U+202E⟩x”" in sentences.switched(row, "")


class TestStrongest:
    def test_it_is_the_largest_by_size_with_its_largest_response(self):
        said = sentences.strongest(effects(), CHANGES, "logits")
        assert said.startswith("Of 2 sublayers, L0.attn@9 changes most.")
        assert "The strongest response is L0.mlp's: −1.500 logits." in said  # the edit itself, 9.0, is none
        assert said.endswith("In 1 of 2 ablations the responses work against the direct effect.")

    def test_without_a_reader_it_is_by_divergence(self):
        said = sentences.strongest(effects(reader=""), CHANGES, "")
        assert said.startswith("Of 2 sublayers, L0.mlp@9 changes most.")
        assert "L1.attn's: a change of norm 3." in said


def test_attention_is_summed_over_heads_before_the_largest_token_is_named() -> None:
    frame = pd.DataFrame(
        {
            "component": ["L0H0<0", "L0H0<1", "L0H1<1"],
            "source": [0, 1, 1],
            "source_token": ["After", " river", " river"],
            "attention": [0.5, 0.4, 0.3],
            "contribution": [1.0, 0.75, 0.75],
        }
    )
    said = sentences.read_where(frame, "logits")
    assert "most came from “·river” (position 1): +1.500 logits" in said
    assert "L0H0's from “After” (position 0), +1.000 at attention 0.50" in said


def test_visible_writes_are_those_above_a_random_vector() -> None:
    said = sentences.visible_writes(rows(lift=[0.5, 3.0, float("nan"), 2.0], chance=0.002))
    assert "sees 0.20% of a random vector, and more than that of 2 of 3 writes" in said
    assert "most of L0.attn (×3.0), L1.attn (×2.0) and embed (×0.5)" in said


def test_headline_is_the_value_with_all_branches_on() -> None:
    assert sentences.headline(effects(), "x", "logits") == "With every branch on, x is +3.742 logits."
    assert sentences.headline(effects(reader=""), "", "").endswith("the likeliest next token is “·of”.")
