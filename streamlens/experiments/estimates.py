"""First-order estimates of a sweep: attribution patching.

1. One forward with a graph, and one backward per number that is read.
2. The estimate of an edit is the gradient at the write, or at what a head hands its projection, times
   (edited - clean), summed over the positions it acts on (Nanda 2023; Kramar et al. 2024, AtP).
3. It is exact to first order only. Attention that saturates and norms that move make it wrong for large edits, so where
   the exact sweep ran too, `rank_correlation` says how far it can be trusted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from streamlens.arguments import typed
from streamlens.edits import Edit
from streamlens.errors import InputError
from streamlens.hooks.edits.reference import References
from streamlens.hooks.edits.resolve import plan
from streamlens.hooks.gradients.gradient import read_gradients
from streamlens.hooks.gradients.graph import graph_of
from streamlens.hooks.prompts import Positions, kept_positions
from streamlens.hooks.writes.clean import Clean
from streamlens.ledger import Ledger
from streamlens.readouts.readers.reader import Reader

if TYPE_CHECKING:
    import pandas as pd

    from streamlens.experiments.ablate import Sweep


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimates:
    """The first-order effects of one edit after another. Signs: ablated - clean.

    Attributes:
        clean: The run without edits, one prompt, at all positions.
        positions: Where it is read.
        variants: What would be edited, as text.
        readers: What is read.
        before: For each reader the model's own value without edits, [pos, reader].
        values: For each reader the estimates, in its unit, [variant, pos, reader].
    """

    clean: Ledger
    positions: tuple[int, ...]
    variants: tuple[str, ...]
    readers: tuple[Reader, ...]
    before: tuple[Float[Tensor, "pos _reader"], ...]
    values: tuple[Float[Tensor, "variant pos _reader"], ...]

    def effects(self) -> "pd.DataFrame":
        """One row per (variant, reader, position); see `streamlens.frames.SCHEMAS["estimates"]`."""
        from streamlens.frames import estimates_frame

        return estimates_frame(
            self.clean, self.positions, self.variants, readers=self.readers, before=self.before, values=self.values
        )

    def __repr__(self) -> str:
        return f"Estimates({len(self.variants)} variants, {len(self.readers)} readers; first order)"


def estimate_effects(
    clean: Clean,
    variants: Sequence[Sequence[Edit]],
    *,
    readers: Sequence[Reader],
    positions: Positions = -1,
) -> Estimates:
    """The first-order effect of each set of edits on each reader. `sweep(..., estimate="gradient")` calls this.

    Args:
        clean: The run without edits, of one prompt.
        variants: One set of edits each, of whole writes, heads or neurons, by any method.
        readers: What to read off the model's own output.
        positions: Where to read.

    Raises:
        InputError: Several prompts, no reader, an attention edge, or an edit that does not fit.
        WiringError: The model's forward cannot be differentiated.

    Cost: one forward that keeps its activations, and one backward per reader row and position.
    """
    if len(clean.context) != 1:
        raise InputError(f"Variants are runs of one prompt; got {len(clean.context)}.")
    clean = clean.unpadded  # a position then is the same number in the run and in its ledger
    context = clean.context
    if not readers:
        raise InputError("A first-order estimate is of a reader; got none.", hint="Give readers=.")
    references = References(clean.model, clean.wiring)  # each reference prompt runs once for all variants
    across = clean.encoder_context
    plans = [plan(clean.model, clean.wiring, context, edits, references, encoder_context=across) for edits in variants]
    resolved = [planned.actions() for planned in plans]
    if any(action.source is not None for actions in resolved for action in actions):
        raise InputError("An attention edge has no first-order estimate here.", hint="Sweep it exactly.")
    kept = kept_positions(context, positions)
    places = list(range(len(context[0]))) if kept is None else kept[0]
    parts = sorted({action.row for actions in resolved for action in actions if action.columns is not None})
    graph = graph_of(clean, inputs=parts)
    before, values = [], []
    for reader in readers:
        before.append(torch.cat([graph.value(reader, [position]) for position in places]))
        found = torch.zeros(len(variants), len(places), len(reader.rows), dtype=torch.float64)
        for place, position in enumerate(places):
            for k in range(len(reader.rows)):
                gradients = read_gradients(graph, reader, [position], k)
                found[:, place, k] = torch.tensor([gradients.estimate(a) for a in resolved], dtype=torch.float64)
        values.append(found)
    return Estimates(
        clean=clean.ledger,
        positions=tuple(places),
        variants=tuple(" + ".join(edit.label for edit in edits) for edits in variants),
        readers=tuple(readers),
        before=tuple(before),
        values=tuple(values),
    )


@typed
def rank_correlation(estimates: Estimates, exact: "Sweep") -> "pd.DataFrame":
    """How well the estimates order the variants, beside the exact sweep of the same ones.

    Returns:
        One row per (reader, position): Spearman's and Pearson's correlation and the slope through 0; see
        `streamlens.frames.SCHEMAS["rank_correlation"]`.

    Raises:
        InputError: No variant, reader and position that both ran, or no sweep.
    """
    if not callable(getattr(exact, "effects", None)):
        raise InputError(f"exact of rank_correlation() is a Sweep; got a {type(exact).__name__}.")
    from streamlens.frames import rank_correlation_frame

    frame = rank_correlation_frame(estimates.effects(), exact.effects())
    if frame.empty:
        raise InputError("A rank correlation needs variants, readers and positions that both sweeps ran; got none.")
    return frame
