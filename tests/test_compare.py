"""The ledger of a difference: it sums, to the streams' difference and to every reader's; and swapping makes it real."""

import pytest
import torch

import streamlens
import zoo
from closeness import assert_close
from model_state import state_of
from streamlens import Edit, Reader, decompose, read, sweep
from streamlens.errors import InputError
from streamlens.experiments.compare import compare, swap
from streamlens.frames import SCHEMAS
from streamlens.frames.schemas import PARTS
from streamlens.readouts.comparison import compare_ledgers

RIVER = "After crossing the river, she rested on the bank"
MONEY = "After cashing the check, she waited at the bank"
DIFFERENCE = "difference: logit(·river) - logit(·money)"

#: one of each wiring: plain, parallel, post-norm with constants, multipliers, softcap, summed then multiplied, mixers
TINY = ["llama", "gpt_neox", "openai-gpt", "opt:post-norm", "granite", "gemma2", "granitemoeshared", "jamba", "rwkv"]
A, B = torch.tensor([[7, 30, 12, 50, 44]]), torch.tensor([[9, 21, 33, 60, 15, 44, 8]])
AT = (4, 5)  # token 44 in both


def tiny(name: str, dtype: torch.dtype = torch.float32):
    return streamlens.load(zoo.build(name, dtype))


def readers_of(model) -> list[Reader]:
    vector = torch.randn(32, generator=torch.Generator().manual_seed(2))
    return [Reader.logits(model, [5, 7]), Reader.logit_diff(model, 5, 7), Reader.direction(vector)]


@pytest.fixture(scope="module")
def banks(default_model):
    reader = Reader.logit_diff(default_model, " river", " money")
    return compare(default_model, RIVER, MONEY, token=" bank", readers=reader)


@pytest.mark.model
class TestTheBanks:
    """The worked example: 3.742 - -6.249, measured by separate runs."""

    def test_the_known_values(self, banks):
        effects = banks.effects()
        assert list(effects.columns) == list(SCHEMAS["comparison_effects"])
        row = effects.iloc[0]
        assert (row.a, row.b) == (pytest.approx(3.742, abs=5e-4), pytest.approx(-6.249, abs=5e-4))
        assert row.writes + row.rounding + row.rescale == pytest.approx(row.observed, abs=1e-4)
        assert row.closure < 1e-4

    def test_the_frame(self, banks):
        frame = banks.to_frame()
        assert list(frame.columns) == [*SCHEMAS["comparison"], DIFFERENCE]
        assert {c: str(t) for c, t in frame.dtypes.items() if c != DIFFERENCE} == {
            column: kind for column, (kind, _) in SCHEMAS["comparison"].items()
        }
        assert len(frame) == 61 + 3
        assert frame["share"].sum() == pytest.approx(1, abs=1e-5)
        assert frame[DIFFERENCE].sum() == pytest.approx(3.742 + 6.249, abs=2e-3)
        assert frame["token"].unique().tolist() == frame["token_b"].unique().tolist() == [" bank"]
        assert frame.loc[frame["component"] == "embed", "norm"].item() == 0  # the same token
        assert frame.attrs["prompts"] == [RIVER, MONEY]

    def test_what_separates_them(self, banks):
        frame = banks.to_frame().set_index("component")
        largest = frame[DIFFERENCE].abs().nlargest(4).index.tolist()
        assert largest == ["L29.mlp", "L27.attn", "L23.mlp", "L26.mlp"]
        assert frame.loc[largest, DIFFERENCE].tolist() == pytest.approx([3.33, 1.86, 1.76, 1.16], abs=5e-3)
        assert banks.headline(top=2) == (
            "logit(·river) - logit(·money): 3.74 - -6.25 = 9.99 logits. Most by L29.mlp +3.33, L27.attn +1.86; "
            f"rescale -0.24; closing error {float(banks.readings[0].closure):.1e}."
        )

    def test_heads_sum_to_their_sublayer(self, default_model, banks):
        fine = compare(default_model, RIVER, MONEY, token=" bank", readers=banks.readers, level="head")
        frame = fine.to_frame()
        assert list(frame.columns) == [*SCHEMAS["comparison"], *PARTS, DIFFERENCE]
        heads = frame[frame["head"].notna() & (frame["layer"] == 27)]
        whole = banks.to_frame().set_index("component").loc["L27.attn", DIFFERENCE]
        assert len(heads) == 9
        assert heads[DIFFERENCE].sum() == pytest.approx(whole, abs=1e-4)
        assert heads.set_index("component")[DIFFERENCE].idxmax() == "L27H1"

    def test_a_swap_is_a_resampling(self, default_model, banks):
        """Swapping takes all values in one run; resampling each write by itself gives the same numbers."""
        made = swap(default_model, RIVER, MONEY, token=" bank", readers=banks.readers).effects().set_index("variant")
        labels = ["L1.attn", "L6.mlp", "L27.attn", "L29.mlp"]
        edits = [Edit(label, "resample", " bank", prompts=MONEY) for label in labels]
        slow = sweep(default_model, RIVER, over=edits, position=" bank", readers=banks.readers).effects()
        for label, (_, row) in zip(labels, slow.iterrows(), strict=True):
            assert made.loc[f"{label}@bank=resample", "total"] == pytest.approx(row["total"], abs=1e-4)

    def test_which_single_write_carries_the_sense_over(self, default_model, banks):
        made = swap(default_model, RIVER, MONEY, token=" bank", readers=banks.readers).effects().set_index("variant")
        assert made["closure"].max() < 1e-3
        assert made.loc["embed@bank=resample", "total"] == 0
        largest = made["total"].nsmallest(3)
        assert largest.index.tolist() == [f"{w}@bank=resample" for w in ("L27.attn", "L29.mlp", "L6.mlp")]
        assert largest.tolist() == pytest.approx([-3.36, -3.34, -2.74], abs=5e-3)
        heads = swap(default_model, RIVER, MONEY, token=" bank", over="heads", readers=banks.readers).effects()
        assert len(heads) == 270
        assert heads.set_index("variant")["total"].idxmin() == "L27H1@bank=resample"

    def test_misaligned_prompts_are_refused_with_both_lists(self, default_model):
        with pytest.raises(InputError) as caught:
            compare(default_model, RIVER, "She waited at the shore", token=" bank")
        assert "' bank' is not among the tokens" in str(caught.value)
        assert "A: 0:'After' 1:' crossing'" in str(caught.value)
        assert "B: 0:'She' 1:' waited'" in str(caught.value)
        with pytest.raises(InputError, match=r"position 5 is ' she' in A and ' waited' in B"):
            swap(default_model, RIVER, "She sat down and she waited", token=5)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("scale", ["a", "b", "mean"])
