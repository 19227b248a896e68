"""What is compared: a model, its tokens, which two tokens' logits are told apart, and which heads are switched off."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

import streamlens as sl
import zoo
from beside.names import BY_ENTRY, LLAMA, Names


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """One architecture.

    Attributes:
        name: The zoo's name, or the default model's.
        wiring: How its branches write.
        names: Its modules.
        model: The model in float32, as it comes.
        exact: The same weights in float64.
        ids: Tokens, [1, pos].
        pair: Two token ids; the reader is the difference of their logits.
        switched: The layers whose sublayers are switched off, one by one.
        heads: The (layer, head) pairs that are.
        tokenizer: What transformer-lens is booted with.
    """

    name: str
    wiring: str
    names: Names
    model: Any
    exact: Any
    ids: Tensor
    pair: tuple[int, int]
    switched: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    tokenizer: Any

    @property
    def layers(self) -> int:
        return self.model.config.num_hidden_layers

    @property
    def sublayers(self) -> list[tuple[int, str]]:
        """What is switched off besides heads."""
        return [(layer, kind) for layer in self.switched for kind in ("attn", "mlp")]


def default(sentence: str, right: str, wrong: str) -> Subject:
    """The default model on a sentence, read by the difference of two words' logits."""
    handle = sl.load("smollm2-135m")
    assert handle.tokenizer is not None
    one, other = (handle.tokenizer(word)["input_ids"] for word in (right, wrong))
    return Subject(
        name="smollm2-135m",
        wiring="pre-norm",
        names=LLAMA,
        model=handle.model,
        exact=copy.deepcopy(handle.model).double(),
        ids=torch.tensor([handle.tokenizer(sentence)["input_ids"]]),
        pair=(one[0], other[0]),
        switched=tuple(range(handle.model.config.num_hidden_layers)),
        heads=_heads(handle.model.config),
        tokenizer=copy.deepcopy(handle.tokenizer),  # a bridge gives it other settings
    )


def tiny(name: str, tokenizer: transformers.PreTrainedTokenizerBase) -> Subject:
    """A zoo model on random tokens."""
    entry = zoo.BY_NAME[name]
    model = zoo.build(entry)
    return Subject(
        name=name,
        wiring=entry.wiring,
        names=BY_ENTRY[name],
        model=model,
        exact=zoo.build(entry, torch.float64),
        ids=zoo.inputs(entry, batch=1)["input_ids"],
        pair=(17, 40),
        switched=tuple(range(model.config.num_hidden_layers)),
        heads=_heads(model.config),
        tokenizer=tokenizer,
    )


def _heads(config: Any) -> tuple[tuple[int, int], ...]:
    """Every head of a small model, else one in each layer, a different one each time."""
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if layers * heads <= 16:
        return tuple((layer, head) for layer in range(layers) for head in range(heads))
    return tuple((layer, layer % heads) for layer in range(layers))
