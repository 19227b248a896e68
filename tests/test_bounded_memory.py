"""What is not asked for is not kept, and logits that nobody reads are not made."""

from functools import cache

import pytest
import torch

import streamlens
import zoo
from closeness import assert_close
from streamlens import decompose
from streamlens.carries import total
from streamlens.errors import InputError
from streamlens.hooks.scope import HookScope

IDS = torch.tensor([[11, 12, 13, 14, 15, 16, 17, 18], [21, 22, 23, 24, 25, 26, 27, 28]])
#: left padding: the first prompt has five tokens of its own
MASK = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]])
TAKES, TAKES_NOT = ("llama", "gpt2", "gemma2"), "t5"


@cache
def handle_of(name):
    return streamlens.load(zoo.build(name))


def made_logits(name, **options):
    """The ledger, and the shape of the tensor that the model itself gave as logits; None if it gave none."""
    handle, shapes = handle_of(name), []
    with HookScope() as scope:
        scope.after(handle.model, lambda module, args, kwargs, output: shapes.append(tuple(output.logits.shape)))
        ledger = decompose(handle, IDS, **options)
    return ledger, shapes[0] if shapes else None


def size(tensor):
    return tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("name", TAKES)
class TestPositions:
    def test_the_ledger_holds_the_kept_positions_only(self, name):
        ledger = decompose(handle_of(name), IDS, positions=[-1, 2])
        rows, width, vocabulary = len(ledger.sites), ledger.stream.shape[-1], ledger.logits.shape[-1]
        assert size(ledger.added) == rows * 2 * 2 * width * 4
        assert size(ledger.stream) == size(ledger.normed) == 2 * 2 * width * 4
        assert size(ledger.logits) == 2 * 2 * vocabulary * 4

    def test_the_logits_are_those_of_the_whole_run(self, name):
        whole = decompose(handle_of(name), IDS)
        for positions, kept in (([-1], [7]), ([5, 1], [5, 1]), ([3, 3], [3, 3])):
            ledger = decompose(handle_of(name), IDS, positions=positions)
            assert_close(ledger.logits, whole.logits[:, kept])

    def test_the_model_makes_no_other_logits(self, name):
        assert made_logits(name)[1][1] == 8
        assert made_logits(name, positions=[-1])[1][1] == 1
        assert made_logits(name, positions=[5, 1, 5])[1][1] == 2

    def test_each_prompt_of_a_padded_batch_keeps_its_own(self, name):
        whole = decompose(handle_of(name), IDS, attention_mask=MASK)
        ledger, shape = made_logits(name, attention_mask=MASK, positions=[-1, 0])
        assert ledger.indices.tolist() == [[4, 0], [7, 0]]
        assert shape[1] == 3  # positions 0, 4 and 7 of the run
        assert_close(ledger.logits[0], whole.logits[0, [7, 3]])  # where the caller's padding puts them
        assert_close(ledger.logits[1], whole.logits[1, [7, 0]])
        assert size(ledger.logits) == 2 * 2 * ledger.logits.shape[-1] * 4

    def test_padding_alone_leaves_no_logit_out(self, name):
        ledger, shape = made_logits(name, attention_mask=MASK)
        assert shape[1] == ledger.logits.shape[1] == 8

    def test_unwanted_logits_are_not_made(self, name):
        """The forward ends at the final norm."""
        ledger, shape = made_logits(name, keep_logits=False)
        assert ledger.logits is None
        assert shape is None
        assert torch.equal(ledger.added, decompose(handle_of(name), IDS).added)


def test_a_model_that_makes_all_logits_is_cut_afterwards():
    whole, _ = made_logits(TAKES_NOT, decoder_input_ids=IDS)
    ledger, shape = made_logits(TAKES_NOT, decoder_input_ids=IDS, positions=[-1])
    assert shape[1] == 8
    assert torch.equal(ledger.logits, whole.logits[:, [7]])
    assert size(ledger.logits) == 2 * ledger.logits.shape[-1] * 4


def test_which_logits_to_keep_is_said_with_positions():
    with pytest.raises(InputError, match=r"logits_to_keep cannot be given.*positions= says which to keep"):
        decompose(handle_of("llama"), IDS, logits_to_keep=1)


@pytest.mark.parametrize("shape", [(7, 2, 3, 4), (61, 1, 5, 64), (3, 1, 1, 1 << 19), (0, 1, 2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_total_is_the_sum_in_float64(shape, dtype):
    writes = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = total(writes)
    assert found.dtype == torch.float64
    assert_close(found, writes.double().sum(0), like=torch.float64)
