"""The ledger of an ablation: for every write, what it was, what it became, and what that did to each reader.

1. Two ledgers of the same tokens, clean and ablated, and which writes were edited where.
2. Every write is `edit` where it was changed on purpose, `response` where it moved by itself, `unchanged` where it is
   the same to the last bit.
3. `effects` splits each reader's change (`effects.py`); `headline` says it in one line.

Signs everywhere: ablated - clean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jaxtyping import Bool, Float
from torch import Tensor

from streamlens.display import display_token
from streamlens.errors import InputError
from streamlens.ledger import Ledger
from streamlens.notebook import ROWS, summary_html
from streamlens.readouts.effects import Effects, effects, kl_divergence
from streamlens.readouts.readers.reader import Reader

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class AblationLedger:
    """One or more edited runs of a prompt beside the clean one.

    Attributes:
        clean: The run without edits, one prompt, at the kept positions.
        ablated: The edited runs, one batch row each.
        changed: Which writes were edited where, [write, batch, pos].
        variants: What was edited in each run, as text.
        readers: What to read.
        reused: Whether keys and values of the clean run were reused.
        vocabulary: Text of the tokens that a table of effects names, by id.
    """

    clean: Ledger
    ablated: Ledger
    changed: Bool[Tensor, "write batch pos"]
    variants: tuple[str, ...]
    readers: tuple[Reader, ...]
    reused: bool
    vocabulary: Callable[[Sequence[int]], Sequence[str]]

    def text_of(self, token_id: int) -> str:
        """The text of a token of the vocabulary."""
        return self.vocabulary([token_id])[0]

    @cached_property
    def divergence(self) -> Float[Tensor, "variant pos"]:
        """KL(clean || ablated) of the next-token distributions, in nats; NaN without logits."""
        return kl_divergence(self.clean, self.ablated)

    @cached_property
    def _effects(self) -> tuple[Effects, ...]:
        return tuple(effects(self.clean, self.ablated, self.changed, reader) for reader in self.readers)

    def effect_of(self, reader: "Reader | str") -> Effects:
        """The split change of one reader, by itself or by its name.

        Raises:
            InputError: Not one of the readers of this ablation.
        """
        for mine, effect in zip(self.readers, self._effects, strict=True):
            if mine is reader or mine.name == reader:
                return effect
        names = ", ".join(mine.name for mine in self.readers) or "none"
        raise InputError(f"A reader of this ablation is one of {names}; got {getattr(reader, 'name', reader)!r}.")

    def effects(self) -> "pd.DataFrame":
        """One row per (variant, reader, position): direct, indirect, rescale, total, observed, closure, ...

        Without readers one row per (variant, position): what became of the output.

        See `streamlens.frames.SCHEMAS["effects"]`.
        """
        from streamlens.frames import effects_frame

        return effects_frame([self])

    def to_frame(self) -> "pd.DataFrame":
        """One row per (variant, position, write): what it was, what it became, and its status.

        See `streamlens.frames.SCHEMAS["ablation"]`.
        """
        from streamlens.frames import ablation_frame

        return ablation_frame(self)

    def headline(self, reader: "Reader | str | None" = None) -> str:
        """*Subtracting L1.attn predicts +0.42; rerunning the model gives -3.89.* For the last kept position.

        An edit that is no zeroing is not a subtraction: *Changing L1.attn=mean alone predicts ...*
        """
        effect = self.effect_of(self.readers[0] if reader is None else reader)
        direct, total = float(effect.direct[0, -1, 0]), float(effect.total[0, -1, 0])
        edit = self.variants[0]
        told = f"Changing {edit} alone" if "=" in edit else f"Subtracting {edit}"
        return f"{told} predicts {direct:+.2f} {effect.reader.unit}; rerunning the model gives {total:+.2f}."

    def _repr_html_(self) -> str:
        """In a notebook: what each edit did to the first reader at the last kept token, in parts that sum."""
        shown = self.variants[:ROWS]
        clean = self.clean
        where = f"{display_token(clean.tokens[0][-1], width=24)} (position {int(clean.indices[0, -1])})"
        if not self.readers:
            sizes = self.divergence[: len(shown), -1].tolist()
            heading, columns, closing = f"KL(clean, ablated) at {where}", ("edited", "nats"), ""
            rows = [(variant, (size,)) for variant, size in zip(shown, sizes, strict=True)]
        else:
            effect = self.effect_of(self.readers[0])
            moves = [name for name in ("carry", "softcap") if bool(getattr(effect, name).any())]
            unit, parts = effect.reader.unit, ("direct", "indirect", "rescale", *moves, "total")
            heading = f"{effect.reader.rows[0]} at {where}, ablated - clean, in {unit}"
            columns = ("edited", *parts)
            rows = [(v, [float(getattr(effect, part)[n, -1, 0]) for part in parts]) for n, v in enumerate(shown)]
            closing = f"parts against the model's own change: {float(effect.closure.max()):.1e} {unit}"
        return summary_html(heading, columns, rows, others=len(self.variants) - len(shown), closing=closing)

    def __repr__(self) -> str:
        rows, batch, pos = self.changed.shape
        return f"AblationLedger({batch} variants x {rows} writes x {pos} positions; readers {len(self.readers)})"
