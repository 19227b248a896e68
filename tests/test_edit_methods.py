"""What each method sets a write to, beside the same thing done by hand."""

from functools import cache

import pytest
import torch

import streamlens
import zoo
from closeness import assert_close, relative
from edit_bench import words
from streamlens import Edit, Reader, decompose, replay
from streamlens.errors import InputError
from streamlens.sites import Site
from tiny_tokenizers import wordpiece

TEXT, OTHER = "after crossing the river bank", "the bank crossing after river"
LONGER = "crossing the river, the river, after the river banks"
#: pre-norm, branch norms, a multiplier, parallel, post-norm, experts, a mixer beside attention
NAMES = ["llama", "gpt2", "gemma2", "granite", "gpt_neox", "opt:post-norm", "bert", "mixtral", "jamba"]
POSITION = 4


@cache
def handle(name: str):
    return streamlens.load(zoo.build(name), tokenizer=wordpiece())


@pytest.fixture(params=NAMES)
def model(request):
    return handle(request.param)


@pytest.fixture(params=["L1.attn", "L1.mlp", "embed", "L1H2"])
def site(request, model):
    labels = [site.label for site in model.wiring.sites]
    return next(label for label in (request.param, "word_embed", labels[0]) if label in labels or "H" in label)


def row_of(ledger, site: str) -> int:
    return ledger.sites.index(Site.parse(site).sublayer)


class TestNothingChanges:
    def test_at_scale_one(self, model, site):
        assert_close(replay(model, TEXT, f"{site}=1").ledger.stream, decompose(model, TEXT).stream)

    def test_resampled_from_the_same_prompt(self, model, site):
        edit = Edit(site, "resample", prompts=TEXT)
        assert_close(replay(model, TEXT, edit).ledger.stream, decompose(model, TEXT).stream)

    @pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "mixtral"])
    def test_to_the_last_bit_where_no_multiplier_rounds(self, name):
        model = handle(name)
        clean = decompose(model, TEXT)
        for edit in ("L1.attn=1", Edit("L1.mlp", "resample", prompts=TEXT), Edit("L1H2", "resample", prompts=TEXT)):
            assert torch.equal(replay(model, TEXT, edit).ledger.stream, clean.stream)


class TestResample:
    def test_a_write_from_another_prompt(self, model):
        """Eight tokens each, position by position."""
        other = decompose(model, OTHER)
        edited = replay(model, TEXT, Edit("L1.mlp", "resample", position=POSITION, prompts=OTHER)).ledger
        row = row_of(other, "L1.mlp")
        assert_close(edited.added[row, 0, POSITION], other.added[row, 0, POSITION])
        assert relative(edited.stream, decompose(model, TEXT).stream) > 1e-4

    def test_aligned_by_token(self):
        """`bank` stands at 6 here and at 2 there."""
        model = handle("llama")
        here, there = decompose(model, TEXT), decompose(model, OTHER)
        places = here.tokens[0].index("bank"), there.tokens[0].index("bank")
        assert places == (6, 2)
        edited = replay(model, TEXT, Edit("L1.mlp", "resample", position="bank", prompts=OTHER)).ledger
        row = row_of(here, "L1.mlp")
        assert torch.equal(edited.added[row, 0, places[0]], there.added[row, 0, places[1]])

    def test_a_head_takes_what_its_projection_read_there(self):
        model = handle("llama")
        edited = replay(model, TEXT, Edit("L1H2", "resample", prompts=OTHER))
        here, there = (decompose(model, text, level="head") for text in (TEXT, OTHER))
        row = here.labels.index("L1H2")
        whole = decompose(model, TEXT)
        expected = whole.added[row_of(whole, "L1.attn")] - here.added[row] + there.added[row]
        assert_close(edited.ledger.added[row_of(whole, "L1.attn")], expected, like=torch.float32)


