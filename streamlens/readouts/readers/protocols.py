"""What readers of a model's own branches ask of its handle. This folder knows no model.

`ReadsStream` is the handle; it hands over `BranchReads`, whose parts are `LinearRead`s: what
`streamlens.models.reads` measured, as frozen data.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from streamlens.carries import StreamNorm
from streamlens.readouts.readers.vocabulary import LinearHead
from streamlens.sites import Site


@runtime_checkable
class LinearRead(Protocol):
    """Rows of one linear map off the stream; see `streamlens.models.wiring.Read`."""

    @property
    def site(self) -> Site: ...
    @property
    def part(self) -> str: ...
    @property
    def after(self) -> Site: ...
    @property
    def norm(self) -> Any: ...
    @property
    def rows(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def serves(self) -> tuple[int, ...]: ...
    @property
    def neurons(self) -> bool: ...


@runtime_checkable
class BranchReads(Protocol):
    """What one branch reads; see `streamlens.models.wiring.Reads`."""

    @property
    def site(self) -> Site: ...
    @property
    def parts(self) -> Sequence[LinearRead]: ...
    @property
    def missing(self) -> Sequence[tuple[str, str]]: ...


@runtime_checkable
class ReadsStream(Protocol):
    """A handle: its linear maps off the stream, its norms, and its unembedding."""

    @property
    def name(self) -> str: ...
    @property
    def final_norm(self) -> StreamNorm | None: ...
    def reads(self, stream: str | None = None) -> Sequence[Any]: ...
    def read_rows(self, read: Any, rows: Sequence[int]) -> tuple[Tensor, Tensor]: ...
    def stream_norm(self, norm: Any) -> StreamNorm: ...
    def unembedding(self, ids: Sequence[int] | None = None) -> LinearHead: ...
    def token_texts(self, ids: Sequence[int]) -> tuple[str, ...]: ...
