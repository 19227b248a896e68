"""What cannot be edited is refused before anything runs, in one sentence that says what was given."""

import re

import pytest
import torch

import streamlens
import zoo
from streamlens import Edit, Reader, ablate, replay, sweep
from streamlens.errors import InputError, StreamlensError, WiringError
from tiny_tokenizers import wordpiece

TEXT = "after crossing the river bank"
TOKENS = "['[CLS]', 'after', 'cross', '##ing', 'the', 'river', 'bank', '[SEP]']"


def loaded(name: str):
    """A handle whose heads have been measured, so that no forward is left to be counted but those of the prompts."""
    model = streamlens.load(zoo.build(name), tokenizer=wordpiece())
    assert model.projections(model.wiring.stream) is not None
    return model


@pytest.fixture(scope="module")
def llama():
    return loaded("llama")


@pytest.fixture(scope="module")
def mamba():
    return loaded("mamba")


@pytest.fixture(scope="module")
def bert():
    return loaded("bert")


def refused(model, edits, text: str, kind: type = InputError, prompt=TEXT) -> StreamlensError:
    """The error of every function that takes edits; nothing may have run."""
    forwards = []
    hook = model.model.register_forward_pre_hook(lambda *_: forwards.append(1))
    try:
        for call in (
            lambda: replay(model, prompt, edits),
            lambda: ablate(model, prompt, edits),
            lambda: sweep(model, prompt, over=["embed", edits if isinstance(edits, list) else [edits]]),
        ):
            with pytest.raises(StreamlensError) as caught:
                call()
            assert type(caught.value) is kind
            assert re.search(text, caught.value.message), caught.value.message
            assert "\n" not in caught.value.message
            assert caught.value.message.endswith((".", "?")) or caught.value.message[-1].isalnum()
    finally:
        hook.remove()
    assert not forwards
    return caught.value


class TestSites:
    def test_an_unknown_one(self, llama):
        error = refused(llama, "L1.mpl", r"A site is written like embed, L9.attn|No write is called 'L1.mpl' here")
        assert error.hint is None or "L1.mlp" in error.hint

    def test_one_after_the_last_layer(self, llama):
        error = refused(llama, "L99.attn", r"^No write is called 'L99.attn' here\.$")
        assert "L0.attn" in error.hint

    def test_a_head_after_the_last_layer(self, llama):
        refused(llama, "L3H0", r"^No write is called 'L3.attn' here\.$")

    def test_a_head_out_of_range(self, llama):
        refused(llama, "L1H4", r"^L1\.attn has 4 heads, numbered from 0; got L1H4\.$")

    def test_a_neuron_out_of_range(self, llama):
        refused(llama, "L1N9999", r"^L1\.mlp has 44 neurons, numbered from 0; got L1N9999\.$")

    def test_a_mixers_head(self, mamba):
        error = refused(mamba, "L1.mixer.H0", r"^L1\.mixer has no heads\.$", WiringError)
        assert error.hint == "Edit the whole write: L1.mixer."

    def test_an_attention_head_of_a_model_without_attention(self, mamba):
        error = refused(mamba, "L1H0", r"^No write is called 'L1.attn' here\.$")
        assert "L1.mixer" in error.hint

    def test_the_constant_of_a_norm(self, bert):
        refused(bert, "L1.attn.norm.bias", r"^L1.attn.norm.bias is a constant of the model, not a branch's write")

    def test_a_row_that_closes_a_sum(self, llama):
        refused(llama, "rounding", r"^No write is called 'rounding' here\.$")


class TestPositions:
    def test_a_misspelt_token(self, llama):
        error = refused(llama, "L1.attn@bnak", r"^A token names one position; 'bnak' is not among the tokens\.?$")
        assert "6:'bank'" in error.hint

    def test_an_ambiguous_token(self, llama):
        error = refused(
            llama,
            "L1.attn@the",
            r"^A token names one position; 'the' stands at positions 1, 3\.?$",
            prompt="the river the bank",
        )
        assert "Give its index" in error.hint

    def test_one_out_of_range(self, llama):
        refused(llama, "L1.attn@8", r"^A position is between 0 and 7; got 8\.$")

    def test_an_edges_source(self, llama):
        refused(llama, "L1H2<money@bank", r"^A token names one position; 'money' is not among the tokens\.?$")

    def test_where_to_read(self, llama):
        forwards = []
        hook = llama.model.register_forward_pre_hook(lambda *_: forwards.append(1))
        with pytest.raises(InputError, match="A position is between 0 and 7; got 9"):
            ablate(llama, TEXT, "L1.attn", position=9)
        with pytest.raises(InputError, match="'money' is not among the tokens"):
            sweep(llama, TEXT, read_at="money")
        hook.remove()
        assert not forwards


