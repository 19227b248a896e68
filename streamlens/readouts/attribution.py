"""Direct logit attribution: what each write gives a reader, in parts that sum to the model's own value.

Direct logit attribution (Wang et al. 2022) sends a write through the final norm with its scale frozen at this
pass, onto the reader's rows:

1. contribution of u = R diag(gain) (I - 11^T/d) u / sigma under LayerNorm, R diag(gain) u / sigma under RMSNorm;
   R u for a reader without a norm.
2. What is no write gets a row of its own: the stream's `rounding`, `final_norm.bias`, `unembed.bias`, and
   `softcap`, which is the softcap's effect on the finished sum.
3. The sum is compared with the model's own value. `closure` is the difference; it is not put into any row.

Not to be mixed with the logit lens (`lens.py`), which uses the norm each depth really has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.display import display_token
from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.notebook import ROWS, summary_html
from streamlens.readouts.readers.reader import Reader
from streamlens.sites import Site

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class Readout:
    """What every row of a ledger gives a reader.

    Attributes:
        ledger: The ledger that was read.
        reader: The reader.
        sites: The rows: the ledger's writes, then `rounding`, `final_norm.bias`, `unembed.bias`, `softcap` as
            far as they exist.
        contributions: In the reader's unit, float64, [write, batch, pos, reader].
        observed: The model's own value, [batch, pos, reader]; None where the ledger is cut off before the end.
    """

    ledger: Ledger
    reader: Reader
    sites: tuple[Site, ...]
    contributions: Float[Tensor, "write batch pos reader"]
    observed: Float[Tensor, "batch pos reader"] | None

    @property
    def labels(self) -> tuple[str, ...]:
        """The rows' labels."""
        return tuple(site.label for site in self.sites)

    @cached_property
    def total(self) -> Float[Tensor, "batch pos reader"]:
        """The sum of the contributions, in the reader's unit."""
        return self.contributions.sum(0)

    @cached_property
    def closure(self) -> Float[Tensor, "batch pos reader"]:
        """|total - observed| in the reader's unit; NaN where there is nothing to compare with; 0 at padding."""
        if self.observed is None:
            return torch.full_like(self.total, float("nan"))
        return (self.total - self.observed).abs().masked_fill(~self.ledger.mask[..., None], 0.0)

    def to_frame(self) -> "pd.DataFrame":
        """One row per (prompt, position, reader, write); see `streamlens.frames.readout_frame`."""
        from streamlens.frames import readout_frame

        return readout_frame(self)

    def _repr_html_(self) -> str:
        """In a notebook: the largest contributions to the first row at the last kept token, their sum, and closure."""
        ledger = self.ledger
        place = int(ledger.mask[0].nonzero().max())
        sizes = self.contributions[:, 0, place, 0].tolist()
        order = sorted(range(len(sizes)), key=lambda row: -abs(sizes[row]))[:ROWS]
        rows = [(self.labels[row], (sizes[row],)) for row in order]
        if rest := len(sizes) - len(order):
            rows.append((f"other ({rest})", (sum(sizes) - sum(sizes[row] for row in order),)))
        where = f"{display_token(ledger.tokens[0][place], width=24)} (position {int(ledger.indices[0, place])})"
        return summary_html(
            f"{self.reader.rows[0]} at {where}",
            ("part", self.reader.unit),
            [*rows, ("total", (sum(sizes),))],
            closing=f"closure {float(self.closure.max()):.1e} {self.reader.unit}",
        )

    def __repr__(self) -> str:
        rows, batch, pos, k = self.contributions.shape
        return (
            f"Readout({self.reader.name}: {rows} rows x {batch} prompts x {pos} positions x {k} readers; "
            f"closure {float(self.closure.max()):.1e} {self.reader.unit})"
        )


