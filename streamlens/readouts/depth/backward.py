"""The backward ledger: the gradient at the embedding as a sum over branches.

    g[s] = C_s^T g[s+1] + J_s^T g[s+1]

1. `gradient` is what torch.autograd gives at every write, in one backward of the whole model.
2. `direct` is the route along the stream alone; `contributions` what each branch hands back, from its own
   vector-Jacobian product. They were computed without the gradient they explain, so that the sum can fail.
3. `summed` is the direct route and all later branches at each depth. `closure` is its distance to `gradient`.

Depths are the writes: the gradient at one is dm/du, everything after it included. In a pre-norm model that is the
gradient of the stream right after the write. The carries here are the real derivatives of the norms that a post-norm
stream goes through, their statistics moving; only so is the sum the gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from streamlens.axes import PerToken
from streamlens.ledger import Ledger
from streamlens.sites import Site, find

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class BackwardLedger:
    """The gradient of one number per prompt, at every write and position. All gradients are float64.

    Attributes:
        ledger: The run without edits, at all positions: its tokens, its writes, its own closing error.
        metric: What is differentiated: a reader's row or a loss, by name.
        unit: Its unit; a gradient is in it per unit of the write.
        value: Its value, one per prompt.
        places: Where it is read, within each prompt's own tokens.
        sites: The writes, in stream order. A constant that is added (a norm's bias) has no gradient here.
        gradient: dm/du at each write, from one backward of the whole model.
        direct: The route past all later branches.
        summed: The direct route and what every later branch hands back.
        reads: For each branch the write right behind which it reads the stream, by their numbers here.
        contributions: What each branch hands back where it reads: J^T g; 0 for a write that is no branch.
        arrived: The same at the first write, the embedding.
    """

    ledger: Ledger
    metric: str
    unit: str
    value: Float[Tensor, " batch"]
    places: tuple[tuple[int, ...], ...]
    sites: tuple[Site, ...]
    gradient: Float[Tensor, "write batch pos d_model"]
    direct: Float[Tensor, "write batch pos d_model"]
    summed: Float[Tensor, "write batch pos d_model"]
    reads: Mapping[int, int]
    contributions: Float[Tensor, "write batch pos d_model"]
    arrived: Float[Tensor, "write batch pos d_model"]

    @property
    def labels(self) -> tuple[str, ...]:
        """The writes' labels."""
        return tuple(site.label for site in self.sites)

    @property
    def total(self) -> Float[Tensor, "batch pos d_model"]:
        """The total gradient at the embedding."""
        return self.gradient[0]

    @cached_property
    def rounding(self) -> Float[Tensor, "batch pos d_model"]:
        """The total gradient minus the direct route and all branches, at the embedding."""
        return self.total - self.direct[0] - self.arrived.sum(0)

    @cached_property
    def closure(self) -> PerToken:
        """||gradient - summed|| at each position over the ||gradient|| of the whole prompt, at the worst depth.

        Not over the position's own: far from the reader a gradient can be a rounding of those beside it.
        """
        error = (self.gradient - self.summed).norm(dim=-1)
        whole = self.norms()[:, :, None].clamp_min(1e-300)
        return (error / whole).amax(0).masked_fill(~self.ledger.mask.to(error.device), 0.0)

    @cached_property
    def branches(self) -> Bool[Tensor, " write"]:
        """Which writes read the stream: the embeddings do not."""
        return torch.tensor([row in self.reads for row in range(len(self.sites))])

    @cached_property
    def cosine_direct(self) -> Float[Tensor, "write batch pos"]:
        """Cosine of each branch's contribution and the direct route where it reads; NaN where either is 0.

        The direct route is 0 at every position but those that are read.
        """
        return _cosine(self.contributions, self._where_read(self.direct))

    @cached_property
    def alignment(self) -> Float[Tensor, "write batch pos"]:
        """Cosine of each branch's contribution and the rest of the gradient where it reads; NaN where either is 0.

        Positive: the branch amplifies the gradient that comes past it. Negative: it cancels some of it.
        """
        return _cosine(self.contributions, self._where_read(self.gradient) - self.contributions)

    @cached_property
    def effects(self) -> Float[Tensor, "write batch pos"]:
        """Gradient times write: the first-order effect of the write, in the metric's unit.

        Minus it is the first-order estimate of zeroing the write at that position: attribution patching.
        """
        rows = [self.ledger.sites.index(site) for site in self.sites]
        return (self.gradient * self.ledger.added[rows].double()).sum(-1).masked_fill(~self.ledger.mask, 0.0)

    @cached_property
    def shares(self) -> Float[Tensor, "write batch pos"]:
        """<what arrived, total> / |total|^2, the total over all of the prompt's positions: signed.

        Over writes and positions they sum to 1 minus the share of the direct route (`direct_share`), up to `closure`.
        """
        return self._share(self.arrived)

    @cached_property
    def direct_share(self) -> PerToken:
        """The same for the direct route."""
        return self._share(self.direct[:1])[0]

    def norms(self, route: str = "gradient") -> Float[Tensor, "write batch"]:
        """The norm over all positions of a prompt, by depth: of the "gradient", "direct" or "contributions"."""
        return getattr(self, route).square().sum((-1, -2)).sqrt()

    def at(self, label: str | Site) -> Float[Tensor, "batch pos d_model"]:
        """The gradient at one write.

        Raises:
            InputError: No write of that name.
        """
        return self.gradient[self.sites.index(find(label, self.sites))]

    def to_frame(self) -> "pd.DataFrame":
        """One row per (prompt, position, write); see `streamlens.frames.SCHEMAS["backward"]`."""
        from streamlens.frames import backward_frame

        return backward_frame(self)

    def _where_read(self, gradients: Tensor) -> Tensor:
        return gradients[[self.reads.get(row, row) for row in range(len(self.sites))]]

    def _share(self, parts: Tensor) -> Tensor:
        size = self.total.square().sum((-1, -2))[:, None].clamp_min(1e-300)
        return (parts * self.total).sum(-1) / size

    def __repr__(self) -> str:
        return (
            f"BackwardLedger({self.metric}: {int(self.branches.sum())} branches, closes within "
            f"{float(self.closure.max()):.1e})"
        )


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """NaN where either is 0."""
    return (one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1))