def test_the_parts_sum_to_the_models_own_difference(name: str, scale: str) -> None:
    model = tiny(name)
    readers = readers_of(model)
    made = compare(model, A, B, token=AT, readers=readers, scale=scale)
    assert_close(made.differences.sum(0), made.stream, like=torch.float64)
    assert float(made.share.sum()) == pytest.approx(1, abs=1e-9)
    a, b = decompose(model, A, positions=4), decompose(model, B, positions=5)
    for reader, reading in zip(readers, made.readings, strict=True):
        own = read(a, reader).observed, read(b, reader).observed
        assert own[0] is not None
        assert own[1] is not None
        assert_close(reading.total, (own[0] - own[1])[0, 0], like=torch.float32)
        assert float(reading.closure.max()) < 1e-4
    effects = made.effects()
    assert effects["writes"].abs().min() > 0
    if name != "gemma2":
        assert not effects["softcap"].any()
    assert not effects.query("reader == 'direction'")["rescale"].any()


@pytest.mark.parametrize("name", ["llama", "openai-gpt", "gemma2"])
def test_turning_it_round_turns_the_signs(name: str) -> None:
    model = tiny(name)
    readers = readers_of(model)
    there = compare(model, A, B, token=AT, readers=readers, scale="mean")
    back = compare(model, B, A, token=AT[::-1], readers=readers, scale="mean")
    for one, other in zip(there.readings, back.readings, strict=True):
        assert_close(one.writes, -other.writes, like=torch.float64)
        assert_close(one.rescale, -other.rescale, like=torch.float32)
    mirrored = compare(model, B, A, token=AT[::-1], readers=readers, scale="b")
    through_a = compare(model, A, B, token=AT, readers=readers, scale="a")
    assert_close(through_a.readings[0].writes, -mirrored.readings[0].writes, like=torch.float64)


