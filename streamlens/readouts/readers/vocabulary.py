"""What a reader made of vocabulary tokens remembers, and what it asks of a model.

1. A reader of tokens is a mix of their logits; their rows, biases and softcap are kept beside it.
2. Readers take the model's handle through the two protocols below: this folder knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from streamlens.carries import StreamNorm
from streamlens.errors import InputError


@runtime_checkable
class LinearHead(Protocol):
    """Rows of the map from the normed stream to raw logits, every scale applied."""

    @property
    def matrix(self) -> Tensor: ...
    @property
    def bias(self) -> Tensor: ...
    @property
    def softcap(self) -> float | None: ...


@runtime_checkable
class Readable(Protocol):
    """What a reader needs of a model: token ids and the rows of its unembedding."""

    def token_id(self, text: str) -> int: ...
    def token_texts(self, ids: Sequence[int]) -> tuple[str, ...]: ...
    def unembedding(self, ids: Sequence[int] | None = None) -> LinearHead: ...
    @property
    def final_norm(self) -> StreamNorm | None: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Vocabulary:
    """The tokens behind a reader: `reader = mix @ logits[ids]`.

    Attributes:
        ids: Token ids.
        mix: Coefficients, [reader, token].
        matrix: The tokens' unembedding rows, [token, d_model], in float64.
        bias: Their biases, [token].
        softcap: In logits; None for none.
    """

    ids: tuple[int, ...]
    mix: Float[Tensor, "reader token"]
    matrix: Float[Tensor, "token d_model"]
    bias: Float[Tensor, " token"]
    softcap: float | None


def token_ids(model: Readable, tokens: Sequence[str | int]) -> list[int]:
    """The ids of some tokens, given as texts or ids.

    Raises:
        InputError: One text where a list is meant, none at all, an id below 0, or a text that is several tokens.
    """
    if isinstance(tokens, str) or not tokens:
        raise InputError(f"Tokens come as a list of at least one text or id; got {tokens!r}.")
    if wrong := [token for token in tokens if isinstance(token, int) and token < 0]:
        raise InputError(f"A token id is 0 or more; got {wrong[0]}.")
    return [token if isinstance(token, int) else model.token_id(token) for token in tokens]
