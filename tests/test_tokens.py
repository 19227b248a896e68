"""Tokens are what the tokenizer makes: their text, their positions, and no BOS that nobody asked for."""

import pytest
import torch

from streamlens.errors import InputError
from streamlens.models.tokens import encode, find_position, token_id, token_texts
from tiny_tokenizers import sentencepiece, wordpiece


@pytest.fixture(scope="module")
def tokenizer(default_model):
    return default_model.tokenizer


def texts(tokenizer, text: str) -> tuple[str, ...]:
    return token_texts(tokenizer, tokenizer(text)["input_ids"])


@pytest.mark.model
class TestByteLevel:
    def test_a_space_is_a_space(self, tokenizer, bank):
        assert texts(tokenizer, bank) == (
            "After",
            " crossing",
            " the",
            " river",
            ",",
            " she",
            " rested",
            " on",
            " the",
            " bank",
        )

    def test_bytes_that_are_no_whole_character_are_shown_as_bytes(self, tokenizer):
        pieces = texts(tokenizer, " 🦙")
        assert len(pieces) > 1
        assert "⟨F0⟩" in "".join(pieces)
        assert "".join(pieces).replace(" ", "") == "⟨F0⟩⟨9F⟩⟨A6⟩⟨99⟩"

    @pytest.mark.parametrize("text", ["café", "naïve – “x”", "日本", "tab\tand\nline", "  two spaces", "<b>&amp;</b>"])
    def test_whole_characters_are_themselves(self, tokenizer, text):
        joined = "".join(texts(tokenizer, text))
        assert joined == text or "⟨" in joined
        if text.isascii():
            assert joined == text

    def test_every_text_can_go_into_a_file(self, tokenizer):
        for text in token_texts(tokenizer, range(0, 49_152, 7)):
            text.encode("utf-8")
            assert "Ġ" not in text

    def test_special_tokens_are_their_own_text(self, tokenizer):
        assert token_texts(tokenizer, [tokenizer.bos_token_id]) == (tokenizer.bos_token,)

    def test_ids_that_no_piece_has_are_shown_as_ids(self, tokenizer):
        assert token_texts(tokenizer, [10**6]) == ("⟨1000000⟩",)


class TestSentencePiece:
    def test_a_space_is_a_space(self):
        assert texts(sentencepiece(), "After the river, on the banks") == (
            "<s>",
            " After",
            " the",
            " river",
            ",",
            " on",
            " the",
            " bank",
            "s",
        )

    def test_bytes_are_shown_as_bytes_and_whole_characters_as_themselves(self):
        assert texts(sentencepiece(), "🦙!")[1:] == (" ", "⟨F0⟩", "⟨9F⟩", "⟨A6⟩", "⟨99⟩", "!")

    def test_a_bos_that_the_tokenizer_adds_is_its_decision_and_is_said(self):
        encoded = encode(sentencepiece(), "on the bank")
        assert encoded.ids[0, 0] == 1
        assert encoded.bos == "tokenizer"

    def test_it_is_not_added_twice(self):
        with pytest.raises(InputError) as refused:
            encode(sentencepiece(), "on the bank", prepend_bos=True)
        assert str(refused.value) == "The prompt already starts with the BOS token. Leave prepend_bos out."


class TestWordPiece:
    def test_words_and_continuations_stand_as_the_tokenizer_writes_them(self):
        assert texts(wordpiece(), "After crossing the river") == (
            "[CLS]",
            "after",
            "cross",
            "##ing",
            "the",
            "river",
            "[SEP]",
        )

    def test_a_word_is_one_token(self):
        assert token_id(wordpiece(), "river") == 8
        assert token_id(wordpiece(), "[SEP]") == 3

    def test_there_is_no_bos_to_prepend(self):
        with pytest.raises(InputError) as refused:
            encode(wordpiece(), "the river", prepend_bos=True)
        assert str(refused.value) == "prepend_bos needs a BOS token, and this tokenizer has none."


