"""Ledgers made of given writes, and readers behind given norms: theorems need no model."""

import torch
from torch import Tensor

from streamlens import Ledger, Reader
from streamlens.carries import Add, StreamNorm
from streamlens.sites import Site

SITES = [
    Site(kind="embed"),
    *(Site(kind=kind, layer=layer) for layer in range(8) for kind in ("attn", "mlp")),
]


def ledger_of(writes: Tensor) -> Ledger:
    """A pre-norm ledger of writes [write, batch, pos, d_model], in their dtype."""
    rows, batch, pos, _ = writes.shape
    texts = tuple(tuple(f"t{p}" for p in range(pos)) for _ in range(batch))
    stream = writes[0]
    for write in writes[1:]:
        stream = stream + write
    return Ledger(
        sites=tuple(SITES[:rows]),
        added=writes,
        program=tuple(Add(writes=(row,)) for row in range(rows)),
        states={},
        stream=stream,
        in_order=0.0,
        token_ids=torch.zeros(batch, pos, dtype=torch.long),
        tokens=texts,
        special=torch.zeros(batch, pos, dtype=torch.bool),
        mask=torch.ones(batch, pos, dtype=torch.bool),
        indices=torch.arange(pos).expand(batch, pos).clone(),
        sinks=torch.zeros(batch, pos, dtype=torch.bool),
        prompts=tuple("given" for _ in range(batch)),
        context=texts,
        provenance={"stream": "decoder"},
    )


def norm_of(d_model: int, *, centred: bool, eps: float = 0.0, seed: int = 0) -> StreamNorm:
    """An RMSNorm or LayerNorm with gains from 0.5 to 1.5, and a bias if it is centred."""
    draw = torch.Generator().manual_seed(seed)
    gain = 0.5 + torch.rand(d_model, generator=draw, dtype=torch.float64)
    bias = torch.randn(d_model, generator=draw, dtype=torch.float64) if centred else None
    return StreamNorm(gain=gain, bias=bias, centred=centred, eps=eps)


def reader_of(matrix: Tensor, norm: StreamNorm | None = None, *, after: str | None = None) -> Reader:
    """A reader of a matrix [k, d_model] behind a norm of a sublayer."""
    k = len(matrix)
    return Reader(
        name="planted",
        rows=tuple(f"row {i}" for i in range(k)),
        unit="units",
        matrix=matrix.double(),
        bias=torch.zeros(k, dtype=torch.float64),
        norm="none" if norm is None else "input",
        through=norm,
        after=after,
    )


def value(reader: Reader, x: Tensor) -> Tensor:
    """What a reader reads of vectors [..., d_model], written out as a norm and a matrix."""
    x = x.double()
    norm = reader.through
    if norm is not None:
        x = x - x.mean(-1, keepdim=True) if norm.centred else x
        x = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.gain
        x = x if norm.bias is None else x + norm.bias
    return x @ reader.matrix.T + reader.bias
