"""Frames: the committed schema, sums over rows, padding left out, and a round trip through Parquet."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

import streamlens
import zoo
from streamlens import Reader, decompose, logit_lens, read
from streamlens.frames import SCHEMAS

#: three prompts of 7, 3 and 5 tokens, padded on the left; the last repeats one token
IDS = torch.tensor(
    [[11, 12, 13, 14, 15, 16, 17], [0, 0, 0, 0, 21, 22, 23], [0, 0, 31, 31, 31, 31, 31]], dtype=torch.long
)
MASK = torch.tensor([[1] * 7, [0] * 4 + [1] * 3, [0] * 2 + [1] * 5])


@cache
def handle():
    return streamlens.load(zoo.build("gemma2"))


@cache
def ledger():
    return decompose(handle(), IDS, attention_mask=MASK)


@cache
def readout():
    return read(ledger(), Reader.logits(handle(), [17, 42]))


@cache
def frame_of(schema):
    if schema == "writes":
        return ledger().to_frame()
    return readout().to_frame() if schema == "readout" else logit_lens(ledger(), handle(), top=3).to_frame()


NAMES = ["writes", "readout", "lens"]


@pytest.mark.parametrize("name", NAMES)
class TestEveryFrame:
    def test_it_has_the_committed_schema_and_nothing_else(self, name):
        frame = frame_of(name)
        assert {column: str(dtype) for column, dtype in frame.dtypes.items()} == {
            column: dtype for column, (dtype, _) in SCHEMAS[name].items()
        }
        assert list(frame.columns) == list(SCHEMAS[name])
        assert list(frame.index) == list(range(len(frame)))

    def test_every_column_is_explained(self, name):
        assert all(meaning for _, meaning in SCHEMAS[name].values())

    def test_nothing_is_missing_but_the_layer_of_what_has_none(self, name):
        frame = frame_of(name)
        assert not frame.drop(columns="layer").isna().any().any()
        assert set(frame.loc[frame["layer"].isna(), "component"]) <= {"embed", "rounding", "softcap"}
        assert frame["layer"].dropna().between(0, 2).all()

    def test_padding_is_absent_and_positions_count_within_the_prompt(self, name):
        tokens = frame_of(name)[["prompt_id", "position", "token_id"]].drop_duplicates()
        assert tokens.groupby("prompt_id")["position"].apply(list).to_dict() == {
            0: [0, 1, 2, 3, 4, 5, 6],
            1: [0, 1, 2],
            2: [0, 1, 2, 3, 4],
        }
        assert tokens.groupby("prompt_id")["token_id"].apply(list).to_dict() == {
            0: [11, 12, 13, 14, 15, 16, 17],
            1: [21, 22, 23],
            2: [31] * 5,
        }

    def test_tokens_that_repeat_stay_apart(self, name):
        repeated = frame_of(name).query("prompt_id == 2")
        assert set(repeated["token"]) == {"⟨31⟩"}
        per_position = repeated.groupby("position").size()
        assert list(per_position.index) == [0, 1, 2, 3, 4]
        assert per_position.nunique() == 1

    def test_components_are_ordered_as_in_the_stream(self, name):
        frame = frame_of(name)
        labels = readout().labels if name == "readout" else [*ledger().labels, "rounding"]
        categories = list(frame["component"].cat.categories)
        assert frame["component"].cat.ordered
        assert categories == list(labels)[: len(categories)]
        assert (frame["component"].cat.codes == frame["order"]).all()
        first = frame[(frame["prompt_id"] == 0) & (frame["position"] == 0)]
        assert first["order"].is_monotonic_increasing or name == "readout"

    def test_it_survives_parquet(self, name, tmp_path):
        frame = frame_of(name)
        frame.to_parquet(tmp_path / "frame.parquet")
        back = pd.read_parquet(tmp_path / "frame.parquet")
        pd.testing.assert_frame_equal(back, frame)
        assert back["component"].cat.ordered
        assert back.attrs == frame.attrs

    def test_attrs_say_what_holds_for_the_whole(self, name):
        attrs = frame_of(name).attrs
        assert attrs["in_order"] == 0.0
        assert 0 < attrs["closure"] < 1e-6
        assert len(attrs["prompts"]) == 3
        assert {"model", "revision", "origin", "device", "dtype", "bos", "streamlens", "torch", "transformers"} <= set(
            attrs
        )


def by_token(frame, column):
    return frame.groupby(["prompt_id", "position"])[column].sum().to_numpy()


class TestWrites:
    def test_one_row_for_each_write_and_the_rounding(self):
        frame = frame_of("writes")
        assert len(frame) == (7 + 3 + 5) * 8
        assert list(frame["component"].cat.categories) == [*ledger().labels, "rounding"]
        assert list(frame["kind"].cat.categories) == ["embed", "attn", "mlp", "rounding"]

    def test_shares_sum_to_one(self):
        np.testing.assert_allclose(by_token(frame_of("writes"), "share"), 1.0, atol=1e-5)

    def test_without_the_rounding_row_they_would_in_bfloat16_not(self):
        handle = streamlens.load(zoo.build("gpt2", torch.bfloat16))
        frame = decompose(handle, IDS[:1]).to_frame()
        np.testing.assert_allclose(by_token(frame, "share"), 1.0, atol=1e-5)
        assert np.abs(by_token(frame[frame["kind"] != "rounding"], "share") - 1).max() > 1e-4

    def test_numbers_are_those_of_the_ledger(self):
        frame, book = frame_of("writes"), ledger()
        row = frame[(frame["prompt_id"] == 1) & (frame["position"] == 2) & (frame["component"] == "L1.attn")]
        write, stream = book.writes[book.labels.index("L1.attn"), 1, -1], book.stream[1, -1]
        assert row["norm"].item() == pytest.approx(float(write.norm()), rel=1e-6)
        assert row["share"].item() == pytest.approx(float(write @ stream / stream.square().sum()), rel=1e-5)
        assert row["cosine"].item() == pytest.approx(float(write @ stream / write.norm() / stream.norm()), rel=1e-5)
        assert row["stream_norm"].item() == pytest.approx(float(book.at("L1.attn").stream[1, -1].norm()), rel=1e-6)
        assert (row["layer"].item(), row["kind"].item(), row["order"].item()) == (1, "attn", 3)

    def test_cosines_lie_between_minus_one_and_one(self):
        assert frame_of("writes")["cosine"].between(-1.000001, 1.000001).all()

    def test_a_cut_ledger_has_its_own_frame(self):
        frame = ledger().at("L0.attn").to_frame()
        assert list(frame["component"].cat.categories) == ["embed", "L0.attn", "rounding"]
        np.testing.assert_allclose(by_token(frame, "share"), 1.0, atol=1e-5)


class TestReadout:
    def test_contributions_sum_to_the_models_own_value(self):
        frame = frame_of("readout")
        sums = frame.groupby(["prompt_id", "position", "reader"], observed=True)["contribution"].sum()
        logits = ledger().logits[ledger().mask][:, [17, 42]].double().numpy()
        np.testing.assert_allclose(sums.to_numpy().reshape(-1, 2), logits, atol=2e-5)

    def test_readers_are_ordered_as_they_were_given(self):
        frame = frame_of("readout")
        assert list(frame["reader"].cat.categories) == ["logit(⟨17⟩)", "logit(⟨42⟩)"]
        assert frame["reader"].cat.ordered
        assert set(frame["unit"]) == {"logits"}

    def test_the_closing_rows_have_kinds_of_their_own(self):
        assert list(frame_of("readout")["kind"].cat.categories)[-2:] == ["rounding", "softcap"]

    def test_attrs_name_the_reader(self):
        attrs = frame_of("readout").attrs
        assert (attrs["reader"], attrs["unit"]) == ("logit(⟨17⟩), logit(⟨42⟩)", "logits")
        assert 0 < attrs["readout_closure"] < 1e-5


class TestLens:
    def test_one_row_for_each_write_and_rank(self):
        frame = frame_of("lens")
        assert len(frame) == (7 + 3 + 5) * 7 * 3
        assert frame["rank"].isin([0, 1, 2]).all()

    def test_ranks_go_down(self):
        wide = frame_of("lens").pivot_table(
            index=["prompt_id", "position", "order"], columns="rank", values="logit", observed=True
        )
        assert (wide[0] >= wide[1]).all()
        assert (wide[1] >= wide[2]).all()

    def test_the_last_row_is_the_models_prediction(self):
        frame = frame_of("lens")
        last = frame[(frame["component"] == "L2.mlp") & (frame["rank"] == 0)]
        best = ledger().logits[ledger().mask].argmax(-1)
        assert last["top_token_id"].tolist() == best.tolist()
        assert last["top_token"].tolist() == [f"⟨{i}⟩" for i in best.tolist()]
