"""A zoo model in transformer-lens: a TransformerBridge over a fresh copy of the same weights."""

from typing import Any

import transformers

import zoo


def tokenizer(folder: str) -> transformers.PreTrainedTokenizerBase:
    """One word for each id of the zoo; read from `folder`, since a bridge loads it a second time by its name."""
    from tokenizers import Tokenizer, models

    words = {f"w{i}": i for i in range(99)}
    special = {"unk_token": "w3", "pad_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    model = Tokenizer(models.WordLevel(words, unk_token="w3"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, **special).save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def boot(entry: zoo.Entry, tokenizer: transformers.PreTrainedTokenizerBase) -> Any:
    """The bridge. It changes the model that it is given, so it is given one of its own.

    Raises:
        ValueError: transformer-lens has no adapter for this architecture; other errors as it raises them.
    """
    from transformer_lens.model_bridge import TransformerBridge

    model = zoo.build(entry)
    model.config.architectures = [type(model).__name__]  # what the adapter is chosen by
    return TransformerBridge.boot_transformers("tiny", hf_model=model, tokenizer=tokenizer)
