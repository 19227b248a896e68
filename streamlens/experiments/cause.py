"""Cause beside geometry: a write's visible and invisible part, and what really happens without each of them.

1. The write u at one token is split as the reader sees it with its norm's scale held: u = u_row + u_null.
2. The model runs without u, without u_row (only u_null stays), and without u_null (only u_row stays).
3. For each run, what changed in the reader's own value, split as an ablation: direct, indirect, rescale.

A visible share alone proves nothing about use (Makelov et al. 2023, arXiv 2311.17030): without u_null the reader loses
nothing directly, yet its value may move as far as without u_row, since other parts of the model read u_null and write
their answer into what the reader sees. And a reader that sees u_row may feed nothing that matters.
"""

from typing import TYPE_CHECKING, Any

import torch

from streamlens.arguments import typed
from streamlens.carries import Renorm, rows_of
from streamlens.edits import Edit
from streamlens.errors import InputError
from streamlens.frames import cause_frame
from streamlens.frames.ablation import token_columns
from streamlens.hooks.prompts import Prompt
from streamlens.hooks.runs.variants import run_variants
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.readouts.effects import Effects, effects, kl_divergence
from streamlens.readouts.readers.reader import Reader
from streamlens.readouts.visible.nullspace import nullspace
from streamlens.sites import find

if TYPE_CHECKING:
    import pandas as pd

#: which part is taken away -> the edit of the write that does it
REMOVED = {"whole": "zero", "row": "project_out", "null": "project_onto"}


@typed
def cause(
    model: ModelHandle,
    prompt: Prompt | Clean,
    site: str,
    reader: Reader,
    *,
    position: int | str,
    read_at: int | str | None = None,
    **forward_kwargs: Any,
) -> "pd.DataFrame":
    """What a reader's value does without a write, without its visible part, and without its invisible part.

    Args:
        model: From `streamlens.load`.
        prompt: One prompt, or an earlier clean run of it.
        site: The write: `L9.attn`, `embed`.
        reader: Whose row space splits the write, and whose value is read; one that reads after the write.
        position: The token whose write is edited.
        read_at: Where the reader reads; by default at the same token.
        **forward_kwargs: As for `decompose`.

    Returns:
        Three rows, `whole`, `row` and `null`; see `streamlens.frames.SCHEMAS["cause"]`. Ablated - clean, in the
        reader's unit; for a reader of several rows along its total change. `direct` of `null` is 0 by construction.

    Raises:
        InputError: A write that is not there, or not yet there when the reader reads; a norm between the two (post-norm
            models), behind which the parts of the write are no longer its parts.

    Cost: one clean forward, and a batch of three over the positions from the edited one on.
    """
    clean = prompt if isinstance(prompt, Clean) else start_run(model, prompt, **forward_kwargs)
    edits = [[Edit(site, method, position=position, reader=reader)] for method in REMOVED.values()]
    ledger = clean.ledger.place(position)
    row = _row(ledger, site, reader)
    u = reader.seen(ledger).writes[row, 0, 0].double().cpu()
    seen = nullspace(reader, ledger=ledger).complement(u)
    parts = {"whole": u, "row": seen, "null": u - seen}
    found: list[dict[str, Any]] = []
    names = iter(parts)
    for batch in run_variants(clean, edits, positions=position if read_at is None else read_at):
        before, after = reader.seen(batch.clean), reader.seen(batch.edited)
        effect = effects(before, after, batch.changed[: len(before.sites)], reader)
        divergence = kl_divergence(batch.clean, batch.edited)
        for run in range(len(batch.edited.stream)):
            name = next(names)
            found.append(
                {
                    **token_columns(ledger, 0),
                    "component": ledger.labels[row],
                    "reader": reader.name,
                    "unit": reader.unit,
                    "removed": name,
                    "norm": float(parts[name].norm()),
                    "share": float(parts[name].square().sum() / u.square().sum()),
                    **_along_total(effect, run),
                    "closure": float(effect.closure[run, 0].norm()),
                    "elsewhere": float(divergence[run, 0]),
                }
            )
    return cause_frame(ledger, found)


def _row(ledger: Ledger, site: str, reader: Reader) -> int:
    """The write's row, if the reader reads it and nothing but itself lies between the two."""
    row = ledger.sites.index(find(site, ledger.sites))
    seen = reader.seen(ledger)
    if row >= len(seen.sites):
        raise InputError(f"{reader.name!r} reads right after {reader.after}, before {ledger.labels[row]} is written.")
    step = next(number for number, step in enumerate(seen.program) if row in rows_of(step))
    if any(isinstance(later, Renorm) for later in seen.program[step + 1 :]):
        raise InputError(
            f"A norm stands between {ledger.labels[row]} and {reader.name!r}, so its parts are none behind it.",
            hint="visibility() still says what the reader sees of the write as it arrives there.",
        )
    return row


def _along_total(effect: Effects, run: int) -> dict[str, float]:
    """The effects on a reader as numbers: its own for one row, for several along the vector of their total."""
    parts = {"direct": effect.direct, "indirect": effect.indirect, "rescale": effect.rescale, "total": effect.total}
    vectors = {name: part[run, 0] for name, part in parts.items()}
    total = vectors["total"]
    axis = torch.ones_like(total) if len(total) == 1 else total / total.norm().clamp_min(1e-300)
    return {name: float(vector @ axis) for name, vector in vectors.items()}