@pytest.mark.parametrize("name", TINY)
def test_a_context_does_not_differ_from_itself(name: str) -> None:
    model = tiny(name)
    readers = readers_of(model)
    same = compare(model, A, A, token=2, readers=readers)
    assert not same.differences.any()
    assert not same.to_frame()["share"].fillna(0).any()
    assert not same.effects()[["observed", "total"]].any(axis=None)
    moved = swap(model, A, A, token=2, readers=readers, read_at=-1).effects()
    assert moved["total"].abs().max() < 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "granite", "granitemoeshared"])
def test_the_direct_effect_of_a_swap_is_what_the_comparison_said(name: str) -> None:
    """A with B's write, minus A, is -(u_a - u_b) through A's frozen norm; pre-norm models only."""
    model = tiny(name)
    readers = readers_of(model)
    made = compare(model, A, B, token=AT, readers=readers)
    swapped = swap(model, A, B, token=AT, readers=readers)
    wanted = {f"{label}@⟨44⟩=resample": n for n, label in enumerate(made.labels)}
    assert set(swapped.variants) == set(wanted) - {"rounding@⟨44⟩=resample"}
    for part in swapped.parts:
        for reader, reading in zip(readers, made.readings, strict=True):
            rows = [wanted[variant] for variant in part.variants]
            assert_close(part.effect_of(reader).direct[:, 0], -reading.writes[rows], like=torch.float32)


@pytest.mark.parametrize("name", TINY)
def test_a_swap_closes_and_leaves_nothing_behind(name: str) -> None:
    model = tiny(name)
    readers = readers_of(model)
    _ = compare(model, A, B, token=AT)  # rwkv divides its own weights in its first forward
    before = state_of(model.model)
    for over in ("sublayers", "heads"):
        if name == "rwkv" and over == "heads":
            with pytest.raises(InputError, match="no attention heads to swap"):
                swap(model, A, B, token=AT, over=over)
            continue
        effects = swap(model, A, B, token=(1, 2), over=over, readers=readers, read_at=-1).effects()
        assert effects["closure"].max() < 1e-4
        assert effects["observed"].abs().max() > 1e-3
    assert state_of(model.model) == before


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "openai-gpt"])
def test_swapping_every_write_at_the_only_token_makes_the_other_context(name: str) -> None:
    """Prompts of one token, in float64: with all of B's writes A is B."""
    from streamlens import replay
    from streamlens.hooks.edits.donor import donated

    model = tiny(name, torch.float64)
    one, other = torch.tensor([[12]]), torch.tensor([[50]])
    values = donated(model, other, 0)
    edits = [Edit(site=site, method="replace", value=value) for site, value in values.items()]
    made, wanted = replay(model, one, edits).logits, decompose(model, other).logits
    assert made is not None
    assert wanted is not None
    assert_close(made, wanted, like=torch.float32)


def test_refusals() -> None:
    model = tiny("llama")
    with pytest.raises(InputError, match='A comparison is at level "sublayer" or "head"; got \'source\''):
        compare(model, A, B, token=AT, level="source")
    with pytest.raises(InputError, match="The scale of a comparison is one of a, b, mean; got 'c'"):
        compare(model, A, B, token=AT, scale="c")
    with pytest.raises(InputError, match="A context is one prompt; got 2"):
        compare(model, A.expand(2, -1), B)
    with pytest.raises(InputError, match=r"position -1 is '⟨44⟩' in A and '⟨8⟩' in B"):
        compare(model, A, B)
    with pytest.raises(InputError, match="A position is between 0 and 4; got 5"):
        compare(model, A, B, token=(5, 5))
    with pytest.raises(InputError, match='A swap runs over "sublayers" or "heads"; got \'layers\''):
        swap(model, A, B, token=AT, over="layers")
    with pytest.raises(InputError, match="as wide as the stream, 32"):
        compare(model, A, B, token=AT, readers=[Reader.direction([1.0, 2.0])])
    made = compare(model, A, B, token=AT, readers=readers_of(model)[:1])
    with pytest.raises(InputError, match="is one of logit"):
        made.reading("other")
    with pytest.raises(InputError, match="of one prompt at one position each"):
        compare_ledgers(decompose(model, A), decompose(model, A))
    with pytest.raises(InputError, match="with the same rows; got 7 and 19 rows"):
        compare_ledgers(decompose(model, A, positions=0), decompose(model, B, positions=0, level="head"))
