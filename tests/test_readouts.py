"""Readers and readouts: the parts of a logit are the model's logit, and the lens is another question."""

from dataclasses import replace
from functools import cache

import pytest
import torch

import streamlens
import zoo
from closeness import assert_close, relative
from streamlens import Reader, decompose, logit_lens, read
from streamlens.errors import InputError, ModelError

IDS = torch.tensor([[11, 12, 13, 14, 15, 16, 17], [21, 22, 23, 24, 25, 26, 27]])
TOKENS = [3, 17, 42, 71]


@cache
def handle_of(name):
    return streamlens.load(zoo.build(name))


@cache
def ledger_of(name):
    return decompose(handle_of(name), IDS)


@torch.no_grad()
def logits_of(name):
    return handle_of(name).model(input_ids=IDS, use_cache=False).logits.double()


#: the final norm's bias, the head's bias, a logit scale, a divided one, a softcap: all ends of the stream
ENDS = {
    "llama": (),
    "gpt2": ("final_norm.bias",),
    "phi": ("final_norm.bias", "unembed.bias"),
    "cohere": (),
    "granite": (),
    "gemma2": ("softcap",),
    "gemma4_text": ("softcap",),
    "olmo": (),
}


@pytest.mark.parametrize("name", ENDS)
class TestTheSum:
    def test_logits(self, name):
        readout = read(ledger_of(name), Reader.logits(handle_of(name), TOKENS))
        assert readout.labels == (*ledger_of(name).labels, "rounding", *ENDS[name])
        assert readout.contributions.dtype == torch.float64
        assert_close(readout.total, logits_of(name)[..., TOKENS], like=torch.float32)
        assert_close(readout.observed, logits_of(name)[..., TOKENS], like=torch.float32)
        assert float(readout.closure.max()) < 1e-5

    def test_a_logit_difference(self, name):
        readout = read(ledger_of(name), Reader.logit_diff(handle_of(name), 17, 42))
        wanted = logits_of(name)[..., 17] - logits_of(name)[..., 42]
        assert_close(readout.total[..., 0], wanted, like=torch.float32)

    def test_a_difference_is_the_difference_row_by_row(self, name):
        each = read(ledger_of(name), Reader.logits(handle_of(name), [17, 42])).contributions
        both = read(ledger_of(name), Reader.logit_diff(handle_of(name), 17, 42))
        assert_close(both.contributions[..., 0], each[..., 0] - each[..., 1])

    def test_a_difference_turned_round_changes_its_sign(self, name):
        one = read(ledger_of(name), Reader.logit_diff(handle_of(name), 17, 42)).contributions
        other = read(ledger_of(name), Reader.logit_diff(handle_of(name), 42, 17)).contributions
        assert_close(one, -other)

    def test_without_kept_logits_the_models_normed_stream_is_compared(self, name):
        ledger = decompose(handle_of(name), IDS, keep_logits=False)
        readout = read(ledger, Reader.logits(handle_of(name), TOKENS))
        assert ledger.logits is None
        if "softcap" in ENDS[name]:
            assert readout.observed is None
            assert readout.closure.isnan().all()
        else:
            assert float(readout.closure.max()) < 1e-5
        assert_close(readout.total, logits_of(name)[..., TOKENS], like=torch.float32)


class TestTheWeights:
    """Each contribution against the textbook formula, written out from the model's own weights."""

    def test_an_rms_norm_with_its_gain(self):
        ledger, model = ledger_of("llama"), handle_of("llama").model
        gain, row = model.model.norm.weight.detach().double(), model.lm_head.weight[17].detach().double()
        sigma = (ledger.stream.double().square().mean(-1) + model.config.rms_norm_eps).sqrt()
        wanted = (ledger.writes.double() * gain) @ row / sigma
        found = read(ledger, Reader.logits(handle_of("llama"), [17])).contributions
        assert_close(found[: len(wanted), ..., 0], wanted)

    def test_a_layer_norm_with_its_gain_and_bias(self):
        ledger, model = ledger_of("gpt2"), handle_of("gpt2").model
        norm, row = model.transformer.ln_f, model.lm_head.weight[17].detach().double()
        gain, bias = norm.weight.detach().double(), norm.bias.detach().double()
        centred = ledger.writes.double() - ledger.writes.double().mean(-1, keepdim=True)
        sigma = (ledger.stream.double().var(-1, correction=0) + norm.eps).sqrt()
        readout = read(ledger, Reader.logits(handle_of("gpt2"), [17]))
        assert_close(readout.contributions[: len(centred), ..., 0], (centred * gain) @ row / sigma)
        constant = readout.contributions[readout.labels.index("final_norm.bias")]
        assert_close(constant, torch.full_like(constant, float(bias @ row)))

    def test_gemmas_gain_is_one_plus_its_weight(self):
        ledger, model = ledger_of("gemma2"), handle_of("gemma2").model
        gain, row = 1 + model.model.norm.weight.detach().double(), model.lm_head.weight[17].detach().double()
        sigma = (ledger.stream.double().square().mean(-1) + model.config.rms_norm_eps).sqrt()
        found = read(ledger, Reader.logits(handle_of("gemma2"), [17])).contributions
        assert_close(found[0, ..., 0], (ledger.writes[0].double() * gain) @ row / sigma)

    def test_the_heads_bias(self):
        readout = read(ledger_of("phi"), Reader.logit_diff(handle_of("phi"), 17, 42))
        bias = handle_of("phi").model.lm_head.bias.detach().double()
        constant = readout.contributions[readout.labels.index("unembed.bias")]
        assert_close(constant, torch.full_like(constant, float(bias[17] - bias[42])))

    @pytest.mark.parametrize(("name", "scale"), [("cohere", 0.6), ("granite", 1 / 1.6)])
    def test_a_scale_behind_the_head(self, name, scale):
        head = handle_of(name).unembedding([17])
        wanted = scale * handle_of(name).model.lm_head.weight[17].detach().double()
        assert_close(head.matrix[0], wanted, like=torch.float32)

    def test_without_the_gain_it_would_not_add_up(self):
        """A positive control for trap 5: the same sum with every gain set to one is plainly another number."""
        ledger = ledger_of("llama")
        plain = replace(ledger.final_norm, gain=torch.ones_like(ledger.final_norm.gain))
        readout = read(replace(ledger, final_norm=plain), Reader.logits(handle_of("llama"), TOKENS))
        assert relative(readout.total, readout.observed) > 0.1


class TestSoftcap:
    def test_its_row_is_what_the_cap_does_to_the_finished_sum(self):
        handle, cap = handle_of("gemma2"), 5.0
        readout = read(ledger_of("gemma2"), Reader.logits(handle, TOKENS))
        raw = readout.contributions[:-1].sum(0)
        assert readout.labels[-1] == "softcap"
        assert_close(readout.contributions[-1], cap * torch.tanh(raw / cap) - raw)
        assert float(readout.contributions[-1].abs().max()) > 0.1  # it bites here

    def test_in_a_difference_each_logit_is_capped_before_it_is_subtracted(self):
        handle, cap = handle_of("gemma2"), 5.0
        raw = read(ledger_of("gemma2"), Reader.logits(handle, [17, 42])).contributions[:-1].sum(0)
        row = read(ledger_of("gemma2"), Reader.logit_diff(handle, 17, 42)).contributions[-1, ..., 0]
        capped = cap * torch.tanh(raw / cap)
        assert_close(row, (capped - raw)[..., 0] - (capped - raw)[..., 1])
        difference = raw[..., 0] - raw[..., 1]
        assert relative(cap * torch.tanh(difference / cap) - difference, row) > 0.01, "the wrong order is told apart"


