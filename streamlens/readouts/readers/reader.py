"""Reader: a linear question asked of the residual stream.

1. A reader is a matrix [reader, d_model] with a name and a unit. It reads the stream as it is, through the final
   norm, or through the norm in front of a sublayer.
2. It reads at the end of the stream, or where a sublayer reads: right after the write named `after`. `seen` cuts a
   ledger off there.
3. Readers made from vocabulary tokens remember the tokens: their value can be checked against the model's own
   logits, and a softcap acts on each logit before a difference is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens.arguments import typed
from streamlens.carries import FrozenNorm, StreamNorm, fold
from streamlens.display import display_token
from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.readouts.readers.finite import checked
from streamlens.readouts.readers.protocols import ReadsStream
from streamlens.readouts.readers.vocabulary import Readable, Vocabulary, token_ids
from streamlens.subspaces import compact, numerical_rank
from streamlens.turns import once

#: through what a reader reads
NormKind: TypeAlias = Literal["final", "input", "none"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Reader:
    """A linear reader of the residual stream.

    Attributes:
        name: For titles: `logit(·river) - logit(·money)`.
        rows: A name for each row of the matrix.
        unit: "logits", or whatever the direction measures.
        matrix: [reader, d_model], in float64.
        bias: A constant per row, in the unit.
        norm: Through what: "final" the final norm, "input" the norm in front of a sublayer, "none" no norm at all.
        through: That norm's parameters; None for "none", and for a "final" reader that was made without a model.
        after: The last write that is in the stream where it reads (`L9.mlp` for a head of layer 10); None for the end.
        vocabulary: The tokens it is made of; None for a direction.
        tolerance: A singular value counts towards the rank above this share of the largest.
        meta: Whatever else is known of it, as words; kept in its file.
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
    meta: Mapping[str, str] = field(default_factory=dict)

    @once
    def rank(self) -> int:
        """Numerical rank of the matrix: how many singular values lie above `tolerance` times the largest."""
        return numerical_rank(torch.linalg.svdvals(compact(self.matrix)), self.tolerance)

    def norm_known(self, ledger: Ledger | None = None) -> StreamNorm | FrozenNorm | None:
        """The norm it reads through, for its gain; a "final" reader made without a model takes it from a ledger.

        Raises:
            InputError: A norm that neither a model nor a ledger told.
        """
        if self.norm == "none" or self.through is not None:
            return None if self.norm == "none" else self.through
        if ledger is None:
            raise InputError(
                f"{self.name!r} reads through the final norm, and nothing says which.", hint="Give a ledger as well."
            )
        return ledger.final_norm

    def folded(self, ledger: Ledger | None = None) -> Float[Tensor, "reader d_model"]:
        """Its rows over the stream itself: the norm's gain (and centring) folded in, the scale left out.

        Their row space is what the reader sees of an update while the norm's scale is held. See `norm_known`.
        """
        return fold(self.matrix, self.norm_known(ledger))

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
    @typed
    def logits(cls, model: Readable, tokens: Sequence[str | int]) -> "Reader":
        """One row per token: its logit.

        Args:
            model: A handle with a linear head.
            tokens: Token texts (each one token, with its leading space) or ids.

        Raises:
            InputError: A text that is several tokens.
            ModelError: The model has no linear head.
        """
        ids = token_ids(model, tokens)
        names = tuple(f"logit({display_token(text)})" for text in model.token_texts(ids))
        return cls._of_tokens(model, ids, torch.eye(len(ids), dtype=torch.float64), names, ", ".join(names))

    @classmethod
    @typed
    def logit_diff(cls, model: Readable, token: str | int, against: str | int) -> "Reader":
        """One row: logit(token) - logit(against), in logits. Positive favours `token`.

        Raises:
            InputError: A text that is several tokens, or the same token twice.
            ModelError: The model has no linear head.
        """
        ids = token_ids(model, [token, against])
        if ids[0] == ids[1]:
            raise InputError(f"A difference needs two tokens; got {token!r} twice.")
        a, b = map(display_token, model.token_texts(ids))
        name = f"logit({a}) - logit({b})"
        return cls._of_tokens(model, ids, torch.tensor([[1.0, -1.0]], dtype=torch.float64), (name,), name)

    @classmethod
    def head(cls, model: ReadsStream, head: str, part: Literal["q", "k", "v"], **options: Any) -> "Reader":
        """A head's queries, or the keys or values it attends to; see `model_readers.head_reader`."""
        from streamlens.readouts.readers.model_readers import head_reader

        return head_reader(model, head, part, **options)

    @classmethod
    def mlp(cls, model: ReadsStream, site: str, part: str = "in", **options: Any) -> "Reader":
        """An MLP's input rows, all or some neurons'; see `model_readers.mlp_reader`."""
        from streamlens.readouts.readers.model_readers import mlp_reader

        return mlp_reader(model, site, part, **options)

    @classmethod
    def unembedding(cls, model: ReadsStream) -> "Reader":
        """Every logit, one row per token; see `model_readers.unembedding_reader`."""
        from streamlens.readouts.readers.model_readers import unembedding_reader

        return unembedding_reader(model)

    @classmethod
    @typed
    def direction(
        cls,
        vector: Float[Tensor, " d_model"] | Sequence[float],
        *,
        name: str = "direction",
        unit: str = "units along the direction",
        norm: NormKind = "none",
        after: str | None = None,
    ) -> "Reader":
        """One row: the component of the stream along a vector (not normalised here).

        Args:
            vector: [d_model].
            name: For titles.
            unit: What it measures.
            norm: "final" to read through the final norm.
            after: Read the stream right after this write instead of at its end.

        Raises:
            InputError: Not one vector of finite numbers, or all zeros.
        """
        row = torch.as_tensor(vector).detach().double().cpu()
        if row.dim() != 1 or not row.numel():
            raise InputError(f"A direction is one vector [d_model]; got shape {tuple(row.shape)}.")
        if not torch.isfinite(row).all() or not row.any():
            raise InputError("A direction has finite numbers, not all zero.")
        zero = torch.zeros(1, dtype=torch.float64)
        return cls(name=name, rows=(name,), unit=unit, matrix=row[None], bias=zero, norm=norm, after=after)

    @classmethod
    @typed
    def of_linear(
        cls,
        module: nn.Linear,
        *,
        name: str = "linear",
        unit: str = "units of its output",
        norm: NormKind = "none",
        after: str | None = None,
    ) -> "Reader":
        """A row for each output of a linear layer: a probe, a sparse autoencoder's encoder, a projection.

        Args:
            module: [d_model] in, [reader] out; its bias is kept.
            name: For titles; rows are `name[0]`, `name[1]`, ...
            unit: What the outputs measure.
            norm: "final" to read through the final norm.
            after: Read the stream right after this write instead of at its end.

        Raises:
            InputError: Not finite numbers, or all zeros.
        """
        matrix = checked(module.weight.detach().double().cpu(), name)
        k = len(matrix)
        bias = torch.zeros(k, dtype=torch.float64) if module.bias is None else module.bias.detach().double().cpu()
        rows = (name,) if k == 1 else tuple(f"{name}[{i}]" for i in range(k))
        return cls(name=name, rows=rows, unit=unit, matrix=matrix, bias=bias, norm=norm, after=after)

    @classmethod
    @typed
    def load(
        cls,
        path: str | Path,
        *,
        name: str | None = None,
        unit: str | None = None,
        norm: NormKind | None = None,
        after: str | None = None,
    ) -> "Reader":
        """A reader from a `.safetensors`, `.npz` or `.csv` file, whose layout `reader_files.py` gives.

        Args:
            path: The file: one that `save` wrote, or one with `matrix`, `coef`, `weight` or `W_enc` in it.
            name: Instead of the file's own, or its file name.
            unit: Instead of the file's own.
            norm: Instead of the file's own; "none" where it says nothing.
            after: Instead of the file's own; the end of the stream where it says nothing.

        Raises:
            InputError: No such file, no array of a known name, shapes that do not fit, numbers that are not finite, or
                a matrix of zeros.
        """
        from streamlens.readouts.readers.reader_files import load_reader

        return load_reader(path, {"name": name, "unit": unit, "norm": norm, "after": after})

    @typed
    def save(self, path: str | Path) -> None:
        """Writes it to a `.safetensors`, `.npz` or `.csv` file, in float64 and with everything but its tokens.

        Raises:
            InputError: Another kind of file, a folder that is not there, or a norm that a `.csv` cannot hold.
        """
        from streamlens.readouts.readers.reader_files import save_reader

        save_reader(self, path)

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

    def __repr__(self) -> str:
        where = "at the end" if self.after is None else f"after {self.after}"
        through = {"none": "the stream", "final": "the final norm", "input": "a sublayer's norm"}[self.norm]
        k, d_model = self.matrix.shape
        return f"Reader({self.name}: {k} x {d_model}, reads {through} {where}, in {self.unit})"

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
