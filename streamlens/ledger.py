"""The Ledger: every write to the residual stream, and the proof that they sum to it.

1. Capture hands over the writes as they were added, the program of additions and carries, and the stream.
2. `writes` are these writes as they arrive at the end: through every carry after them, with the statistics
   of this pass frozen. In a pre-norm model every carry is the identity and they are the module outputs.
3. `rounding` is what the model's own roundings added: stream minus the float64 sum. With it the table sums
   exactly; `closure` is its size.
4. `at` is the same ledger cut off after one write.

A Ledger runs no model and holds none.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.axes import PerToken, Stream, TokenIds, TokenMask, Writes
from streamlens.carries import Add, FrozenCarry, FrozenNorm, Step, rows_of, total, transport, walk
from streamlens.display import display_token
from streamlens.errors import InputError
from streamlens.notebook import ROWS, summary_html
from streamlens.positions import find_position
from streamlens.sites import Site, find

if TYPE_CHECKING:
    import pandas as pd

#: a token whose final stream is this many times the median norm of its prompt is an attention sink
SINK_RATIO = 4.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Ledger:
    """The residual stream of one or more prompts, as a sum.

    `stream = writes.sum(0) + rounding`, in float64, at every kept position.

    Attributes:
        sites: Where each row comes from, in stream order.
        added: The writes as they were added, before what their sum was multiplied by (`Add.factor`), in the
            stream's dtype, [write, batch, pos, d_model].
        program: The steps of the stream over these rows.
        norms: The norms among the carries, frozen at this pass; empty in a pre-norm model. In the lab also other
            linear carries.
        states: The real output of each such norm, by step number.
        stream: The stream at the end, as the model made it.
        in_order: Largest absolute difference when the writes are re-added in the model's order and dtype;
            0.0 unless something is wrong.
        token_ids: The kept tokens; `tokens` their text, `special` whether they are special tokens.
        tokens: Text of each kept token, one tuple per prompt.
        special: True for special tokens and padding.
        mask: False where a position is padding; its numbers mean nothing and no frame shows them.
        indices: The position of each kept token within its own prompt; -1 at padding.
        sinks: Tokens whose final stream is more than `SINK_RATIO` times their prompt's median norm.
        split_error: For each write that was split into heads, neurons or sources: the largest relative
            difference between the write and the sum of its parts, over the kept positions.
        attention: At source level, the attention probability from each kept token to each row's source token,
            [write, batch, pos]; NaN for the other rows. None at other levels.
        final_norm: The final norm frozen at this pass; None if the model has none.
        normed: The final norm's real output; None where the ledger is cut off before the end.
        logits: The model's own logits at the kept positions; None if there are none or they were not kept.
        prompts: The prompts as given, or as decoded.
        context: Text of all of each prompt's own tokens, kept or not.
        encoder_context: For a decoder, the same of its encoder; what cross-attention reads.
        provenance: Model, revision, device, dtype, BOS choice, level, versions.
    """

    sites: tuple[Site, ...]
    added: Writes
    program: tuple[Step, ...]
    norms: tuple[FrozenCarry, ...] = ()
    states: Mapping[int, Stream]
    stream: Stream
    in_order: float
    token_ids: TokenIds
    tokens: tuple[tuple[str, ...], ...]
    special: TokenMask
    mask: TokenMask
    indices: TokenIds
    sinks: TokenMask
    split_error: Mapping[str, float] = field(default_factory=dict)
    attention: Float[Tensor, "write batch pos"] | None = None
    final_norm: FrozenNorm | None = None
    normed: Stream | None = None
    logits: Float[Tensor, "batch pos vocab"] | None = None
    prompts: tuple[str, ...]
    context: tuple[tuple[str, ...], ...]
    encoder_context: tuple[tuple[str, ...], ...] = ()
    provenance: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """The rows' labels, in stream order: `embed`, `L0.attn`, `L0.mlp`, ..."""
        return tuple(site.label for site in self.sites)

    @cached_property
    def writes(self) -> Writes:
        """Each write as it arrives in `stream`, without the rounding row; see the module's docstring."""
        return transport(self.program, self.added, self.norms)

    @cached_property
    def rounding(self) -> Float[Tensor, "batch pos d_model"]:
        """What the model's roundings added to the stream: stream minus the sum of the writes, in float64."""
        return self.stream.double() - total(self.writes)

    @cached_property
    def closure(self) -> PerToken:
        """||rounding|| / ||stream|| per position; about 3e-7 in float32, 1e-2 in bfloat16; 0 at padding."""
        size = torch.linalg.vector_norm(self.stream, dim=-1, dtype=torch.float64)
        error = self.rounding.norm(dim=-1) / size.clamp_min(1e-300)
        return error.masked_fill(~self.mask, 0.0)

    def at(self, label: str | Site) -> "Ledger":
        """The ledger of the stream right after one write: its own rows, its own sum, its own rounding.

        In a post-norm model the norm that follows the write belongs to it. In a parallel block there is no
        such point in the model; the stream is then the sum up to that write.

        Raises:
            InputError: No write of that name.
        """
        row = self._row(label)
        stop = next(n for n, step in enumerate(self.program) if row in rows_of(step))
        step = self.program[stop]
        kept: list[Step] = list(self.program[: stop + 1])
        if isinstance(step, Add) and step.writes[-1] != row:
            kept[stop] = replace(step, writes=step.writes[: step.writes.index(row) + 1])
        else:
            after = self.program[stop + 1 :]
            kept += itertools.takewhile(lambda following: not isinstance(following, Add), after)
        # rows stand in the order of the program, so what the kept steps use is a prefix of them
        count = 1 + max(r for s in kept for r in rows_of(s))
        program = tuple(kept)
        states = {n: s for n, s in self.states.items() if n < len(kept)}
        added = self.added[:count]
        *_, (_, _, _, stream) = walk(program, added, states)
        return replace(
            self,
            sites=self.sites[:count],
            attention=None if self.attention is None else self.attention[:count],
            added=added,
            program=program,
            states=states,
            stream=stream,
            normed=None,
            logits=None,
        )

    def _row(self, label: str | Site) -> int:
        """The last row of a write: its own, or the last of its parts where it has been split."""
        wholes = [site.sublayer if site.part != "norm.bias" else site for site in self.sites]
        named = find(label, dict.fromkeys([*self.sites, *wholes]))
        rows = [n for n, site in enumerate(self.sites) if site == named]
        return rows[0] if rows else max(n for n, site in enumerate(wholes) if site == named)

    def prompt(self, rows: slice, places: slice = slice(None)) -> "Ledger":
        """The ledger of some of the prompts, and of some of their kept positions; tensors are views."""
        at = rows, places
        final = self.final_norm
        return replace(
            self,
            added=self.added[:, rows, places],
            norms=tuple(norm.select(rows, places) for norm in self.norms),
            states={n: state[at] for n, state in self.states.items()},
            stream=self.stream[at],
            token_ids=self.token_ids[at],
            tokens=tuple(texts[places] for texts in self.tokens[rows]),
            special=self.special[at],
            mask=self.mask[at],
            indices=self.indices[at],
            sinks=self.sinks[at],
            attention=None if self.attention is None else self.attention[:, rows, places],
            final_norm=None if final is None else final.select(rows, places),
            normed=None if self.normed is None else self.normed[at],
            logits=None if self.logits is None else self.logits[at],
            prompts=self.prompts[rows],
            context=self.context[rows],
            encoder_context=self.encoder_context[rows],
        )

    def place(self, position: int | str, *, prompt: int = 0) -> "Ledger":
        """The ledger of one token: its position within the prompt, or its text.

        Raises:
            InputError: No such token, several of that text, or a position that was not kept.
        """
        if not 0 <= prompt < len(self.context):
            raise InputError(f"A prompt of this ledger is between 0 and {len(self.context) - 1}; got {prompt}.")
        found = find_position(self.context[prompt], position)
        kept = self.indices[prompt].tolist()
        if found not in kept:
            held = ", ".join(str(index) for index in kept if index >= 0)
            raise InputError(f"This ledger keeps the positions {held}; got {found}.")
        place = kept.index(found)
        return self.prompt(slice(prompt, prompt + 1), slice(place, place + 1))

    def source_text(self, site: Site, prompt: int) -> str | None:
        """The text of the token a source row reads; None where a shorter prompt has no such token."""
        texts = (self.encoder_context if site.kind == "cross_attn" else self.context)[prompt]
        return texts[site.source] if site.source is not None and site.source < len(texts) else None

    def to_frame(self) -> "pd.DataFrame":
        """One row per (prompt, position, write); see `streamlens.frames.writes_frame` for the columns."""
        from streamlens.frames import writes_frame

        return writes_frame(self)

    def _repr_html_(self) -> str:
        """In a notebook: the largest shares at the last kept token of the first prompt, and closure."""
        place = int(self.mask[0].nonzero().max())
        stream = self.stream[0, place].double()
        updates = self.writes[:, 0, place].double()
        shares = (updates @ stream / stream.square().sum().clamp_min(1e-300)).tolist()
        norms = updates.norm(dim=-1).tolist()
        order = sorted(range(len(shares)), key=lambda row: -abs(shares[row]))[:ROWS]
        where = f"{display_token(self.tokens[0][place], width=24)} (position {int(self.indices[0, place])})"
        return summary_html(
            f"{len(shares)} writes x {len(self.prompts)} prompts x {self.added.shape[2]} positions; at {where}",
            ("write", "norm", "share of the stream"),
            [(self.labels[row], (norms[row], shares[row])) for row in order],
            others=len(shares) - len(order),
            closing=f"closure {float(self.closure.max()):.1e}, in order {self.in_order:g}",
        )

    def __repr__(self) -> str:
        rows, batch, pos, d_model = self.added.shape
        return (
            f"Ledger({rows} writes x {batch} prompts x {pos} positions x {d_model}; "
            f"closure {float(self.closure.max()):.1e}, in order {self.in_order:g})"
        )