class TestReferences:
    def test_prompts_that_do_not_align(self, llama):
        """Both token lists are shown (TransformerLens 1742)."""
        edit = Edit("L1.attn", "resample", prompts="the river bank")
        text = f"^Prompts of different length do not align position by position: {re.escape(TOKENS)} "
        error = refused(llama, edit, text + re.escape("(8 tokens) and ['[CLS]', 'the', 'river', 'bank', '[SEP]'] "))
        assert error.hint == "Name the token: position=' bank'."
        refused(llama, Edit("L1H2", "resample", position=3, prompts="the river bank"), text)

    def test_a_token_that_the_other_prompt_lacks(self, llama):
        edit = Edit("L1.attn", "resample", position="after", prompts="the river bank")
        refused(llama, edit, r"^A token names one position; 'after' is not among the tokens\.?$")

    def test_a_mean_at_each_position_of_shorter_prompts(self, llama):
        edit = Edit("L1.attn", "mean", prompts=["the river bank"], per_position=True)
        refused(
            llama,
            edit,
            r"^A mean per position needs a reference at position 7; the longest reference prompt has 5 tokens",
        )

    def test_a_bad_edit_after_a_good_one_that_has_a_reference(self, llama):
        edits = [Edit("L1.attn", "mean", prompts=[TEXT]), Edit("L1.mlp", position="bnak")]
        refused(llama, edits, "'bnak' is not among the tokens")

    @pytest.mark.parametrize("method", ["mean", "resample"])
    def test_none_at_all(self, method):
        with pytest.raises(InputError, match=rf"^The method '{method}' of L1.attn needs prompts=\.$"):
            Edit("L1.attn", method)
        with pytest.raises(InputError, match=rf"^The method '{method}' of L1H2 needs prompts=\.$"):
            Edit.parse(f"L1H2={method}")

    def test_several_prompts_to_resample_from(self):
        with pytest.raises(InputError, match=r"^The method 'resample' takes one other prompt\.$"):
            Edit("L1.attn", "resample", prompts=["a", "b"])


class TestTwoEditsOfOneThing:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("L1.attn", "L1.attn"),
            ("L1.attn", "L1.attn=0.5"),
            ("L1.attn@3", "L1.attn"),
            ("L1.attn@-1", "L1.attn@7"),
            ("L1.attn", "L1H2"),
            ("L1H2", "L1.attn"),
            ("L1.mlp@3", "L1N5@3"),
            ("L1H2@3", "L1H2=0.5"),
            ("L1H2<1@3", "L1H2@3"),
            ("L1H2<1@3", "L1H2<1@3"),
            ("L1H2<1@3", "L1.attn@3"),
        ],
    )
    def test_is_refused(self, llama, one, other):
        error = refused(
            llama,
            [one, other],
            r"^A write is edited once at a token; .* and .* both edit L1[.\w]+ at position \d\.$",
        )
        assert error.hint == "Make one edit of them, or name other positions."

    @pytest.mark.parametrize(
        "edits", [["L1.attn@3", "L1.attn@4"], ["L1H2", "L1H3"], ["L1H2<1@3", "L1H2<2@3"], ["L1H2<1@3", "L1H3@3"]]
    )
    def test_two_things_are_not_one(self, llama, edits):
        assert replay(llama, TEXT, edits).ledger.in_order == 0.0


