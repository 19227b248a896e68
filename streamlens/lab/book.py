"""Keeps the books of a plain torch network while it runs: the same `Ledger` as for a language model.

1. `add` notes a write, `carry` what happens to everything before it; each returns the stream it leads to.
2. A carry that is no constant is held at its value in this pass: `gate`, `matrix` (`FrozenMap`) or a frozen norm.
3. `close` compares the network's own end with the noted steps and gives the ledger.

A vector is one token of one prompt, shape [1, 1, d_model]; sentences are [batch, pos, d_model].
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.axes import Stream
from streamlens.carries import Add, FrozenCarry, FrozenMap, FrozenNorm, Renorm, Rescale, Step, walk
from streamlens.ledger import Ledger
from streamlens.sites import Site


def vector(*numbers: float) -> Stream:
    """A stream of one token in float64."""
    return torch.tensor(numbers, dtype=torch.float64)[None, None]


def gate(values: Stream) -> FrozenMap:
    """Each coordinate times a number: a gate at its value, a mask."""
    return FrozenMap(gate=values.detach())


def matrix(rows: Float[Tensor, "d_model d_model"]) -> FrozenMap:
    """A matrix: a projection, a mixing, a pooling."""
    return FrozenMap(matrix=rows.detach())


class Book:
    """The steps of one forward pass, as they happen. Used once; what it leads to is a frozen `Ledger`."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.added: list[Tensor] = []
        self.program: list[Step] = []
        self.norms: list[FrozenCarry] = []
        self.states: dict[int, Tensor] = {}
        self.stream: Tensor | None = None

    def add(self, label: str | Site, write: Stream, *, factor: float = 1.0) -> Stream:
        """Adds a write, times a factor, and returns the stream after it."""
        self.program.append(Add((self._row(label, write),), factor))
        update = write.detach() if factor == 1.0 else write.detach() * factor
        self.stream = update if self.stream is None else self.stream + update
        return self.stream

    def rescale(self, factor: float) -> Stream:
        """Multiplies the whole stream by a number."""
        assert self.stream is not None, "there is nothing to carry yet"
        self.program.append(Rescale(factor))
        self.stream = self.stream * factor
        return self.stream

    def carry(self, carry: FrozenCarry, *, bias: tuple[str, Tensor] | None = None) -> Stream:
        """Puts the stream through a linear map, then adds its constant, which is a write of its own.

        Args:
            carry: The map at its values in this pass.
            bias: Label and value of its constant.
        """
        assert self.stream is not None, "there is nothing to carry yet"
        after = carry.linear(self.stream).to(self.stream.dtype)
        row = None
        if bias is not None:
            label, value = bias
            row = self._row(label, value.expand_as(after))
            after = after + value.detach()
        self.states[len(self.program)] = after
        self.program.append(Renorm(len(self.norms), row))
        self.norms.append(carry)
        self.stream = after
        return after

    def norm(self, norm: FrozenNorm, label: str) -> Stream:
        """Puts the stream through a frozen norm; `label` names its bias."""
        return self.carry(norm, bias=None if norm.bias is None else (label, norm.bias))

    def _row(self, label: str | Site, write: Tensor) -> int:
        self.sites.append(label if isinstance(label, Site) else Site.parse(label))
        self.added.append(write.detach())
        return len(self.added) - 1

    def close(
        self,
        stream: Stream,
        *,
        name: str,
        tokens: Sequence[Sequence[str]] = (("x",),),
        attention: Mapping[int, Tensor] | None = None,
    ) -> Ledger:
        """The ledger of the pass, compared with the stream that the network itself ended with.

        Args:
            stream: What the network gave, [batch, pos, d_model].
            name: The example's name.
            tokens: The text of each token, per prompt.
            attention: For rows that read one source token, the probability it is read with, [batch, pos].
        """
        added, stream = torch.stack(self.added), stream.detach()
        *_, (_, _, _, end) = walk(self.program, added, self.states)
        batch, pos = stream.shape[:2]
        everywhere = torch.ones(batch, pos, dtype=torch.bool)
        index = torch.arange(pos).expand(batch, pos)
        texts = tuple(tuple(row) for row in tokens)
        return Ledger(
            sites=tuple(self.sites),
            added=added,
            program=tuple(self.program),
            norms=tuple(self.norms),
            states=self.states,
            stream=stream,
            in_order=float((end - stream).abs().max()),
            token_ids=index,
            tokens=texts,
            special=~everywhere,
            mask=everywhere,
            indices=index,
            sinks=~everywhere,
            attention=None if attention is None else _attention(added, attention),
            prompts=tuple("".join(row).strip() for row in texts),
            context=texts,
            provenance=_provenance(name, stream),
        )


def _attention(added: Tensor, known: Mapping[int, Tensor]) -> Tensor:
    """The probabilities by row; NaN for rows that read no one token."""
    seen = torch.full(added.shape[:3], float("nan"), dtype=torch.float64)
    for row, probability in known.items():
        seen[row] = probability
    return seen


def _provenance(name: str, stream: Tensor) -> dict[str, Any]:
    from streamlens import __version__

    return {
        "model": f"lab: {name}",
        "origin": "lab",
        "revision": "",
        "dtype": str(stream.dtype).removeprefix("torch."),
        "device": str(stream.device),
        "level": "sublayer",
        "streamlens": __version__,
        "torch": torch.__version__,
    }