class TestMean:
    PROMPTS = (TEXT, OTHER, LONGER)

    def test_over_prompts_and_positions_without_sinks(self, model):
        ledger = decompose(model, self.PROMPTS)
        row = row_of(ledger, "L1.mlp")
        mean = ledger.added[row][ledger.mask & ~ledger.sinks].double().mean(0)
        edited = replay(model, TEXT, Edit("L1.mlp", "mean", position=POSITION, prompts=self.PROMPTS)).ledger
        assert_close(edited.added[row, 0, POSITION], mean, like=torch.float32)

    def test_a_sink_does_not_count(self, monkeypatch):
        """With the ratio at which a token is a sink set low enough, some are; the mean is that of the others."""
        model = handle("llama")
        monkeypatch.setattr("streamlens.hooks.writes.capture.SINK_RATIO", 1.05)
        ledger = decompose(model, self.PROMPTS)
        assert ledger.sinks.any()
        row = row_of(ledger, "L1.mlp")
        values = ledger.added[row].double()
        edited = replay(model, TEXT, Edit("L1.mlp", "mean", position=POSITION, prompts=self.PROMPTS)).ledger
        assert_close(edited.added[row, 0, POSITION], values[ledger.mask & ~ledger.sinks].mean(0), like=torch.float32)
        assert relative(edited.added[row, 0, POSITION], values[ledger.mask].mean(0)) > 1e-3

    def test_at_each_position(self, model):
        ledger = decompose(model, self.PROMPTS)
        row = row_of(ledger, "L1.mlp")
        edit = Edit("L1.mlp", "mean", prompts=self.PROMPTS, per_position=True)
        edited = replay(model, TEXT, edit).ledger
        for position in range(edited.stream.shape[1]):
            mean = ledger.added[row, :, position][ledger.mask[:, position]].double().mean(0)
            assert_close(edited.added[row, 0, position], mean, like=torch.float32)

    def test_of_a_head(self):
        model = handle("llama")
        ledger = decompose(model, self.PROMPTS, level="head")
        row = ledger.labels.index("L1H2")
        mean = ledger.added[row][ledger.mask & ~ledger.sinks].double().mean(0)
        clean = decompose(model, TEXT, level="head").added[row, 0, POSITION].double()
        edited = replay(model, TEXT, Edit("L1H2", "mean", position=POSITION, prompts=self.PROMPTS)).ledger
        whole = decompose(model, TEXT)
        change = (
            edited.added[row_of(whole, "L1.attn"), 0, POSITION] - whole.added[row_of(whole, "L1.attn"), 0, POSITION]
        )
        assert_close(change, mean - clean, like=torch.float32)

    def test_many_edits_of_one_reference_run_it_once(self):
        model = handle("llama")
        edits = [Edit(f"L1H{head}", "mean", prompts=self.PROMPTS) for head in range(4)]
        calls = []
        hook = model.model.register_forward_pre_hook(lambda *_: calls.append(1))
        streamlens.sweep(model, TEXT, over=edits)
        hook.remove()
        assert len(calls) == 3  # the clean run, the reference, the variants


class TestReplace:
    def test_by_a_vector(self, model):
        value = torch.randn(model.wiring.d_model, generator=torch.Generator().manual_seed(1))
        edited = replay(model, TEXT, Edit("L1.mlp", "replace", position=POSITION, value=value)).ledger
        row = row_of(edited, "L1.mlp")
        assert_close(edited.added[row, 0, POSITION] * model.wiring.factor_of(row), value)

    def test_a_head_and_a_neuron(self):
        model = handle("llama")
        size = model.projections("only")[row_of(decompose(model, TEXT), "L1.attn")].width // 4
        edits = [Edit("L1H2", "replace", value=torch.zeros(size)), Edit("L1N3", "replace", value=torch.zeros(1))]
        assert_close(replay(model, TEXT, edits).logits, replay(model, TEXT, ["L1H2", "L1N3"]).logits)