class TestVectors:
    @pytest.mark.parametrize("value", [torch.ones(31), torch.ones(1, 32), torch.tensor(1.0), 1.0])
    def test_of_the_wrong_width(self, llama, value):
        shape = re.escape(str(tuple(torch.as_tensor(value).shape)))
        refused(
            llama, Edit("L1.mlp", "replace", value=value), rf"^L1.mlp is replaced by a vector of 32 .* shape {shape}"
        )

    def test_for_a_head(self, llama):
        refused(llama, Edit("L1H2", "replace", value=torch.ones(32)), r"^L1H2 is replaced by a vector of 12 numbers")

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
    def test_that_are_not_finite(self, llama, wrong):
        value = torch.ones(32)
        value[5] = wrong
        refused(llama, Edit("L1.mlp", "replace", value=value), r"^L1.mlp is replaced by finite numbers; 1 of these 32")

    def test_a_reader_of_another_width(self, llama):
        reader = Reader.direction(torch.ones(31))
        edit = Edit("L1.mlp", "project_out", reader=reader)
        refused(llama, edit, r"^A reader is as wide as the stream, 32; this one is 31 wide\.$")
        for call in (lambda: ablate(llama, TEXT, "L1.mlp", readers=reader), lambda: sweep(llama, TEXT, readers=reader)):
            with pytest.raises(InputError, match=r"^A reader is as wide as the stream, 32; 'direction' is 31 wide\.$"):
                call()

    def test_a_projection_of_a_head(self, llama):
        edit = Edit("L1H2", "project_out", reader=Reader.direction(torch.ones(32)))
        refused(llama, edit, r"^A projection acts on a whole write, \[d_model\]; L1H2 is a part of one\.$")


class TestEdges:
    def test_of_a_whole_write(self, llama):
        refused(llama, Edit("L1.attn", source=1), r"^An attention edge belongs to a head; L1.attn is a whole write\.$")

    def test_of_a_neuron(self, llama):
        refused(llama, Edit("L1N3", source=1), r"^An attention edge belongs to a head; L1N3 is none\.$")

    def test_of_another_method(self):
        with pytest.raises(InputError, match=r"^An attention edge is zeroed or scaled; got 'mean'\.$"):
            Edit("L1H2", "mean", prompts=["a"], source=1)

    @pytest.mark.parametrize(
        ("name", "text"),
        [("bloom", "does not go through transformers' attention interface")],
    )
    def test_of_attention_that_cannot_be_read(self, name, text):
        model = loaded(name)
        with pytest.raises(WiringError, match=text):
            replay(model, TEXT, "L1H2<1@3")  # seen once per model, by a forward of its own
        refused(model, "L1H2<1@3", text, WiringError)


class TestWords:
    @pytest.mark.parametrize("text", ["", "=0.5", "@bank", "L1", "L1.attn=", "L1.attn@", "L1H2<@bank", "1.attn"])
    def test_no_edit(self, llama, text):
        with pytest.raises(InputError) as caught:
            Edit.parse(text)
        assert "written like" in caught.value.message
        refused(llama, text, "written like")

    def test_an_unknown_method(self):
        for make in (lambda: Edit("L1.attn", "delete"), lambda: Edit.parse("L1.attn=delete")):
            with pytest.raises(InputError, match=r"^A method is one of zero, scale, .*project_onto; got 'delete'\.$"):
                make()

    @pytest.mark.parametrize(("method", "needs"), [("scale", "value"), ("replace", "value"), ("project_out", "reader")])
    def test_a_method_without_what_it_needs(self, method, needs):
        with pytest.raises(InputError, match=rf"^The method '{method}' of L1.attn needs {needs}=\.$"):
            Edit("L1.attn", method)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_factor_that_is_no_number(self, value):
        with pytest.raises(InputError, match=r"^The method 'scale' takes a finite number; got (nan|inf)\.$"):
            Edit("L1.attn", "scale", value=value)

    def test_no_edits(self, llama):
        for call in (replay, ablate):
            with pytest.raises(InputError, match=r"^At least one edit is needed; got none\.$"):
                call(llama, TEXT, [])

    def test_what_a_sweep_runs_over(self, llama, mamba):
        with pytest.raises(
            InputError, match='A sweep runs over "sublayers", "heads" or a list of edits; got \'layers\''
        ):
            sweep(llama, TEXT, over="layers")
        with pytest.raises(InputError, match="A sweep needs at least one edit; got an empty list"):
            sweep(llama, TEXT, over=[])
        with pytest.raises(InputError, match="This model has no attention heads to sweep over"):
            sweep(mamba, TEXT, over="heads")

    def test_what_is_frozen(self, llama):
        forwards = []
        hook = llama.model.register_forward_pre_hook(lambda *_: forwards.append(1))
        with pytest.raises(InputError, match=r"^No write is called 'L9.mlp' here\."):
            ablate(llama, TEXT, "L1.attn", freeze=["L9.mlp"])
        hook.remove()
        assert not forwards

    def test_several_prompts_at_once(self, llama):
        with pytest.raises(InputError, match=r"^Variants are runs of one prompt; got 2\.$"):
            ablate(llama, [TEXT, TEXT], "L1.attn")