def test_without_a_tokenizer_tokens_are_their_ids():
    assert token_texts(None, [5461, 7]) == ("⟨5461⟩", "⟨7⟩")
    with pytest.raises(InputError) as refused:
        encode(None, "the bank")
    assert str(refused.value) == ("A prompt given as text needs a tokenizer, and this model was loaded without one.")


@pytest.mark.model
class TestOneToken:
    def test_the_ids_of_the_known_values(self, tokenizer):
        assert token_id(tokenizer, " bank") == 5461
        assert token_texts(tokenizer, [5461]) == (" bank",)

    def test_a_special_token_by_its_text(self, tokenizer):
        assert token_id(tokenizer, "<|im_end|>") == tokenizer.eos_token_id

    def test_a_word_of_several_tokens_is_refused_with_its_pieces(self, tokenizer):
        with pytest.raises(InputError) as refused:
            token_id(tokenizer, " riverbank")
        assert str(refused.value) == "A reader's token is one token; ' riverbank' is 2: ' river', 'bank'."

    def test_a_missing_space_is_pointed_out(self, tokenizer):
        several = next(w for w in ("rested", "crossing", "wherever") if len(tokenizer(w)["input_ids"]) > 1)
        with pytest.raises(InputError) as refused:
            token_id(tokenizer, several)
        assert refused.value.hint == f"With a leading space, {' ' + several!r} is one token."

    def test_an_empty_text_is_no_token(self, tokenizer):
        with pytest.raises(InputError, match="A reader's token is one token; '' is 0: none"):
            token_id(tokenizer, "")


TOKENS = ("After", " the", " bank", ",", " the", " bank", "bank", " ")


class TestPositions:
    @pytest.mark.parametrize(
        ("token", "position"), [(0, 0), (7, 7), (-1, 7), (-8, 0), ("After", 0), (" After", 0), ("bank", 6), (",", 3)]
    )
    def test_an_index_or_a_text_that_fits_once(self, token, position):
        assert find_position(TOKENS, token) == position

    LISTED = "Tokens: 0:'After' 1:' the' 2:' bank' 3:',' 4:' the' 5:' bank' 6:'bank' 7:' '"

    @pytest.mark.parametrize(
        ("token", "message"),
        [
            (8, f"A position is between 0 and 7; got 8. {LISTED}"),
            (-9, f"A position is between 0 and 7; got -9. {LISTED}"),
            ("river", f"A token names one position; 'river' is not among the tokens. {LISTED}"),
            ("", f"A token names one position; '' is not among the tokens. {LISTED}"),
            (" bank", f"A token names one position; ' bank' stands at positions 2, 5. Give its index. {LISTED}"),
            ("the", f"A token names one position; 'the' stands at positions 1, 4. Give its index. {LISTED}"),
        ],
    )
    def test_else_the_tokens_are_listed(self, token, message):
        with pytest.raises(InputError) as refused:
            find_position(TOKENS, token)
        assert str(refused.value) == message


