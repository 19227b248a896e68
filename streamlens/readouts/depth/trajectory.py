"""The stream as a path: how far each write moves it, which way, and whether the token can still be told from it.

For every write f and the stream x it is added to, token by token:

1. Lengths: of the stream after it, of the write, and of the write relative to the stream before it.
2. Angles: the cosine of the write and the stream before it, and of the write and the sum of the earlier branches'
   writes (positive reinforces, negative cancels); the angle between a write and the one before it.
3. Variances over the coordinates: Var(x + f) = Var x + Var f + 2 Cov(x, f). The left side is taken from the model's own
   stream after the write, so that the row closes to rounding or shows that it does not.
4. Whether the token can be told: how many tokens' embeddings lie closer to the stream by cosine than its own, and how
   many tokens' logits are larger than its own if the model stopped there (both 0 for none).
5. The path in a plane: the coordinates of the streams after every write along the two main directions in which they
   vary about their mean, for each token by itself (principal components, centred), and their share of the variance.

The embedding's first row has no stream before it, so what needs one is NaN. In a post-norm model a write is added to
what the norm before it gave.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from streamlens.arguments import typed
from streamlens.axes import PerToken, Stream
from streamlens.carries import Add, Rescale, walk
from streamlens.errors import InputError, ModelError
from streamlens.ledger import Ledger
from streamlens.sites import Site

if TYPE_CHECKING:
    import pandas as pd


@runtime_checkable
class KnowsTokens(Protocol):
    """What telling the token needs of a model."""

    @property
    def token_vectors(self) -> Tensor: ...
    def logits_at(self, stream: Tensor) -> Tensor: ...


PerWrite = Float[Tensor, "write batch pos"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trajectory:
    """The geometry of every write at every token, in float64; NaN where there is no stream before a write.

    Attributes:
        ledger: The ledger it is of.
        sites: The writes, in stream order; a post-norm's bias is no write of its own here.
        norm: Length of the stream after the write.
        write_norm: Length of the write.
        step: Length of the write over that of the stream before it.
        cosine_stream: Cosine of the write and the stream before it.
        cosine_earlier: Cosine of the write and the sum of all earlier branches' writes: the stream less its embedding.
        turn: Angle between the write and the one before it, in degrees.
        var_stream: Variance of the stream before the write, over its coordinates.
        var_write: Variance of the write.
        covariance: Of the two.
        var_sum: Variance of the model's own stream after the write.
        var_closure: |var_sum - (var_stream + var_write + 2 covariance)| / var_sum.
        rank_embedding: How many tokens' embeddings are closer to the stream by cosine than the token's own; None
            without a model, or where embeddings are not as wide as the stream.
        rank_unembedding: How many tokens' logits are above the token's own if the model stopped here; None without a
            model, or without a linear head.
        plane: Coordinates in the token's own plane of two main directions, [write, batch, pos, 2].
        plane_share: Share of the variance of the path that the plane holds.
    """

    ledger: Ledger
    sites: tuple[Site, ...]
    norm: PerWrite
    write_norm: PerWrite
    step: PerWrite
    cosine_stream: PerWrite
    cosine_earlier: PerWrite
    turn: PerWrite
    var_stream: PerWrite
    var_write: PerWrite
    covariance: PerWrite
    var_sum: PerWrite
    var_closure: PerWrite
    rank_embedding: Int[Tensor, "write batch pos"] | None
    rank_unembedding: Int[Tensor, "write batch pos"] | None
    plane: Float[Tensor, "write batch pos 2"]
    plane_share: PerToken

    def to_frame(self) -> "pd.DataFrame":
        """One row per (prompt, position, write); see `streamlens.frames.SCHEMAS["trajectory"]`."""
        from streamlens.frames import trajectory_frame

        return trajectory_frame(self)

    def summary(self) -> "pd.DataFrame":
        """One row per write: medians over all tokens that are no sinks; see `SCHEMAS["trajectory_summary"]`."""
        from streamlens.frames import trajectory_summary

        return trajectory_summary(self)


@typed
def trajectory(ledger: Ledger, model: KnowsTokens | None = None) -> Trajectory:
    """The path of the stream at every kept token, write by write.

    Args:
        ledger: From `decompose`, of whole writes.
        model: The handle it was made with; without it nothing is said about telling the token.

    Raises:
        InputError: A ledger of heads, sources or neurons, whose parts are added at once.

    Cost: O(writes x tokens x d_model); with a model O(writes x tokens x d_model x vocab), one write at a time. Memory:
    the stream after every write, in float64.
    """
    if ledger.split_error:
        raise InputError(
            "A trajectory follows whole writes; this ledger splits some of them.", hint='decompose(level="sublayer")'
        )
    sites, columns, states = [], [], []
    last: Stream | None = None
    for row, before, write, earlier, after in _additions(ledger):
        sites.append(ledger.sites[row])
        columns.append(_geometry(before, write, earlier, after, last))
        states.append(after)
        last = write
    path = torch.stack(states)
    plane, share = _plane(path)
    near, likely = _ranks(ledger, path, model)
    found = {name: torch.stack([column[name] for column in columns]) for name in columns[0]}
    return Trajectory(
        ledger=ledger,
        sites=tuple(sites),
        rank_embedding=near,
        rank_unembedding=likely,
        plane=plane,
        plane_share=share,
        **found,
    )


def _additions(ledger: Ledger) -> Iterator[tuple[int, Stream, Stream, Stream, Stream]]:
    """For each write: its row, the stream before it, the write, the earlier branches' sum, the stream after it.

    The stream is the model's own, in its own arithmetic, then float64. Where a model adds several writes at once, the
    stream between them is the sum up to that one.
    """
    earlier = torch.zeros_like(ledger.stream, dtype=torch.float64)
    for _, step, before, after in walk(ledger.program, ledger.added, ledger.states):
        if isinstance(step, Rescale):
            earlier = earlier * step.factor
        if not isinstance(step, Add):
            earlier = earlier if isinstance(step, Rescale) else ledger.norms[step.norm].linear(earlier)
            continue
        start = torch.zeros_like(earlier) if before is None else before.double()
        group = torch.zeros_like(earlier)
        for row in step.writes:
            write = ledger.added[row].double() * step.factor
            end = after.double() if row == step.writes[-1] else start + group + write
            yield row, start + group, write, earlier, end
            group = group + write
            if ledger.sites[row].layer is not None:
                earlier = earlier + write


def _geometry(before: Stream, write: Stream, earlier: Stream, after: Stream, last: Stream | None) -> dict[str, Tensor]:
    size, length = write.norm(dim=-1), before.norm(dim=-1)
    var_stream, var_write, var_sum = (x.var(dim=-1, correction=0) for x in (before, write, after))
    covariance = (_centred(before) * _centred(write)).mean(-1)
    turn = torch.full_like(size, float("nan"))
    if last is not None:
        turn = torch.rad2deg(torch.arccos(_cosine(write, last).clamp(-1.0, 1.0)))
    return {
        "norm": after.norm(dim=-1),
        "write_norm": size,
        "step": torch.where(length > 0, size / length, float("nan")),
        "cosine_stream": _cosine(write, before),
        "cosine_earlier": _cosine(write, earlier),
        "turn": turn,
        "var_stream": var_stream,
        "var_write": var_write,
        "covariance": covariance,
        "var_sum": var_sum,
        "var_closure": (var_sum - (var_stream + var_write + 2 * covariance)).abs() / var_sum.clamp_min(1e-300),
    }


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """NaN where either is zero."""
    sizes = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(sizes > 0, (a * b).sum(-1) / sizes, float("nan"))


def _plane(path: Float[Tensor, "write batch pos d_model"]) -> tuple[Tensor, Tensor]:
    """Each token's path along its two main directions, and the share of its variance that these hold.

    The end lies on the right, and the point farthest from the horizontal axis above it: signs are free otherwise.
    """
    centred = path - path.mean(0)
    points = centred.permute(1, 2, 0, 3)
    sizes, vectors = torch.linalg.eigh(points @ points.mT)  # ascending
    sizes = sizes.clamp_min(0.0)
    missing = max(0, 2 - sizes.shape[-1])
    top = vectors[..., -2:].flip(-1) * sizes[..., None, -2:].flip(-1).sqrt()
    top = torch.nn.functional.pad(top, (0, missing))
    right = torch.where(top[..., -1:, :1] < 0, -1.0, 1.0)
    far = top[..., 1].abs().argmax(-1, keepdim=True)
    up = torch.where(top[..., 1].gather(-1, far) < 0, -1.0, 1.0)[..., None]
    top = top * torch.cat([right, up], dim=-1)
    share = sizes[..., -2:].sum(-1) / sizes.sum(-1).clamp_min(1e-300)
    return top.permute(2, 0, 1, 3), share


def _ranks(ledger: Ledger, path: Tensor, model: KnowsTokens | None) -> tuple[Tensor | None, Tensor | None]:
    """How many tokens stand before each token itself: by closeness of embeddings, and by logit."""
    if model is None:
        return None, None
    ids = ledger.token_ids.to(path.device)[..., None]
    vectors = model.token_vectors
    near, likely = None, None
    if vectors.shape[-1] == path.shape[-1]:
        unit = torch.nn.functional.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)
        near = torch.stack([_rank(x.to(unit.dtype) @ unit.T, ids) for x in path])
    try:
        likely = torch.stack([_rank(model.logits_at(x.to(ledger.stream.dtype)), ids) for x in path])
    except ModelError:  # no linear head
        likely = None
    return near, likely


def _rank(scores: Float[Tensor, "batch pos vocab"], ids: Tensor) -> Int[Tensor, "batch pos"]:
    return (scores > scores.gather(-1, ids)).sum(-1)