@typed
def read(ledger: Ledger, reader: Reader) -> Readout:
    """Direct logit attribution of every row of a ledger to a reader.

    Args:
        ledger: From `decompose`.
        reader: From `Reader.logits`, `Reader.logit_diff` or `Reader.direction`.

    Returns:
        Contributions in the reader's unit; positive pushes the reader's value up.

    Raises:
        InputError: A reader of another width than the stream, or a logit read off an encoder's.

    Cost: O(writes x positions x d_model) per reader row, in float64.
    """
    if reader.vocabulary is not None and ledger.provenance.get("stream") == "encoder":
        raise InputError(
            f"{reader.name} is read off the decoder's stream; this ledger is the encoder's.",
            hint="Read the encoder along a direction: Reader.direction(vector).",
        )
    ledger = reader.seen(ledger)
    linear = project(ledger, reader)
    parts = [linear(write) for write in ledger.writes]
    rows = [*ledger.sites, Site(kind="rounding")]
    parts.append(linear(ledger.rounding))
    ones = torch.ones_like(parts[0])
    norm = reader.norm_at(ledger)
    if norm is not None and norm.bias is not None:
        rows.append(Site(kind="final_norm.bias"))
        parts.append(ones * (reader.matrix.to(norm.bias.device) @ norm.bias))
    if reader.bias.any():
        rows.append(Site(kind="unembed.bias"))
        parts.append(ones * reader.bias.to(ones.device))
    if reader.vocabulary is not None and reader.vocabulary.softcap is not None:
        rows.append(Site(kind="softcap"))
        parts.append(softcap(ledger, reader))
    return Readout(
        ledger=ledger,
        reader=reader,
        sites=tuple(rows),
        contributions=torch.stack(parts),
        observed=observe(ledger, reader),
    )


def project(ledger: Ledger, reader: Reader) -> Callable[[Tensor], Tensor]:
    """The linear map from an update of the final stream to the reader, with the norm frozen at this pass.

    Returns:
        A function from [batch, pos, d_model] to [batch, pos, reader], in float64.

    Raises:
        InputError: A reader of another width than the stream.
    """
    return _through_norm(ledger, reader, reader.matrix)


def _through_norm(ledger: Ledger, reader: Reader, matrix: Tensor) -> Callable[[Tensor], Tensor]:
    d_model = ledger.stream.shape[-1]
    if matrix.shape[-1] != d_model:
        raise InputError(f"A reader is as wide as the stream, {d_model}; {reader.name!r} is {matrix.shape[-1]} wide.")
    matrix = matrix.to(ledger.stream.device)
    norm = reader.norm_at(ledger)
    if norm is None:
        return lambda update: update.double() @ matrix.T
    folded = matrix * norm.gain
    if norm.centred:
        folded = folded - folded.mean(-1, keepdim=True)
    return lambda update: (update.double() @ folded.T) * norm.scale[..., None]


def softcap(ledger: Ledger, reader: Reader) -> Float[Tensor, "batch pos reader"]:
    """What the softcap does to the finished sum: mix @ (cap tanh(raw / cap) - raw); 0 without one."""
    vocabulary = reader.vocabulary
    if vocabulary is None or vocabulary.softcap is None:
        return torch.zeros(
            *ledger.stream.shape[:2], len(reader.matrix), dtype=torch.float64, device=ledger.stream.device
        )
    matrix = vocabulary.matrix.to(ledger.stream.device)
    raw = _through_norm(ledger, reader, matrix)(ledger.stream) + vocabulary.bias.to(ledger.stream.device)
    if ledger.final_norm is not None and ledger.final_norm.bias is not None:
        raw = raw + matrix @ ledger.final_norm.bias
    cap = vocabulary.softcap
    return (cap * torch.tanh(raw / cap) - raw) @ vocabulary.mix.to(raw.device).T


def observe(ledger: Ledger, reader: Reader) -> Float[Tensor, "batch pos reader"] | None:
    """The model's own value: from its logits where they were kept, else from its own normed stream."""
    matrix, bias = reader.matrix.to(ledger.stream.device), reader.bias.to(ledger.stream.device)
    vocabulary = reader.vocabulary
    if ledger.logits is not None and vocabulary is not None:
        return ledger.logits[..., list(vocabulary.ids)].double() @ vocabulary.mix.to(ledger.logits.device).T
    if reader.norm == "none":
        return ledger.stream.double() @ matrix.T + bias
    if reader.norm == "input":
        norm = reader.norm_at(ledger)
        assert norm is not None
        normed = norm.linear(ledger.stream)
        return (normed if norm.bias is None else normed + norm.bias) @ matrix.T + bias
    if ledger.normed is None or (vocabulary is not None and vocabulary.softcap is not None):
        return None
    return ledger.normed.double() @ matrix.T + bias
