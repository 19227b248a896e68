"""Reader: a linear question asked of the residual stream.

1. A reader is a matrix [reader, d_model] with a name and a unit. It reads the stream as it is, through the final
   norm, or through the norm in front of a sublayer.
2. It reads at the end of the stream, or where a sublayer reads: right after the write named `after`. `seen` cuts a
   ledger off there.
3. Readers made from vocabulary tokens remember the tokens: their value can be checked against the model's own
   logits, and a softcap acts on each logit before a difference is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.carries import FrozenNorm, StreamNorm
from streamlens.display import display_token
from streamlens.errors import InputError
from streamlens.ledger import Ledger

#: through what a reader reads
NormKind: TypeAlias = Literal["final", "input", "none"]


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Reader:
    """A linear reader of the residual stream.

    Attributes:
        name: For titles: `logit(·river) - logit(·money)`.
        rows: A name for each row of the matrix.
        unit: "logits", or whatever the direction measures.
        matrix: [reader, d_model], in float64.
        bias: A constant per row, in the unit.
        norm: "final" if it reads through the final norm, "input" through the norm in front of a sublayer, "none" if it
            reads the stream itself.
        through: That norm's parameters, so that any stream can be read; None for "none", and for a "final" reader that
            was made without a model.
        after: The last write that is in the stream where it reads (`L9.mlp` for a head of layer 10); None for the end.
        vocabulary: The tokens it is made of; None for a direction.
        tolerance: A singular value counts towards the rank above this share of the largest.
    """

    name: str
    rows: tuple[str, ...]
    unit: str
    matrix: Float[Tensor, "reader d_model"]
    bias: Float[Tensor, " reader"]
    norm: NormKind
    through: StreamNorm | None = None
    after: str | None = None
    vocabulary: Vocabulary | None = None
    tolerance: float = 1e-10

    @cached_property
    def rank(self) -> int:
        """Numerical rank of the matrix: how many singular values lie above `tolerance` times the largest."""
        sizes = torch.linalg.svdvals(self.matrix)
        return int((sizes > self.tolerance * sizes[0]).sum())

    def seen(self, ledger: Ledger) -> Ledger:
        """The ledger of the stream that this reader reads: all of it, or cut off after the write named `after`.

        Raises:
            InputError: The ledger has no such write.
        """
        return ledger if self.after is None else ledger.at(self.after)

    def norm_at(self, ledger: Ledger) -> FrozenNorm | None:
        """The norm it reads through, frozen; None for no norm. `ledger` is what `seen` gave.

        A "final" reader takes the norm as it was at the end of this pass, whatever the ledger is cut off after.
        """
        if self.norm == "none" or (self.norm == "final" and ledger.final_norm is not None):
            return None if self.norm == "none" else ledger.final_norm
        return None if self.through is None else self.through.at(ledger.stream)

    @classmethod
    def logits(cls, model: Readable, tokens: Sequence[str | int]) -> "Reader":
        """One row per token: its logit.

        Args:
            model: A handle with a linear head.
            tokens: Token texts (each one token, with its leading space) or ids.

        Raises:
            InputError: A text that is several tokens.
            ModelError: The model has no linear head.
        """
        ids = _ids(model, tokens)
        names = tuple(f"logit({display_token(text)})" for text in model.token_texts(ids))
        return cls._of_tokens(model, ids, torch.eye(len(ids), dtype=torch.float64), names, ", ".join(names))

    @classmethod
    def logit_diff(cls, model: Readable, token: str | int, against: str | int) -> "Reader":
        """One row: logit(token) - logit(against), in logits. Positive favours `token`.

        Raises:
            InputError: A text that is several tokens, or the same token twice.
            ModelError: The model has no linear head.
        """
        ids = _ids(model, [token, against])
        if ids[0] == ids[1]:
            raise InputError(f"A difference needs two tokens; got {token!r} twice.")
        a, b = map(display_token, model.token_texts(ids))
        name = f"logit({a}) - logit({b})"
        return cls._of_tokens(model, ids, torch.tensor([[1.0, -1.0]], dtype=torch.float64), (name,), name)

    @classmethod
    def direction(
        cls,
        vector: Float[Tensor, " d_model"] | Sequence[float],
        *,
        name: str = "direction",
        unit: str = "units along the direction",
        norm: NormKind = "none",
    ) -> "Reader":
        """One row: the component of the stream along a vector (not normalised here).

        Raises:
            InputError: Not one vector of finite numbers, or all zeros.
        """
        row = torch.as_tensor(vector).detach().double().cpu()
        if row.dim() != 1 or not row.numel():
            raise InputError(f"A direction is one vector [d_model]; got shape {tuple(row.shape)}.")
        if not torch.isfinite(row).all() or not row.any():
            raise InputError("A direction has finite numbers, not all zero.")
        zero = torch.zeros(1, dtype=torch.float64)
        return cls(name=name, rows=(name,), unit=unit, matrix=row[None], bias=zero, norm=norm)

    def at(self, ledger: Ledger) -> Float[Tensor, "batch pos d_model"]:
        """The vector whose product with a write at the end of the stream is its contribution to the first row.

        Under a final norm, `scale * gain * row`, centred first under LayerNorm; in float64.
        """
        row = self.matrix[0].to(ledger.stream.device)
        norm = self.norm_at(ledger)
        if norm is None:
            return row.expand(ledger.stream.shape)
        folded = row * norm.gain
        if norm.centred:
            folded = folded - folded.mean()
        return norm.scale[..., None] * folded

    @classmethod
    def _of_tokens(cls, model: Readable, ids: Sequence[int], mix: Tensor, rows: tuple[str, ...], name: str) -> "Reader":
        head = model.unembedding(ids)
        matrix, bias = head.matrix.cpu(), head.bias.cpu()
        vocabulary = Vocabulary(ids=tuple(ids), mix=mix, matrix=matrix, bias=bias, softcap=head.softcap)
        return cls(
            name=name,
            rows=rows,
            unit="logits",
            matrix=mix @ matrix,
            bias=mix @ bias,
            norm="final",
            through=model.final_norm,
            vocabulary=vocabulary,
        )


def _ids(model: Readable, tokens: Sequence[str | int]) -> list[int]:
    if isinstance(tokens, str) or not tokens:
        raise InputError(f"Tokens come as a list of at least one text or id; got {tokens!r}.")
    return [token if isinstance(token, int) else model.token_id(token) for token in tokens]
