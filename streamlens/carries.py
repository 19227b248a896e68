"""The stream as a program: what is added, and what happens to what was already there.

Every residual network is `x[s+1] = C_s(x[s]) + u[s]`. The program lists these steps in the model's order:

1. `Add`: writes are summed among themselves, multiplied if the model does, then added to the stream. Groups matter to
   the last bit: parallel blocks compute `(x + a) + m` or `x + (a + m)`, Granite's shared experts `x + (a + b) c`.
2. `Rescale`: the whole stream is multiplied by a number.
3. `Renorm`: the stream goes through a norm (post-norm models). With that pass's statistics frozen this is
   linear plus a constant; the constant is a write of its own, so that the carry stays linear. In the lab the same step
   stands for any other carry that is linear at the point of one pass: a gate, a mask, a matrix (`FrozenMap`).

`transport` pushes writes through the carries after them; `walk` repeats the model's own additions; `total` is
the plain sum.
Pure functions over tensors: no model is in reach.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.axes import PerToken, Stream, Writes

#: how many float64 numbers `total` makes at a time: 2 MB, which stay in a cache
AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Add:
    """The writes with these rows are summed left to right, the sum is multiplied, and added to the stream."""

    writes: tuple[int, ...]
    factor: float = 1.0


@dataclass(frozen=True)
class Rescale:
    """The stream is multiplied by `factor`."""

    factor: float


@dataclass(frozen=True)
class Renorm:
    """The stream goes through the norm (or `FrozenMap`) with this number; `bias` is the row of its constant, if any."""

    norm: int
    bias: int | None = None


Step: TypeAlias = Add | Rescale | Renorm


def rows_of(step: Step) -> tuple[int, ...]:
    """The rows that a step brings into the stream, in order."""
    if isinstance(step, Add):
        return step.writes
    return (step.bias,) if isinstance(step, Renorm) and step.bias is not None else ()


@dataclass(frozen=True, eq=False, kw_only=True)
class FrozenNorm:
    """A norm with the statistics of one pass held fixed: `u -> gain * (u - mean(u) if centred) * scale`.

    Attributes:
        gain: What the norm multiplies each coordinate by, in float64.
        bias: What it adds; None for a norm without bias. Not part of the linear map.
        centred: True for LayerNorm, False for RMSNorm.
        scale: 1 / sigma of that pass, one number per token, in float64.
    """

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"] | None
    centred: bool
    scale: PerToken

    def linear(self, update: Float[Tensor, "*rows batch pos d_model"]) -> Float[Tensor, "*rows batch pos d_model"]:
        """The linear part applied to an update, in float64."""
        update = update.double()
        if self.centred:
            update = update - update.mean(-1, keepdim=True)
        return update * self.scale[..., None] * self.gain

    def select(self, prompts: slice, places: slice = slice(None)) -> "FrozenNorm":
        """The same for some of the prompts, and some of the kept positions."""
        return replace(self, scale=self.scale[prompts, places])


@dataclass(frozen=True, eq=False, kw_only=True)
class FrozenMap:
    """A carry that is no norm, held at its values in one pass: `u -> gate * (matrix u)`.

    A Highway gate, an LSTM's forget gate, a ReLU's mask and dropout are gates; a projection shortcut, a mixing of
    several streams and a pooling are matrices. Where the width changes, the stream is the widest one and the narrower
    states fill a part of its coordinates.

    Attributes:
        matrix: [d_model, d_model], dense or sparse, the same at every token; None for the identity.
        gate: What each coordinate is multiplied by, per token; None for 1.
    """

    matrix: Float[Tensor, "d_model d_model"] | None = None
    gate: Float[Tensor, "batch pos d_model"] | None = None

    def linear(self, update: Float[Tensor, "*rows batch pos d_model"]) -> Float[Tensor, "*rows batch pos d_model"]:
        """The map applied to an update, in float64."""
        moved = update.double()
        if self.matrix is not None:
            columns = moved.reshape(-1, moved.shape[-1]).T
            moved = (self.matrix.double() @ columns).T.reshape(moved.shape)
        return moved if self.gate is None else moved * self.gate.double()

    def select(self, prompts: slice, places: slice = slice(None)) -> "FrozenMap":
        """The same for some of the prompts, and some of the kept positions."""
        return self if self.gate is None else replace(self, gate=self.gate[prompts, places])


FrozenCarry: TypeAlias = FrozenNorm | FrozenMap


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamNorm:
    """A norm before its statistics are known: `x -> gain * (x - mean(x) if centred) / sigma(x) + bias`.

    Attributes:
        gain: What it multiplies each coordinate by, in float64.
        bias: What it adds; None for a norm without bias.
        centred: True for LayerNorm, False for RMSNorm.
        eps: What is added under the square root.
    """

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"] | None
    centred: bool
    eps: float

    def at(self, stream: Float[Tensor, "batch pos d_model"]) -> FrozenNorm:
        """The norm with the statistics it has at this stream, in float64."""
        z = stream.double()
        if self.centred:
            z = z - z.mean(-1, keepdim=True)
        return FrozenNorm(
            gain=self.gain.to(stream.device),
            bias=None if self.bias is None else self.bias.to(stream.device),
            centred=self.centred,
            scale=(z.square().mean(-1) + self.eps).rsqrt(),
        )


def fold(matrix: Float[Tensor, "k d_model"], norm: FrozenNorm | StreamNorm | None) -> Float[Tensor, "k d_model"]:
    """The rows of a matrix that reads behind a norm, as rows over the stream in front of it, but for the scale.

    R diag(gain) under RMSNorm, R diag(gain) (I - 11^T/d) under LayerNorm, in float64: with the scale held, these
    rows decide what is seen of an update.
    """
    if norm is None:
        return matrix.double()
    rows = matrix.double() * norm.gain.to(matrix.device)
    return rows - rows.mean(-1, keepdim=True) if norm.centred else rows


def transport(program: Sequence[Step], writes: Writes, norms: Sequence[FrozenCarry]) -> Writes:
    """Each write as it arrives at the end of the program, through every carry after it.

    Returns:
        The same tensor where every carry is the identity, else a new one in the dtype of `writes`, or in
        float32 where that is coarser. Cost: O(writes x norms) elementwise passes in float64.
    """
    if all(isinstance(step, Add) and step.factor == 1.0 for step in program):
        return writes
    moved = writes.to(torch.promote_types(writes.dtype, torch.float32), copy=True)
    present: list[int] = []
    for step in program:
        if isinstance(step, Add):
            moved[list(step.writes)] *= step.factor
            present += step.writes
        elif isinstance(step, Rescale):
            moved[present] *= step.factor
        else:
            moved[present] = norms[step.norm].linear(moved[present]).to(moved.dtype)
            present += [] if step.bias is None else [step.bias]
    return moved


def walk(
    program: Sequence[Step], writes: Writes | Sequence[Stream], states: Mapping[int, Stream]
) -> Iterator[tuple[int, Step, Stream | None, Stream]]:
    """Repeats the model's own additions, in its order and its dtype, step by step.

    Args:
        program: The steps.
        writes: The writes as they were added; one by one where gradients shall reach no more rows than they need.
        states: For the number of each `Renorm` step, the norm's real output in that pass; the additions go
            on from there, so that each stretch between norms is checked by itself.

    Yields:
        For each step: its number, the step, the stream before it (None at the start) and after it.
    """
    before: Tensor | None = None
    rows = writes.unbind() if isinstance(writes, Tensor) else writes
    for number, step in enumerate(program):
        if isinstance(step, Add):
            after = rows[step.writes[0]]
            for row in step.writes[1:]:
                after = after + rows[row]
            after = after if step.factor == 1.0 else after * step.factor
            after = after if before is None else before + after
        else:
            assert before is not None, "a program starts with an addition"
            after = before * step.factor if isinstance(step, Rescale) else states[number]
        yield number, step, before, after
        before = after


def is_plain(program: Sequence[Step]) -> bool:
    """Whether every step adds one write and nothing else: most pre-norm models."""
    return all(isinstance(step, Add) and step.factor == 1.0 and len(step.writes) == 1 for step in program)


def readded(program: Sequence[Step], writes: Writes) -> Stream:
    """Where `walk` ends in a plain program: the same additions in the same order, in one tensor."""
    rows = writes.unbind()
    order = [row for step in program for row in rows_of(step)]
    end = rows[order[0]].clone()
    for row in order[1:]:
        end += rows[row]
    return end


def total(writes: Writes) -> Stream:
    """The sum of the writes in float64.

    A few rows at a time: `writes.sum(0, dtype=torch.float64)` first copies all of them to float64, which takes
    twice their memory and, at 512 tokens of a 135M model, as long as a tenth of the forward.
    """
    summed = torch.zeros(writes.shape[1:], dtype=torch.float64, device=writes.device)
    for rows in writes.split(max(1, AT_ONCE // max(1, summed.numel()))):
        summed += rows[0] if len(rows) == 1 else rows.sum(0, dtype=torch.float64)
    return summed
