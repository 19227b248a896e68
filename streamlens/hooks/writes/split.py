"""How one write falls into parts: heads, source tokens, neurons, experts.

1. While the model runs, the input z of each projection is kept (a few numbers per head), not the expanded rows.
2. head: the rows of `W z + b` that belong to one head, `W[:, h] z[h]`, and a bias row.
3. source: z of a head is the sum over source tokens of pattern times value, so its row splits the same way.
4. neuron: one column of W each; the largest along a vector where not all are wanted, the rest in one row. A
   mixture of experts is split by expert.
5. A branch-output norm is applied with the scale it had on that pass, a multiplier as it is; the norm's own bias
   is a row of its own.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens.axes import TokenMask
from streamlens.errors import ClosureError, WiringError
from streamlens.hooks.forward import Batch
from streamlens.hooks.scope import HookScope, stream_output
from streamlens.hooks.taps import Listener, as_stream
from streamlens.hooks.writes.patterns import Attended
from streamlens.models.handle import ModelHandle
from streamlens.models.norms import weight_matrix
from streamlens.models.wiring import Experts, Projection, Wiring, Write
from streamlens.sites import Site

#: relative difference between a float32 write and the sum of its parts above which the split counts as wrong
TOLERANCE = 1e-5
#: bytes that the rows of one write may take while they are made
ROOM = 1 << 29


@dataclass(eq=False, kw_only=True)
class Split:
    """A write that is to be split, and what the forward showed of it.

    Attributes:
        row: Its row in the wiring.
        write: The write.
        maker: What makes it.
        inputs: z at the kept positions, [batch, pos, width], filled by the forward.
        outputs: What a branch-output norm read there; needed for its scale.
        call: The arguments of an experts module, filled by the forward.
    """

    row: int
    write: Write
    maker: Projection | Experts
    inputs: Tensor = field(init=False)
    outputs: Tensor = field(init=False)
    call: tuple[tuple, dict[str, Any]] = field(init=False)

    def listeners(self) -> Iterator[Listener]:
        """Where to listen while the model runs."""
        tap = self.maker.tap
        if isinstance(self.maker, Projection):
            yield Listener(replace(tap, side="input"), lambda t: setattr(self, "inputs", t.clone()))
        else:
            yield Listener(tap, lambda t: setattr(self, "inputs", t.clone()))
        if self.maker.norm is not None:
            before = replace(self.maker.norm.tap, side="input")
            yield Listener(before, lambda t: setattr(self, "outputs", t.clone()))

    def attach(self, scope: HookScope, modules: Mapping[str, nn.Module]) -> None:
        """Keeps the arguments of an experts module, which no tensor listener sees whole."""
        if isinstance(self.maker, Experts):
            scope.before(modules[self.maker.tap.module], partial(self._keep_call, itertools.count()))

    def _keep_call(self, calls: Iterator[int], _module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if next(calls) == self.maker.tap.call:
            self.call = (args, kwargs)


@dataclass(frozen=True, eq=False)
class Parts:
    """What one write is made of: rows that sum to it, and for source rows the attention probability."""

    sites: tuple[Site, ...]
    rows: Float[Tensor, "part batch pos d_model"]
    attention: Float[Tensor, "part batch pos"] | None = None


def heads(model: ModelHandle, split: Split) -> Parts:
    """One row per query head, and one for the output bias."""
    weight, z = _by_head(model, split)
    rows = torch.einsum("bphk,dhk->hbpd", z, weight)
    return _finished(model, split, [replace(split.write.site, head=h) for h in range(len(rows))], rows)


def sources(model: ModelHandle, split: Split, attended: Attended, batch: Batch) -> Parts:
    """One row per query head and source token, and one for the output bias.

    Raises:
        WiringError: The head's output is not pattern times value.
    """
    weight, z = _by_head(model, split)
    n_heads = z.shape[2]
    if not attended.linear or attended.pattern.shape[1] != n_heads:
        raise WiringError(
            f"{split.write.site} is not attention pattern times values, so it has no source tokens.",
            hint='level="head" works without them.',
        )
    pattern = batch.keep(attended.pattern.transpose(1, 2))  # [batch, pos, head, source]
    made = torch.einsum("bphs,bhsk->bphk", pattern, attended.values)
    # a gate or a norm between attention and projection acts coordinate by coordinate at this point
    ratio = torch.where(made.abs() > 1e-12, z / made, torch.ones_like(z))
    rows = torch.einsum("bphs,bhsk,bphk,dhk->hsbpd", pattern, attended.values, ratio, weight)
    site, n_sources = split.write.site, rows.shape[1]
    sites = [replace(site, head=h, source=s) for h in range(n_heads) for s in range(n_sources)]
    parts = _finished(model, split, sites, rows.flatten(0, 1))
    attention = torch.full(parts.rows.shape[:-1], float("nan"), dtype=torch.float32)
    attention[: len(sites)] = pattern.permute(2, 3, 0, 1).flatten(0, 1).float()
    return replace(parts, attention=attention)


def neurons(
    model: ModelHandle, split: Split, *, top: int | None, along: Float[Tensor, "batch pos d_model"] | None
) -> Parts:
    """One row per neuron, or the `top` largest and one row `other`; and one for the output bias.

    Args:
        model: The model.
        split: The MLP's write.
        top: How many neurons; None for all.
        along: Rank by the contribution along this vector at each token instead of by norm; the largest over
            the kept tokens counts.
    """
    weight = weight_matrix(model.modules[split.maker.tap.module])
    z = split.inputs
    count = z.shape[-1] if top is None else min(top, z.shape[-1])
    if count == z.shape[-1]:
        chosen = torch.arange(count)
    else:
        size = weight.norm(dim=0).expand_as(z) if along is None else along.to(weight.dtype) @ weight
        chosen = (z * size).abs().flatten(0, 1).amax(0).topk(count).indices.sort().values
    rows = torch.einsum("bpn,dn->nbpd", z[..., chosen].double(), weight[:, chosen].double())
    sites = [replace(split.write.site, neuron=int(n)) for n in chosen]
    if count < z.shape[-1]:
        left = torch.ones(z.shape[-1], dtype=torch.bool)
        left[chosen] = False
        rows = torch.cat([rows, (z[..., left].double() @ weight[:, left].double().T)[None]])
        sites.append(replace(split.write.site, part="other"))
    return _finished(model, split, sites, rows)


def experts(model: ModelHandle, wiring: Wiring, split: Split, whole: Tensor, batch: Batch) -> Parts:
    """One row per expert that a kept token used, and one row `other` for what is no routed expert's.

    The experts module is called again with the weights of all but one choice set to zero: its output is linear
    in them. Cost: as many more calls of it as a token has experts.

    Raises:
        ClosureError: The experts do not sum to what their module gave.
    """
    assert isinstance(split.maker, Experts)
    args, kwargs = split.call
    names = list(kwargs)
    values = [*args, *kwargs.values()]
    index = next((v for v in values if isinstance(v, Tensor) and not v.is_floating_point()), None)
    weights = next((n for n, v in enumerate(values) if _are_weights(v, index)), None)
    if index is None or weights is None:
        raise WiringError(
            f"The experts of {split.write.site} are not called with the numbers and weights of the chosen ones, so "
            "they cannot be told apart.",
            hint="Choose other writes with sites=.",
        )
    module = model.modules[split.maker.tap.module]
    choices = batch.keep(as_stream(index, wiring, batch))
    rows: dict[int, Tensor] = {}
    for choice in range(index.shape[-1]):
        masked = torch.zeros_like(values[weights])
        masked[:, choice] = values[weights][:, choice]
        called = [*values[:weights], masked, *values[weights + 1 :]]
        output = stream_output(module(*called[: len(args)], **dict(zip(names, called[len(args) :], strict=True))))
        assert output is not None
        part = batch.keep(as_stream(output, wiring, batch)).double()
        for expert in choices[..., choice].unique().tolist():
            chosen = (choices[..., choice] == expert)[..., None]
            rows[expert] = rows.get(expert, torch.zeros_like(part)) + part.masked_fill(~chosen, 0.0)
    stacked = torch.stack([rows[e] for e in sorted(rows)])
    wrong = difference(stacked.sum(0), split.inputs, batch.mask)
    if wrong > TOLERANCE and split.inputs.dtype == torch.float32:
        raise ClosureError(f"The experts of {split.write.site} do not sum to its output: {wrong:.1e}.")
    sites = [replace(split.write.site, expert=e) for e in sorted(rows)]
    parts = _finished(model, split, sites, stacked * split.maker.coefficient, constants=False)
    rest = whole.double() - parts.rows.sum(0)
    if float(rest.norm()) <= TOLERANCE * float(whole.double().norm()):
        return parts
    other = replace(split.write.site, part="other")
    return Parts((*parts.sites, other), torch.cat([parts.rows, rest[None]]))


def _are_weights(value: Any, index: Tensor | None) -> bool:
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return is_float and index is not None and value.shape == index.shape


def _by_head(model: ModelHandle, split: Split) -> tuple[Tensor, Tensor]:
    """W as [d_model, head, head_dim] and z as [batch, pos, head, head_dim], in float64."""
    assert isinstance(split.maker, Projection)
    weight = weight_matrix(model.modules[split.maker.tap.module]).double()
    n_heads = split.maker.heads
    return weight.unflatten(-1, (n_heads, -1)), split.inputs.double().unflatten(-1, (n_heads, -1))


def _finished(model: ModelHandle, split: Split, sites: list[Site], rows: Tensor, *, constants: bool = True) -> Parts:
    """The rows through the branch-output norm and the multiplier, with the constants as rows of their own."""
    maker, site = split.maker, split.write.site
    bias = getattr(model.modules[maker.tap.module], "bias", None) if constants else None
    if isinstance(bias, Tensor):
        sites = [*sites, replace(site, part="bias")]
        rows = torch.cat([rows, bias.detach().double().expand_as(rows[:1])])
    if maker.norm is not None:
        norm = model.frozen_norm(maker.norm, split.outputs)
        rows = norm.linear(rows)
        if norm.bias is not None and constants:
            sites = [*sites, replace(site, part="norm.bias")]
            rows = torch.cat([rows, norm.bias.expand_as(rows[:1])])
    return Parts(tuple(sites), rows * split.write.scale)


def difference(parts: Tensor, whole: Tensor, mask: TokenMask) -> float:
    """The largest relative difference over tokens; a write that is nothing at a token is compared with the others."""
    size = whole.double().norm(dim=-1)[mask]
    wrong = (parts - whole.double()).norm(dim=-1)[mask]
    return float((wrong / size.clamp_min(1e-3 * float(size.max()) + 1e-300)).max())