class TestClosureIsMeasured:
    """It compares with the model's own value, so a wrong ledger shows; no row takes the difference up."""

    @pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
    def test_a_write_that_was_tampered_with_shows(self, name):
        ledger, reader = ledger_of(name), Reader.logits(handle_of(name), TOKENS)
        added = ledger.added.clone()
        added[2, 0, 3] *= 1.01
        tampered = replace(ledger, added=added)
        honest = float(ledger.closure.max())
        assert float(tampered.closure[0, 3]) > 1e3 * honest
        assert float(tampered.closure.flatten().sort().values[-2]) <= honest
        assert_close(tampered.writes.double().sum(0) + tampered.rounding, ledger.stream, like=torch.float64)
        # the readout's rows still hold the rounding, so what shows it there is the row's own size
        rows = read(tampered, reader)
        rounding = rows.contributions[rows.labels.index("rounding")].abs()
        assert float(rounding[0, 3].max()) > 1e-3
        assert float(rounding[1].max()) < 1e-5

    @pytest.mark.parametrize("name", ["llama", "gpt2"])
    def test_a_stream_or_norm_that_is_not_the_models_shows_in_the_readout(self, name):
        ledger, reader = ledger_of(name), Reader.logits(handle_of(name), TOKENS)
        scaled = replace(ledger.final_norm, scale=ledger.final_norm.scale * 1.001)
        for wrong in (replace(ledger, stream=ledger.stream * 1.01), replace(ledger, final_norm=scaled)):
            assert float(read(wrong, reader).closure.max()) > 100 * float(read(ledger, reader).closure.max())

    def test_weights_that_are_not_the_models_show_in_the_readout(self):
        reader = Reader.logits(handle_of("llama"), TOKENS)
        wrong = replace(reader, matrix=reader.matrix * 1.001)
        assert float(read(ledger_of("llama"), wrong).closure.max()) > 1e-4


class TestTheLens:
    @pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "cohere", "granite", "phi"])
    @torch.no_grad()
    def test_it_is_the_models_own_end_on_every_depth(self, name):
        """The model's own norm, head and softcap are run on the stream after each write."""
        handle, ledger = handle_of(name), ledger_of(name)
        lens = logit_lens(ledger, handle, top=99)
        norm = handle.modules[handle.wiring.final_norm.tap.module]
        head = handle.model.get_output_embeddings()
        assert lens.sites == ledger.sites
        for row, label in enumerate(ledger.labels):
            logits = head(norm(ledger.at(label).stream)) * handle.wiring.head.scale
            cap = handle.wiring.head.softcap
            logits = logits if cap is None else cap * torch.tanh(logits / cap)
            assert_close(lens.logits[row], logits.gather(-1, lens.ids[row]))
            assert_close(lens.probabilities[row], logits.softmax(-1).gather(-1, lens.ids[row]))

    @pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
    def test_at_the_end_it_is_the_models_output(self, name):
        lens = logit_lens(ledger_of(name), handle_of(name), top=5)
        best = logits_of(name).topk(5)
        assert torch.equal(lens.ids[-1], best.indices)
        assert_close(lens.logits[-1], best.values)

    @pytest.mark.parametrize("name", ["llama", "gpt2"])
    def test_it_is_not_the_running_sum_of_direct_attribution(self, name):
        """Trap 6: the two agree at the end, where the norm is the same, and nowhere before."""
        ledger, handle = ledger_of(name), handle_of(name)
        direct = read(ledger, Reader.logits(handle, list(range(99)))).contributions
        constants = direct[len(ledger.sites) :].sum(0)
        running = direct[: len(ledger.sites)].cumsum(0) + constants
        lens = logit_lens(ledger, handle, top=99)
        true = torch.zeros_like(running).scatter(-1, lens.ids, lens.logits.double())
        assert_close(running[-1], true[-1], like=torch.float32)
        assert relative(running[0], true[0]) > 0.1
        assert relative(running[-3], true[-3]) > 0.1

    @pytest.mark.parametrize("top", [0, -1, 100])
    def test_as_many_tokens_as_there_are(self, top):
        with pytest.raises(InputError) as refused:
            logit_lens(ledger_of("llama"), handle_of("llama"), top=top)
        assert str(refused.value) == f"top is between 1 and 99; got {top}."