class TestProjections:
    def test_the_two_parts_add_up_to_the_write(self, model):
        reader = Reader.direction(torch.randn(model.wiring.d_model, generator=torch.Generator().manual_seed(2)))
        out, onto = (
            replay(model, TEXT, Edit("L1.mlp", method, reader=reader)).ledger
            for method in ("project_out", "project_onto")
        )
        clean = decompose(model, TEXT)
        row = row_of(clean, "L1.mlp")
        assert_close(out.added[row] + onto.added[row], clean.added[row], like=torch.float32)
        seen = out.added[row].double() @ reader.matrix.T
        assert float(seen.abs().max()) < 1e-5
        assert relative(onto.added[row], clean.added[row]) > 1e-2

    @pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "granite", "gpt_neox", "mixtral"])
    def test_what_a_logit_cannot_see_does_not_reach_it_directly(self, name):
        """Through the final norm's gain and centring; the last write has nothing after it but the norm."""
        model = handle(name)
        reader = Reader.logits(model, [5, 9])
        last = model.wiring.sites[-1].label
        for method, part in (("project_onto", "direct"), ("project_out", "rest")):
            made = streamlens.ablate(model, TEXT, Edit(last, method, reader=reader), readers=reader)
            effect = made.effect_of(reader)
            if part == "direct":
                assert float(effect.direct.abs().max()) < 1e-5  # what is taken away is invisible
            else:
                row = made.clean.labels.index(last)
                clean = streamlens.read(made.clean, reader).contributions[row]
                assert_close(effect.direct, -clean, like=torch.float32)
            assert float(effect.closure.max()) < 1e-5


class TestWhereAnEditActs:
    """What random edits over the zoo (`test_edits_over_the_zoo.py`) brought to light."""

    @pytest.mark.parametrize("source", [5, -2, "w5"])
    def test_cross_attention_takes_from_the_encoders_tokens(self, source):
        """Seven of them, behind three of the decoder."""
        model = streamlens.load(zoo.build("bart"), tokenizer=words())
        given = {"decoder_input_ids": torch.tensor([[7, 8, 9]])}
        ids = torch.tensor([[10, 11, 12, 13, 14, 5, 16]])
        edges = decompose(model, ids, level="source", **given)
        clean = decompose(model, ids, **given)
        row = row_of(clean, "L1.cross_attn")
        cut = replay(model, ids, Edit("L1.cross_attn.H2", position=1, source=source), **given).ledger
        write = clean.added[row, 0, 1]
        taken = edges.added[edges.labels.index("L1.cross_attn.H2<5"), 0, 1]
        assert relative(write - taken, write) > 1e-3
        assert_close(cut.added[row, 0, 1], write - taken, like=torch.float32)

    def test_with_all_frozen_nothing_responds_though_an_edited_write_is_free_elsewhere(self):
        """L0.attn is edited at token 0; at token 1 it is held like any other write."""
        model = handle("gpt2")
        made = streamlens.ablate(model, TEXT, ["embed", "L0.attn@0"], freeze="all")
        row = made.clean.labels.index("L0.attn")
        assert_close(made.ablated.added[row, :, 1:], made.clean.added[row, :, 1:])
        free = streamlens.ablate(model, TEXT, ["embed", "L0.attn@0"])
        assert relative(free.ablated.added[row, :, 1:], made.clean.added[row, :, 1:]) > 1e-2

    def test_one_edge_named_twice_is_refused(self):
        model = handle("gpt2")
        twice = [Edit("L1H2", position=3, source=0), Edit("L1H2", position=3, source=-8)]
        with pytest.raises(InputError, match=r"^A write is edited once at a token; L1H2<0@3 and L1H2<-8@3 both edit"):
            replay(model, TEXT, twice)

    @pytest.mark.parametrize("site", ["L1H2<3", Site.parse("L1H2<3")])
    def test_a_site_with_a_token_in_it_is_no_site_of_an_edit(self, site):
        with pytest.raises(
            InputError, match=r"names its head and the token it takes from apart; got 'L1H2<3'"
        ) as error:
            Edit(site)
        assert error.value.hint == 'Edit("L1H2", source=3), or the text "L1H2<3" in place of the edit.'