@pytest.mark.model
class TestPrompts:
    def test_no_bos_is_added(self, tokenizer, bank):
        encoded = encode(tokenizer, bank)
        assert encoded.ids.shape == (1, 10)
        assert encoded.ids[0, 0] != tokenizer.bos_token_id
        assert encoded.bos == "none"

    def test_unless_it_is_asked_for(self, tokenizer, bank):
        encoded = encode(tokenizer, bank, prepend_bos=True)
        plain = encode(tokenizer, bank)
        assert encoded.ids[0].tolist() == [tokenizer.bos_token_id, *plain.ids[0].tolist()]
        assert encoded.bos == "prepended"

    def test_one_that_is_in_the_text_is_not_added_again(self, tokenizer, bank):
        with pytest.raises(InputError, match="already starts with the BOS token"):
            encode(tokenizer, tokenizer.bos_token + bank, prepend_bos=True)
        assert encode(tokenizer, tokenizer.bos_token + bank).bos == "tokenizer"

    def test_prompts_of_different_length_are_padded_on_the_right(self, tokenizer, bank):
        encoded = encode(tokenizer, [bank, "on the bank"])
        assert encoded.ids.shape == (2, 10)
        assert encoded.mask.sum(-1).tolist() == [10, 3]
        assert encoded.mask[1, :3].all()
        assert encoded.prompts == (bank, "on the bank")

    @pytest.mark.parametrize("prompt", ["", ["on the bank", ""]])
    def test_an_empty_prompt_is_refused(self, tokenizer, prompt):
        with pytest.raises(InputError) as refused:
            encode(tokenizer, prompt)
        assert str(refused.value) == "A prompt has at least one token; '' has none."

    def test_ids_are_decoded_for_the_title(self, tokenizer, bank):
        ids = tokenizer(bank)["input_ids"]
        assert encode(tokenizer, [ids]).prompts == encode(tokenizer, torch.tensor(ids)).prompts == (bank,)


class TestIds:
    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            (torch.zeros(1, 2, 3, dtype=torch.long), "got (1, 2, 3) torch.int64."),
            (torch.zeros(2, 3), "got (2, 3) torch.float32."),
            (torch.zeros(1, 0, dtype=torch.long), "got (1, 0) torch.int64."),
        ],
    )
    def test_they_are_integers_by_prompt_and_position(self, ids, message):
        with pytest.raises(InputError) as refused:
            encode(None, ids)
        assert str(refused.value) == f"Token ids are integers [batch, pos]; {message}"

    def test_lists_of_different_length_are_padded_like_strings(self):
        """Or refused as an input; but never with torch's own error."""
        try:
            encoded = encode(None, [[5, 6, 7], [8]])
        except InputError:
            return
        assert encoded.mask.sum(-1).tolist() == [3, 1]

    def test_a_mask_has_their_shape(self):
        with pytest.raises(InputError, match=r"attention_mask has the shape of the ids, \(1, 3\); got \(1, 2\)\."):
            encode(None, [[5, 6, 7]], attention_mask=torch.ones(1, 2))

    def test_a_mask_hides_no_whole_prompt(self):
        with pytest.raises(InputError) as refused:
            encode(None, [[5, 6], [7, 8]], attention_mask=torch.tensor([[1, 1], [0, 0]]))
        assert str(refused.value) == "Every prompt has at least one token; attention_mask hides a whole row."

    @pytest.mark.model
    def test_a_mask_goes_with_ids_only(self, tokenizer):
        with pytest.raises(InputError) as refused:
            encode(tokenizer, "the bank", attention_mask=torch.ones(1, 2))
        assert str(refused.value) == ("attention_mask goes with token ids; padding of strings is masked by itself.")


class TestBosBesideLeftPadding:
    """Padding stands in front of the tokens there, so the first id is not the first token."""

    LEFT = torch.tensor([[0, 0, 1, 5]])
    MASK = torch.tensor([[0, 0, 1, 1]])

    def test_one_that_is_there_is_seen_behind_the_padding(self):
        with pytest.raises(InputError, match="already starts with the BOS token"):
            encode(sentencepiece(), self.LEFT, attention_mask=self.MASK, prepend_bos=True)

    def test_it_is_named(self):
        assert encode(sentencepiece(), self.LEFT, attention_mask=self.MASK).bos == "tokenizer"

    def test_padding_with_the_bos_id_is_padding(self):
        ids, mask = torch.tensor([[1, 1, 5, 6]]), torch.tensor([[0, 0, 1, 1]])
        encoded = encode(sentencepiece(), ids, attention_mask=mask, prepend_bos=True)
        assert encoded.ids[0][encoded.mask[0]].tolist() == [1, 5, 6]
        assert encode(sentencepiece(), ids, attention_mask=mask).bos == "none"