class TestDirections:
    def test_one_reads_the_stream_itself(self):
        ledger = ledger_of("gpt2")
        vector = torch.linspace(-1, 1, 32)
        readout = read(ledger, Reader.direction(vector, name="probe", unit="units"))
        assert readout.labels == (*ledger.labels, "rounding")
        assert_close(readout.contributions[:-1, ..., 0], ledger.writes.double() @ vector.double())
        assert_close(readout.total[..., 0], ledger.stream.double() @ vector.double())
        assert (readout.reader.name, readout.reader.unit, readout.reader.rows) == ("probe", "units", ("probe",))

    @torch.no_grad()
    def test_or_reads_it_through_the_final_norm(self):
        ledger, handle = ledger_of("gpt2"), handle_of("gpt2")
        vector = torch.linspace(-1, 1, 32)
        readout = read(ledger, Reader.direction(vector, norm="final"))
        assert readout.labels[-1] == "final_norm.bias"
        assert_close(readout.total[..., 0], handle.model.transformer.ln_f(ledger.stream) @ vector, like=torch.float32)
        assert float(readout.closure.max()) < 1e-5

    def test_it_is_not_normalised(self):
        ledger, vector = ledger_of("gpt2"), torch.linspace(-1, 1, 32)
        once, twice = (read(ledger, Reader.direction(v)).total for v in (vector, 2 * vector))
        assert_close(twice, 2 * once)

    @pytest.mark.parametrize(
        ("vector", "message"),
        [
            (torch.zeros(32), "A direction has finite numbers, not all zero."),
            (torch.full((32,), float("nan")), "A direction has finite numbers, not all zero."),
            (torch.tensor([1.0, float("inf")]), "A direction has finite numbers, not all zero."),
            ([], "A direction is one vector [d_model]; got shape (0,)."),
        ],
    )
    def test_what_is_no_direction_is_refused(self, vector, message):
        with pytest.raises(InputError) as refused:
            Reader.direction(vector)
        assert str(refused.value) == message

    def test_a_reader_of_another_width_is_refused(self):
        with pytest.raises(InputError) as refused:
            read(ledger_of("llama"), Reader.direction([1.0, 2.0], name="probe"))
        assert str(refused.value) == "A reader is as wide as the stream, 32; 'probe' is 2 wide."


class TestWhatATokenReaderNeeds:
    def test_two_different_tokens(self):
        with pytest.raises(InputError, match="A difference needs two tokens; got 17 twice"):
            Reader.logit_diff(handle_of("llama"), 17, 17)

    @pytest.mark.parametrize("tokens", [[], "river"])
    def test_a_list_of_at_least_one(self, tokens):
        with pytest.raises(InputError) as refused:
            Reader.logits(handle_of("llama"), tokens)
        assert str(refused.value) == f"Tokens come as a list of at least one text or id; got {tokens!r}."

    @pytest.mark.parametrize("token", [99, 10**6, -1])
    def test_ids_of_the_vocabulary(self, token):
        with pytest.raises(InputError, match=str(token)):
            Reader.logits(handle_of("llama"), [token])

    def test_text_only_with_a_tokenizer(self):
        with pytest.raises(InputError) as refused:
            Reader.logits(handle_of("llama"), [" river"])
        assert str(refused.value) == ("A token given as text needs a tokenizer, and this model was loaded without one.")

    def test_a_linear_head(self):
        handle = streamlens.load(zoo.build("qwen3_vl_text"))
        with pytest.raises(ModelError) as refused:
            Reader.logits(handle, [3])
        assert refused.value.hint == "Read it along a direction: Reader.direction(vector)."


class TestACutLedger:
    def test_its_contributions_are_those_of_the_whole_up_to_there(self):
        ledger, reader = ledger_of("gpt2"), Reader.logits(handle_of("gpt2"), TOKENS)
        cut, whole = read(ledger.at("L1.attn"), reader), read(ledger, reader)
        rows = ledger.labels.index("L1.attn") + 1
        assert torch.equal(cut.contributions[:rows], whole.contributions[:rows])
        assert cut.observed is None
        assert cut.closure.isnan().all()

    def test_along_a_direction_there_is_a_value_to_compare_with(self):
        cut = ledger_of("gpt2").at("L1.attn")
        readout = read(cut, Reader.direction(torch.ones(32)))
        assert_close(readout.total[..., 0], cut.stream.double().sum(-1))
        assert float(readout.closure.max()) < 1e-12


def test_what_is_printed_says_that_it_adds_up():
    readout = read(ledger_of("llama"), Reader.logit_diff(handle_of("llama"), 17, 42))
    assert repr(readout).startswith("Readout(logit(⟨17⟩) - logit(⟨42⟩): 8 rows x 2 prompts x 7 positions x 1 readers;")
    assert "closure" in repr(readout)
    assert repr(readout).endswith(" logits)")
    assert repr(ledger_of("llama")).endswith(", in order 0)")
