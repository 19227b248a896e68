"""A sentencepiece-like and a WordPiece tokenizer of a few tokens each, built here."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def sentencepiece() -> PreTrainedTokenizerFast:
    """Pieces with `▁` for a space, bytes as `<0xF0>` where there is no piece, and `<s>` put in front."""
    pieces = ["▁", "▁on", "▁the", "▁bank", "s", "▁river", ",", "▁After"]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    scores = [(piece, -1.0 if piece in pieces else -9.0) for piece in vocabulary]
    made = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<unk>"
    )


def wordpiece() -> PreTrainedTokenizerFast:
    """Lower-case words, their continuations as `##ing`, between `[CLS]` and `[SEP]`."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "after", "cross", "##ing", "the", "river", "bank", ",", "##s"]
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )
