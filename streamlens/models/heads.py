"""Which rows of which linear map are a head's query, key and value: read off the numbers, since layouts differ.

1. `hooks/products.py` shows what each attention multiplied: query, key and value of every head.
2. The probe puts every token at position 0, where rotary embeddings turn by no angle. There each coordinate of a head
   has, at every token, the value of one output of a linear map that reads the stream, times one number for all
   coordinates. A model that takes no positions is at position 0 with the first token of each prompt alone.
3. Where none fits, one more call may stand between that keeps the shape (the norm of queries and keys in Qwen 3): its
   input is looked for instead.
4. Key and value heads that several query heads share show as equal rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from streamlens.hooks.products import Attention
from streamlens.hooks.record import Event
from streamlens.models.linears import Linear
from streamlens.models.wiring import Read
from streamlens.sites import Site

#: relative distance under which two columns of numbers are the same up to a factor
NEAR = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 6e-3}
_WORDS = {"q": "queries", "k": "keys", "v": "values"}
#: all tokens
EVERY = slice(None)
#: the first token of each prompt
FIRST = slice(0, 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Table:
    """What a head's coordinates can be, one column each over the picked tokens, in float64.

    Attributes:
        columns: The outputs of the linear maps, [token, column].
        owners: Which map and which of its outputs each column is.
        steps: For each call that keeps a shape: its module, and its input and output as columns.
        pick: Which positions.
    """

    columns: Tensor
    owners: Sequence[tuple[Linear, int]]
    steps: Sequence[tuple[str, Tensor, Tensor]]
    pick: slice

    def rows(self, heads: Tensor) -> tuple[Linear, tuple[tuple[int, ...], ...], str] | None:
        """The linear map behind heads [batch, pos, head, width], its rows for each, and the module in between."""
        near, wanted = NEAR[heads.dtype], _columns(heads, self.pick)
        between, at = "", locate(wanted, self.columns, near)
        if at is None:
            for module, before, after in self.steps:
                through = locate(wanted, after, near)
                if through is not None and (at := locate(before[:, through], self.columns, near)) is not None:
                    between = module
                    break
        if at is None:
            return None
        places = [self.owners[n] for n in at.tolist()]
        linear, width = places[0][0], heads.shape[-1]
        if any(other is not linear for other, _ in places):
            return None
        rows = [row for _, row in places]
        return linear, tuple(tuple(rows[n : n + width]) for n in range(0, len(rows), width)), between


def attention_reads(
    site: Site,
    linears: Sequence[Linear],
    inside: Sequence[Event],
    attentions: Sequence[Attention],
    picks: Sequence[slice],
) -> tuple[tuple[Read, ...], tuple[tuple[str, str], ...]]:
    """The queries, keys and values of one branch, and for each that was not found one sentence why.

    Args:
        site: The branch's write.
        linears: What it reads the stream with.
        inside: All calls of its block.
        attentions: Every attention of the probe.
        picks: At which tokens to compare, one choice after the other.
    """
    used = [_heads(attention, *linears[0].output.shape[:2]) for attention in attentions]
    steps = list(_steps(inside, linears[0].output))
    found: dict[str, list[Read]] = {}
    for pick in picks:
        open_parts = [part for part in _WORDS if part not in found]
        if not open_parts:
            break
        table = _tabled(linears, steps, pick)
        for heads in _seen(used, table):
            for part in [part for part in open_parts if part in heads]:
                if (match := table.rows(heads[part])) is not None:
                    queries = heads.get("q", heads[part]).shape[2]
                    found.setdefault(part, []).append(_as_read(part, *match, queries=queries))
    if not found and site.kind not in ("attn", "cross_attn"):
        return (), ()
    reads = {part: different[0] for part, every in found.items() if len(different := list(dict.fromkeys(every))) == 1}
    missing = {part: _why(site, part, found) for part in _WORDS if part not in reads}
    return tuple(reads.values()), tuple(missing.items())


def locate(wanted: Tensor, columns: Tensor, near: float) -> Tensor | None:
    """For each wanted column [token, n] the one among `columns` that is a multiple of it; None if one has none.

    The multiple has to be the same for all.
    """
    unit = _unit(columns)
    for part in (wanted[:, :1], wanted):  # nearly always the first column already tells
        best = (part.T @ unit).abs().argmax(-1)
        chosen = columns[:, best]
        factors = (part * chosen).sum(0) / chosen.square().sum(0).clamp_min(1e-300)
        wrong = (part - factors * chosen).norm(dim=0) / part.norm(dim=0).clamp_min(1e-300)
        if not (wrong < near).all() or not ((factors - factors[0]).abs() <= 10 * near * factors[0].abs()).all():
            return None
    return best


def _why(site: Site, part: str, found: Mapping[str, Sequence[Read]]) -> str:
    if site.kind == "cross_attn" and part in ("k", "v"):
        return f"The {_WORDS[part]} of {site} are read off the encoder's stream."
    if part in found:
        return f"{site} attends more than once, with different {_WORDS[part]}."
    return f"The {_WORDS[part]} of {site} are no linear map of the stream, or it does not attend by a softmax."


def _heads(attention: Attention, batch: int, length: int) -> dict[str, Tensor]:
    """Query, key and value of every head at the stream's own tokens, [batch, pos, head, width]."""
    found = {}
    for part, value in (("q", attention.query), ("k", attention.key), ("v", attention.value)):
        if value.dim() == 3 and value.shape[0] % batch == 0:
            value = value.reshape(batch, -1, *value.shape[1:])
        if value.dim() == 4 and (value.shape[0], value.shape[2]) == (batch, length):
            found[part] = value.transpose(1, 2)
    return found


def _tabled(linears: Sequence[Linear], steps: Sequence[tuple[str, Tensor, Tensor]], pick: slice) -> _Table:
    return _Table(
        columns=torch.cat([_columns(linear.output, pick) for linear in linears], 1),
        owners=[(linear, row) for linear in linears for row in range(linear.output.shape[-1])],
        steps=[(module, _columns(before, pick), _columns(after, pick)) for module, before, after in steps],
        pick=pick,
    )


def _columns(values: Tensor, pick: slice) -> Tensor:
    """Values [batch, pos, ...] as columns over the picked tokens, in float64."""
    return values[:, pick].flatten(0, 1).flatten(1).double()


def _seen(used: Sequence[dict[str, Tensor]], table: _Table) -> Iterator[dict[str, Tensor]]:
    """The attentions of which some part's first and last coordinate are multiples of columns of the table."""
    used = [heads for heads in used if heads]
    if not used:
        return
    unit = _unit(torch.cat([table.columns, *(after for _, _, after in table.steps)], 1))
    ends = [_columns(values[:, :, [0, -1], [0, -1]], table.pick) for heads in used for values in heads.values()]
    best = (_unit(torch.cat(ends, 1)).T @ unit).abs().amax(1).reshape(-1, 2).amin(1).split([len(h) for h in used])
    for heads, cosines in zip(used, best, strict=True):
        near = NEAR[next(iter(heads.values())).dtype]
        if (1 - cosines.square()).min() < near**2 + 1e-14:
            yield heads


def _unit(columns: Tensor) -> Tensor:
    return columns / columns.norm(dim=0).clamp_min(1e-300)


def _steps(inside: Sequence[Event], like: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Calls that keep a shape, by module: what went in and what came out, [batch, pos, ...]."""
    batch, length = like.shape[:2]
    for event in inside:
        if event.output is None or not event.inputs or event.inputs[0].shape != event.output.shape:
            continue
        before, after = event.inputs[0], event.output
        shape = tuple(after.shape)
        if len(shape) > 2 and shape[:2] == (batch, length):
            yield event.module, before, after
        elif len(shape) > 2 and shape[:2] == (length, batch):
            yield event.module, before.transpose(0, 1), after.transpose(0, 1)
        if len(shape) == 4 and (shape[0], shape[2]) == (batch, length):  # behind the heads
            yield event.module, before.transpose(1, 2), after.transpose(1, 2)


def _as_read(part: str, linear: Linear, rows: tuple[tuple[int, ...], ...], between: str, *, queries: int) -> Read:
    """Heads with equal rows are one; each query head knows which it uses."""
    distinct = tuple(dict.fromkeys(rows))
    shared = max(1, queries // len(rows))
    serves = tuple(distinct.index(rows[head // shared]) for head in range(queries))
    return linear.read(part, distinct, serves=serves, between=between)
